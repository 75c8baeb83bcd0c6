#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "test/support/memory_counter.h"
#include "torch_dcp/plan/default_save_planner.h"
#include "torch_dcp/plan/wire.h"

// What the coordinator allocates for each item of all ranks' plans, in a program that counts.

namespace dcp {
namespace {

constexpr std::int64_t kRanks = 64;
constexpr std::int64_t kItems = 500;

/// Rows of tensors; every tenth is whole on all ranks.
SavePlan plan_of(std::int64_t rank) {
  SavePlan plan;
  for (std::int64_t i = 0; i < kItems; ++i) {
    const Path path = {PathItem::dict_key("layers"), PathItem::dict_key(std::to_string(i)),
                       PathItem::dict_key("attention.weight")};
    WriteItem item;
    item.type = WriteItemType::kShard;
    item.index.fqn = flat_key(path);
    item.chunk = {{i % 10 == 0 ? 0 : 8 * rank, 0}, {8, 64}};
    item.index.offset = item.chunk.offsets;
    item.size = {i % 10 == 0 ? 8 : 8 * kRanks, 64};
    plan.planner_data.edit().insert(item.index.fqn, path);
    plan.items.push_back(std::move(item));
  }
  return plan;
}

double per_item(std::int64_t bytes) { return static_cast<double>(bytes) / static_cast<double>(kRanks * kItems); }

TEST(PlanMemory, AnItemOfAPlanTakesItsOwnRoomAndThatOfItsKey) {
  std::vector<Bytes> offered;
  for (std::int64_t rank = 0; rank < kRanks; ++rank) offered.push_back(to_bytes(plan_of(rank)));

  const testing::PeakMemory decoding;
  std::vector<SavePlan> plans;
  SavePlanDecoder decoder;
  for (const Bytes& bytes : offered) plans.push_back(decoder.decode(bytes));
  // A key is one allocation; the paths, which are many times as large, are there once.
  EXPECT_LE(per_item(decoding.allocated_bytes()), sizeof(WriteItem) + 60);
  EXPECT_GE(per_item(decoding.allocated_bytes()), sizeof(WriteItem));

  DefaultSavePlanner planner;
  SavePlannerContext context;
  context.world_size = static_cast<int>(kRanks);
  const StateDict nothing;
  planner.set_up(nothing, context);
  const testing::PeakMemory planning;
  const auto [global_plans, metadata] = planner.create_global_plan(std::move(plans));
  // Some numbers of each item, twice while they are sorted, and the chunk in the metadata.
  EXPECT_LE(per_item(planning.bytes()), sizeof(Box) + 64);
  EXPECT_LE(per_item(planning.allocated_bytes()), sizeof(Box) + 128);
  EXPECT_EQ(metadata.state_dict_metadata.size(), static_cast<std::size_t>(kItems));

  const testing::PeakMemory answering;
  std::size_t answered = 0;
  for (const SavePlan& plan : global_plans) answered += to_bytes(plan).size();
  EXPECT_LE(per_item(answering.allocated_bytes()), 4 * per_item(static_cast<std::int64_t>(answered)))
      << "the bytes, as a growing vector takes them";
}

}  // namespace
}  // namespace dcp

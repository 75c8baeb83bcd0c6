#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include "test/plan/plan_support.h"
#include "torch_dcp/plan/box_sweep_internal.h"
#include "torch_dcp/plan/default_save_planner.h"
#include "torch_dcp/plan/split_replicated_internal.h"

namespace dcp {
namespace {

using test::expect_error_with;
using Bytes64 = std::vector<std::int64_t>;
using StateOfRank = std::function<StateDict(int rank)>;

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

double balance_of(const Bytes64& bytes) {
  const auto sum = static_cast<double>(std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0}));
  return static_cast<double>(*std::max_element(bytes.begin(), bytes.end())) * static_cast<double>(bytes.size()) / sum;
}

ReplicatedChunk floats(Box box) {
  const std::int64_t bytes = box.numel() * 4;
  return {std::move(box), bytes};
}

TEST(SplitReplicated, OneChunkInEqualBlocksOfRows) {
  Bytes64 loads(8, 100);
  const auto pieces = split_replicated({floats({{16, 0}, {1024, 65536}})}, loads);
  ASSERT_EQ(pieces.size(), 8u);
  for (std::size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(pieces[i].chunk, 0u);
    EXPECT_EQ(pieces[i].holder, i);
    EXPECT_EQ(pieces[i].box, (Box{{16 + 128 * static_cast<std::int64_t>(i), 0}, {128, 65536}}));
  }
  EXPECT_EQ(loads, Bytes64(8, 100 + 32 * kMiB));
}

TEST(SplitReplicated, HoldersThatHaveMuchGetLessOrNothing) {
  Bytes64 loads = {900, 4000, 100, 500};
  const auto pieces = split_replicated({floats({{0}, {375}})}, loads);
  EXPECT_EQ(loads, (Bytes64{1000, 4000, 1000, 1000}));
  ASSERT_EQ(pieces.size(), 3u);
  // The fullest takes the first rows.
  EXPECT_EQ(pieces[0].holder, 0u);
  EXPECT_EQ(pieces[0].box, (Box{{0}, {25}}));
  EXPECT_EQ(pieces[2].holder, 2u);
  EXPECT_EQ(pieces[2].box, (Box{{150}, {225}}));
}

TEST(SplitReplicated, CutsAlongTheFirstDimensionWithSmallEnoughRows) {
  Bytes64 loads(4, 0);
  const auto pieces = split_replicated({floats({{0, 0, 0}, {1, 3, 4096}})}, loads);
  EXPECT_EQ(loads, Bytes64(4, 3 * 4096));
  for (const ReplicatedPiece& piece : pieces) EXPECT_EQ(piece.box.sizes, (Sizes{1, 3, 1024}));
  // With too few rows anywhere some holders get nothing.
  Bytes64 others(4, 0);
  EXPECT_EQ(split_replicated({floats({{0, 0}, {1, 3}})}, others).size(), 3u);
  EXPECT_EQ(std::accumulate(others.begin(), others.end(), std::int64_t{0}), 12);
  Bytes64 alone(3, 0);
  EXPECT_EQ(split_replicated({floats({{}, {}})}, alone).size(), 1u);
}

TEST(SplitReplicated, FewLargeRowsAreKeptWholeWhereTheyFillTheHolders) {
  Bytes64 loads(8, 100);
  const auto pieces = split_replicated({floats({{0, 0, 0}, {8, 512, 512}})}, loads);
  EXPECT_EQ(loads, Bytes64(8, 100 + kMiB));
  for (const ReplicatedPiece& piece : pieces) EXPECT_EQ(piece.box.sizes, (Sizes{1, 512, 512}));
  // Not where only the first of them is.
  Bytes64 uneven = {5 * kMiB / 2, 2 * kMiB, 0};
  split_replicated({floats({{0, 0, 0}, {8, 512, 512}})}, uneven);
  EXPECT_LE(balance_of(uneven), 1.05) << ::testing::PrintToString(uneven);
}

TEST(SplitReplicated, MakesNoMorePiecesThanChunksAndHoldersTogether) {
  std::vector<ReplicatedChunk> chunks;
  for (int i = 0; i < 100; ++i) chunks.push_back(floats({{0, 0}, {1000, 1000}}));
  Bytes64 loads(64, 0);
  EXPECT_LE(split_replicated(chunks, loads).size(), 100u + 64u);
  EXPECT_LE(balance_of(loads), 1.05);
}

TEST(SplitReplicated, PiecesTileTheirChunksWhateverTheLoads) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const auto number = [&](std::int64_t end) {
      return static_cast<std::int64_t>(random() % static_cast<unsigned>(end));
    };
    std::vector<ReplicatedChunk> chunks;
    for (std::int64_t i = 1 + number(12); i > 0; --i) {
      Box box;
      for (std::int64_t dim = number(4); dim > 0; --dim) {
        box.offsets.push_back(number(5));
        box.sizes.push_back(1 + number(number(2) == 0 ? 3 : 300));
      }
      chunks.push_back(floats(std::move(box)));
    }
    Bytes64 loads(static_cast<std::size_t>(1 + number(9)));
    for (std::int64_t& load : loads) load = number(3) == 0 ? number(2'000'000) : 0;
    Bytes64 expected = loads;
    const auto pieces = split_replicated(chunks, loads);
    std::map<std::size_t, std::vector<Box>> boxes;
    std::set<std::pair<std::size_t, std::size_t>> holders;
    for (const ReplicatedPiece& piece : pieces) {
      boxes[piece.chunk].push_back(piece.box);
      EXPECT_TRUE(holders.emplace(piece.chunk, piece.holder).second) << "two pieces of one chunk";
      EXPECT_TRUE(chunks[piece.chunk].box.contains(piece.box));
      expected[piece.holder] += piece.box.numel() * 4;
    }
    EXPECT_EQ(loads, expected);
    ASSERT_EQ(boxes.size(), chunks.size());
    for (const auto& [chunk, parts] : boxes) {
      EXPECT_FALSE(find_overlap(parts));
      EXPECT_FALSE(find_uncovered(chunks[chunk].box, parts));
      EXPECT_TRUE(std::none_of(parts.begin(), parts.end(), [](const Box& box) { return box.empty(); }));
    }
    EXPECT_LE(pieces.size(), chunks.size() + loads.size());
  }
}

// Through the planner.

DTensor spread(Sizes sizes, Sizes mesh_shape, Placements placements, int rank, at::ScalarType dtype = at::kFloat) {
  return DTensor::empty(std::move(sizes), dtype, DeviceMesh::make(std::move(mesh_shape), rank), std::move(placements));
}

SavePlannerOptions split_above(std::int64_t bytes) {
  SavePlannerOptions options;
  options.split_replicated_bytes = bytes;
  return options;
}

std::pair<std::vector<SavePlan>, Metadata> plan_all(int world_size, const StateOfRank& state_of,
                                                    SavePlannerOptions options) {
  std::vector<SavePlan> plans;
  DefaultSavePlanner coordinator(options);
  const StateDict nothing;
  SavePlannerContext context;
  context.world_size = world_size;
  coordinator.set_up(nothing, context);
  for (int rank = 0; rank < world_size; ++rank) {
    DefaultSavePlanner planner(options);
    context.rank = rank;
    const StateDict state = state_of(rank);
    planner.set_up(state, context);
    plans.push_back(planner.create_local_plan());
  }
  return coordinator.create_global_plan(std::move(plans));
}

Bytes64 bytes_of(const std::vector<SavePlan>& plans) {
  Bytes64 bytes;
  for (const SavePlan& plan : plans) {
    bytes.push_back(0);
    for (const WriteItem& item : plan.items) bytes.back() += item.byte_size();
  }
  return bytes;
}

std::vector<Box> chunks_of(const Metadata& metadata, const std::string& key) {
  return std::get<TensorStorageMetadata>(*metadata.state_dict_metadata.find(key)).chunks.boxes();
}

TEST(SplitReplicated, WrittenBytesAreBalancedInAllThreeLayouts) {
  const auto rows = [](int i) { return 170 + 10 * ((i * 7919) % 401); };
  const std::map<std::string, StateOfRank> layouts = {
      {"even",
       [](int rank) {
         StateDict state;
         for (int i = 0; i < 40; ++i) {
           state["s" + std::to_string(i)] = spread({1024, 256}, {8}, {Placement::shard(0)}, rank);
         }
         for (int i = 0; i < 3; ++i) state["r" + std::to_string(i)] = at::empty({1000, 1000});
         return state;
       }},
      {"uneven, hybrid",
       [&](int rank) {
         StateDict state;
         for (int i = 0; i < 12; ++i) {
           state["h" + std::to_string(i)] =
               spread({rows(i), 64}, {2, 4}, {Placement::replicate(), Placement::shard(0)}, rank);
           state["r" + std::to_string(i)] = at::empty({rows(i + 60) / 8, 64});
         }
         state["large"] = spread({40001, 64}, {2, 4}, {Placement::replicate(), Placement::shard(0)}, rank);
         return state;
       }},
      {"one of 256 MiB on 8 ranks", [](int) { return StateDict{{"embedding", at::empty({65536, 1024})}}; }},
  };
  for (const auto& [name, state_of] : layouts) {
    SCOPED_TRACE(name);
    const auto [plans, metadata] = plan_all(8, state_of, split_above(kMiB / 4));
    const Bytes64 bytes = bytes_of(plans);
    EXPECT_LE(balance_of(bytes), 1.05) << ::testing::PrintToString(bytes);
    EXPECT_EQ(std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0}), [&] {
      std::int64_t sum = 0;
      for (const auto& [key, entry] : metadata.state_dict_metadata) {
        for (const Box& chunk : chunks_of(metadata, key)) sum += chunk.numel() * 4;
      }
      return sum;
    }());
  }
  const auto [whole, metadata] = plan_all(8, layouts.at("one of 256 MiB on 8 ranks"), {});
  EXPECT_EQ(bytes_of(whole), (Bytes64{256 * kMiB, 0, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(chunks_of(metadata, "embedding").size(), 1u);
}

TEST(SplitReplicated, ShardsOfReplicatedGroupsAreCutWithinTheirGroup) {
  const auto [plans, metadata] = plan_all(
      4,
      [](int rank) {
        return StateDict{
            {"w", spread({128, 64}, {2, 2}, {Placement::replicate(), Placement::shard(0)}, rank, at::kDouble)}};
      },
      split_above(1000));
  EXPECT_EQ(bytes_of(plans), Bytes64(4, 32 * 64 * 8));
  const std::vector<Box> expected = {{{0, 0}, {32, 64}}, {{64, 0}, {32, 64}}, {{32, 0}, {32, 64}}, {{96, 0}, {32, 64}}};
  EXPECT_EQ(chunks_of(metadata, "w"), expected);
  for (std::size_t rank = 0; rank < 4; ++rank) {
    const WriteItem& item = plans[rank].items.at(0);
    EXPECT_EQ(item.index, (MetadataIndex{"w", expected[rank].offsets, {}}));
    EXPECT_EQ(item.index.index, static_cast<std::int64_t>(rank));
    EXPECT_EQ(item.chunk, expected[rank]);
  }
}

TEST(SplitReplicated, SmallOnesQuantizedOnesAndObjectsStayWhole) {
  const StateOfRank state_of = [](int) {
    return StateDict{{"q", at::quantize_per_tensor(at::ones({4000}), 0.5, 1, at::kQInt8)},
                     {"exact", at::empty({250})},
                     {"more", at::empty({251})},
                     {"object", "text"},
                     {"empty", at::empty({0})}};
  };
  const auto [plans, metadata] = plan_all(2, state_of, split_above(1000));
  EXPECT_EQ(chunks_of(metadata, "q").size(), 1u);
  EXPECT_EQ(chunks_of(metadata, "exact").size(), 1u);
  EXPECT_EQ(chunks_of(metadata, "more").size(), 1u) << "the other rank has less to write";
  EXPECT_EQ(bytes_of(plans), (Bytes64{4000, 2004}));
}

TEST(SplitReplicated, AHolderGivesItsOwnPiece) {
  const at::Tensor weight = at::arange(4000, at::kFloat).view({40, 100});
  const at::Tensor turned = at::arange(4000, at::kFloat).view({100, 40}).t();
  const StateDict state = {{"w", weight}, {"t", turned}};
  std::vector<std::unique_ptr<DefaultSavePlanner>> planners;
  std::vector<SavePlan> plans;
  for (int rank = 0; rank < 2; ++rank) {
    planners.push_back(std::make_unique<DefaultSavePlanner>(split_above(100)));
    SavePlannerContext context;
    context.rank = rank;
    context.world_size = 2;
    planners.back()->set_up(state, context);
    plans.push_back(planners.back()->create_local_plan());
  }
  auto [global_plans, metadata] = planners[0]->create_global_plan(std::move(plans));
  at::Tensor rebuilt_w = at::zeros({40, 100});
  at::Tensor rebuilt_t = at::zeros({40, 100});
  for (std::size_t rank = 0; rank < 2; ++rank) {
    const SavePlan plan = planners[rank]->finish_plan(std::move(global_plans[rank]));
    for (const WriteItem& item : plan.items) {
      const at::Tensor piece = planners[rank]->resolve_tensor(item);
      ASSERT_EQ(Sizes(piece.sizes()), item.chunk.sizes);
      EXPECT_EQ(piece.storage().data(), (item.index.fqn == "w" ? weight : turned).storage().data()) << "no alias";
      at::Tensor& rebuilt = item.index.fqn == "w" ? rebuilt_w : rebuilt_t;
      rebuilt.narrow(0, item.chunk.offsets[0], item.chunk.sizes[0]).copy_(piece);
    }
  }
  EXPECT_TRUE(rebuilt_w.equal(weight));
  EXPECT_TRUE(rebuilt_t.equal(turned));
  WriteItem foreign = global_plans[0].items.empty() ? WriteItem() : global_plans[0].items[0];
  foreign.index = {"w", Sizes{39, 0}, {}};
  foreign.type = WriteItemType::kShard;
  foreign.chunk = {{39, 0}, {2, 100}};
  expect_error_with(ErrorKind::kKey, {"'w at [39, 0]'", "[2, 100]"}, [&] { planners[0]->resolve_tensor(foreign); });
}

TEST(SplitReplicated, OptionsThatContradictAreRefused) {
  SavePlannerOptions options = split_above(1);
  options.dedup_save_to_lowest_rank = true;
  expect_error_with(ErrorKind::kInvalidArgument, {"split_replicated_bytes", "dedup_save_to_lowest_rank"},
                    [&] { DefaultSavePlanner planner(options); });
  expect_error_with(ErrorKind::kInvalidArgument, {"split_replicated_bytes", "-1"},
                    [&] { DefaultSavePlanner planner(split_above(-1)); });
}

}  // namespace
}  // namespace dcp

#include "test/bench/plan_layouts.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "torch_dcp/tensor/box.h"

namespace dcp::bench {
namespace {

constexpr std::int64_t kRows = 8;
constexpr std::int64_t kColumns = 64;

void add_item(SavePlan& plan, const std::string& group, std::int64_t number, Sizes size, Box chunk) {
  WriteItem item;
  item.type = WriteItemType::kShard;
  item.index.fqn = group + "." + std::to_string(number) + ".weight";
  item.index.offset = chunk.offsets;
  item.size = std::move(size);
  item.chunk = std::move(chunk);
  plan.planner_data.edit().insert(
      item.index.fqn,
      {PathItem::dict_key(group), PathItem::dict_key(std::to_string(number)), PathItem::dict_key("weight")});
  plan.items.push_back(std::move(item));
}

SavePlan empty_plan(std::int64_t items) {
  SavePlan plan;
  plan.items.reserve(static_cast<std::size_t>(items));
  plan.planner_data.edit().reserve(static_cast<std::size_t>(items));
  return plan;
}

void add_rows(SavePlan& plan, const std::string& group, std::int64_t count, std::int64_t part, std::int64_t parts) {
  for (std::int64_t i = 0; i < count; ++i) {
    add_item(plan, group, i, {kRows * parts, kColumns}, {{kRows * part, 0}, {kRows, kColumns}});
  }
}

void add_whole(SavePlan& plan, const std::string& group, std::int64_t first, std::int64_t count) {
  for (std::int64_t i = first; i < first + count; ++i) {
    add_item(plan, group, i, {kColumns, kColumns}, {{0, 0}, {kColumns, kColumns}});
  }
}

}  // namespace

PlanLayout sharded_layout(const Settings& settings) {
  const std::int64_t sharded = settings.sharded;
  const std::int64_t replicated = settings.replicated;
  return {"sharded", sharded + replicated, [=](std::int64_t rank, std::int64_t ranks) {
            SavePlan plan = empty_plan(sharded + replicated);
            add_rows(plan, "layers", sharded, rank, ranks);
            add_whole(plan, "norms", 0, replicated);
            return plan;
          }};
}

PlanLayout flat_layout() {
  constexpr std::int64_t kLayers = 100;
  constexpr std::int64_t kKinds = 3;
  return {"flat shards", kLayers * kKinds, [](std::int64_t rank, std::int64_t ranks) {
            SavePlan plan = empty_plan(kLayers * kKinds);
            const std::int64_t numel = 1000 * ranks + 3;
            const std::int64_t each = (numel + ranks - 1) / ranks;
            const std::int64_t begin = std::min(rank * each, numel);
            const std::int64_t count = std::min(each, numel - begin);
            for (const char* kind : {"flat", "exp_avg", "exp_avg_sq"}) {
              for (std::int64_t i = 0; i < kLayers; ++i) add_item(plan, kind, i, {numel}, {{begin}, {count}});
            }
            return plan;
          }};
}

PlanLayout expert_layout() {
  constexpr std::int64_t kOwn = 64;
  constexpr std::int64_t kNode = 8;
  constexpr std::int64_t kCut = 200;
  constexpr std::int64_t kWhole = 100;
  return {"experts", kOwn + kCut + kWhole, [](std::int64_t rank, std::int64_t ranks) {
            SavePlan plan = empty_plan(kOwn + kCut + kWhole);
            const std::int64_t node = ranks < kNode ? ranks : kNode;
            add_whole(plan, "experts", rank * kOwn, kOwn);
            add_rows(plan, "layers", kCut, rank % node, node);
            add_whole(plan, "norms", 0, kWhole);
            return plan;
          }};
}

void add_storage(Metadata& metadata, std::int64_t files) {
  std::int64_t number = 0;
  for (const auto& [key, stored] : metadata.state_dict_metadata) {
    std::int64_t chunk_number = 0;
    for (const Box& chunk : std::get<TensorStorageMetadata>(stored).chunks) {
      StorageInfo info;
      info.relative_path = "__" + std::to_string(number % files) + "_0.distcp";
      info.offset = number / files * 4096;
      info.length = 4096;
      metadata.storage_data.insert({key, chunk.offsets, chunk_number++}, std::move(info));
      ++number;
    }
  }
}

}  // namespace dcp::bench

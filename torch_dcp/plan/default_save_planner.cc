#include "torch_dcp/plan/default_save_planner.h"

#include <typeinfo>
#include <unordered_set>
#include <utility>

#include "torch_dcp/base/byte_codec.h"
#include "torch_dcp/base/fault_list.h"
#include "torch_dcp/plan/dedup_internal.h"
#include "torch_dcp/plan/key_table_internal.h"
#include "torch_dcp/plan/narrow_internal.h"
#include "torch_dcp/plan/validate.h"
#include "torch_dcp/plan/write_items.h"

namespace dcp {
namespace {

using Paths = PlannerPaths::Map;

/// The paths of several plans, in order of first appearance.
Paths merge_paths(std::vector<PlannerPaths> all) {
  KeyTable keys;
  keys.reserve(all[0]->size());
  std::vector<Paths::value_type*> merged;
  FaultList faults;
  for (PlannerPaths& paths : all) {
    keys.rewind();
    for (Paths::value_type& entry : paths.edit()) {
      const KeyTable::Place place = keys.add(entry.first);
      if (place.is_new) {
        merged.push_back(&entry);
      } else if (merged[place.number]->second != entry.second) {
        faults.add(ErrorKind::kKey, entry.first,
                   "ranks have it at " + describe(merged[place.number]->second) + " and at " + describe(entry.second));
      }
    }
  }
  faults.throw_if_any("ranks disagree about the structure of the state dict", DCP_WHERE);
  Paths result;
  result.reserve(merged.size());
  for (Paths::value_type* entry : merged) result.insert(std::move(entry->first), std::move(entry->second));
  return result;
}

/// All ranks' paths, in order of first appearance; takes them out of the plans.
std::optional<Paths> take_planner_data(std::vector<SavePlan>& plans) {
  std::vector<PlannerPaths> all;  // but those that ranks share
  std::unordered_set<const Paths*> seen;
  for (SavePlan& plan : plans) {
    if (plan.planner_data && seen.insert(&*plan.planner_data).second) all.push_back(std::move(plan.planner_data));
    plan.planner_data.reset();
  }
  if (all.empty()) return std::nullopt;
  if (all.size() == 1) return std::move(all[0].edit());
  return merge_paths(std::move(all));
}

StorageMetadata new_entry(const WriteItem& item, std::size_t chunk_count) {
  if (!item.is_tensor()) return BytesStorageMetadata{};
  TensorStorageMetadata tensor{item.properties, item.size, {}};
  tensor.chunks.reserve(chunk_count, item.size.size());
  return tensor;
}

/// Numbers the keys of items by first appearance again, since items were left out. Returns how many keys there are.
std::size_t number_again(DedupedPlans& deduped) {
  constexpr std::uint32_t kNone = UINT32_MAX;
  std::vector<std::uint32_t> numbers(deduped.key_count, kNone);
  std::uint32_t count = 0;
  for (std::uint32_t& number : deduped.key_numbers) {
    if (numbers[number] == kNone) numbers[number] = count++;
    number = numbers[number];
  }
  return count;
}

/// Gathers the chunks of all plans, and writes each chunk's number into its item.
OrderedMap<std::string, StorageMetadata> gather_chunks(DedupedPlans& deduped) {
  std::vector<std::size_t> item_counts(number_again(deduped));
  for (const std::uint32_t number : deduped.key_numbers) ++item_counts[number];
  OrderedMap<std::string, StorageMetadata> result;
  result.reserve(item_counts.size());
  auto number = deduped.key_numbers.begin();
  for (SavePlan& plan : deduped.plans) {
    for (WriteItem& item : plan.items) {
      if (*number == result.size()) result.insert(item.index.fqn, new_entry(item, item_counts[*number]));
      StorageMetadata& entry = (result.begin() + *number++)->second;
      if (!item.is_tensor()) continue;
      ChunkList& chunks = std::get<TensorStorageMetadata>(entry).chunks;
      item.index.index = static_cast<std::int64_t>(chunks.size());
      chunks.push_back(item.chunk);
    }
  }
  return result;
}

/// The part of a leaf that an item stands for which is no whole chunk of it; nothing if there is no such part.
std::optional<at::Tensor> find_piece(const Value& leaf, const Box& piece) {
  if (!leaf.is_tensor_like()) return std::nullopt;
  for (const LocalChunk& chunk : local_chunks(leaf.as_tensor_like())) {
    if (!chunk.box.contains(piece)) continue;
    Sizes offsets = piece.offsets;
    for (std::size_t dim = 0; dim < offsets.size(); ++dim) offsets[dim] -= chunk.box.offsets[dim];
    return narrow_to(chunk.view, offsets, piece.sizes);
  }
  return std::nullopt;
}

void put_numbers(ByteWriter& out, c10::IntArrayRef numbers) {
  out.u64(numbers.size());
  for (const std::int64_t number : numbers) out.i64(number);
}

}  // namespace

DefaultSavePlanner::DefaultSavePlanner(SavePlannerOptions options) : options_(options) {
  DCP_CHECK(options_.split_replicated_bytes >= 0, kInvalidArgument, "split_replicated_bytes is ",
            options_.split_replicated_bytes);
  DCP_CHECK(options_.split_replicated_bytes == 0 || !options_.dedup_save_to_lowest_rank, kInvalidArgument,
            "split_replicated_bytes shares what dedup_save_to_lowest_rank gives to one rank: only one can be set");
}
DefaultSavePlanner::~DefaultSavePlanner() = default;

void DefaultSavePlanner::set_up(const StateDict& state, const SavePlannerContext& context) {
  views_ = {};
  context_ = context;
  leaves_ = find_leaves(state, options_.flatten);
}

SavePlan DefaultSavePlanner::create_local_plan() {
  SavePlan plan;
  plan.items.reserve(leaves_.size());
  views_ = {};
  views_.reserve(leaves_.size());
  const bool has_paths = options_.flatten != FlattenRule::kTopLevel;
  if (has_paths) plan.planner_data.edit().reserve(leaves_.size());
  for (const auto& [key, leaf] : leaves_) {
    for (WriteItemAndView& offered : create_write_items(key, *leaf.value)) {
      if (offered.item.is_tensor()) views_.insert(offered.item.index, std::move(offered.view));
      plan.items.push_back(std::move(offered.item));
    }
    if (has_paths) plan.planner_data.edit().insert(key, leaf.path);
  }
  return plan;
}

std::pair<std::vector<SavePlan>, Metadata> DefaultSavePlanner::create_global_plan(std::vector<SavePlan> all_plans) {
  Metadata metadata;
  metadata.planner_data = take_planner_data(all_plans);
  DedupedPlans deduped =
      dedup_and_number(std::move(all_plans), options_.dedup_save_to_lowest_rank, options_.split_replicated_bytes);
  metadata.state_dict_metadata = gather_chunks(deduped);
  metadata.storage_meta = context_.storage_meta;
  metadata.version = "1.0.0";
  // Without collectives each rank makes a plan of its own chunks alone, and a single process
  // may save a part of a tensor, as in Python.
  validate_global_plan(metadata, context_.use_collectives && context_.world_size > 1);
  return {std::move(deduped.plans), std::move(metadata)};
}

SavePlan DefaultSavePlanner::finish_plan(SavePlan plan) { return plan; }

at::Tensor DefaultSavePlanner::resolve_tensor(const WriteItem& item) const {
  const at::Tensor* view = views_.find(item.index);
  if (view != nullptr && view->sizes() == c10::IntArrayRef(item.chunk.sizes)) return *view;
  if (const LeafPlace* leaf = leaves_.find(item.index.fqn)) {
    if (const auto piece = find_piece(*leaf->value, item.chunk)) return *piece;
  }
  DCP_THROW(kKey, "no tensor '", to_string(item.index), "' of sizes ", to_string(c10::IntArrayRef(item.chunk.sizes)),
            " in the state dict that is being saved");
}

const Value& DefaultSavePlanner::resolve_object(const WriteItem& item) const {
  const LeafPlace* leaf = leaves_.find(item.index.fqn);
  DCP_CHECK(leaf != nullptr, kKey, "no object '", item.index.fqn, "' in the state dict that is being saved");
  return *leaf->value;
}

std::optional<Bytes> DefaultSavePlanner::fingerprint() const {
  if (typeid(*this) != typeid(DefaultSavePlanner)) return std::nullopt;
  return default_fingerprint();
}

Bytes DefaultSavePlanner::default_fingerprint() const {
  ByteWriter out;
  out.text(typeid(*this).name());
  out.u8(static_cast<std::uint8_t>(options_.flatten));
  out.boolean(options_.dedup_save_to_lowest_rank);
  out.i64(options_.split_replicated_bytes);
  for (const auto& [index, view] : views_) {
    out.u8(static_cast<std::uint8_t>(view.device().type()));
    put_numbers(out, view.strides());
  }
  for (const auto& [key, leaf] : leaves_) {
    const auto* tensor = std::get_if<DTensor>(&leaf.value->storage());
    if (tensor == nullptr) continue;
    put_numbers(out, tensor->mesh().shape());
    for (const Placement& placement : tensor->placements()) out.text(to_string(placement));
  }
  return std::move(out).take();
}

}  // namespace dcp

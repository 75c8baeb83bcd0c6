#include "torch_dcp/plan/default_load_planner.h"

#include <algorithm>

#include "torch_dcp/plan/load_leaf_internal.h"

namespace dcp {

DefaultLoadPlanner::DefaultLoadPlanner(LoadPlannerOptions options) : options_(options) {}
DefaultLoadPlanner::~DefaultLoadPlanner() = default;

void DefaultLoadPlanner::set_up(StateDict& state, const Metadata& metadata, const LoadPlannerContext& context) {
  set_up_flattened(state, flatten_state_dict(state, options_.flatten), metadata, context);
  if (options_.flatten == FlattenRule::kCurrent) take_old_keys();
}

void DefaultLoadPlanner::set_up_flattened(StateDict& state, FlatStateDict flat, const Metadata& metadata,
                                          const LoadPlannerContext& context) {
  context_ = context;
  state_ = &state;
  metadata_ = &metadata;
  flat_ = std::move(flat);
  report_ = {};
  views_ = {};
  const std::lock_guard lock(objects_mutex_);
  objects_ = {};
}

/// Up to PyTorch 2.3 a mapping without tensors was one object. If keys are missing, and flattening so
/// gives keys that are stored, the checkpoint is that old.
void DefaultLoadPlanner::take_old_keys() {
  const auto& stored = metadata_->state_dict_metadata;
  const bool has_all =
      std::all_of(flat_.begin(), flat_.end(), [&](const auto& leaf) { return stored.contains(leaf.first); });
  if (has_all) return;
  FlatStateDict old = flatten_state_dict(*state_, FlattenRule::kUpTo2_3);
  const bool is_old = std::any_of(old.begin(), old.end(), [&](const auto& leaf) {
    return !flat_.contains(leaf.first) && stored.contains(leaf.first);
  });
  if (is_old) flat_ = std::move(old);
}

LoadPlan DefaultLoadPlanner::create_local_plan() {
  DCP_CHECK(metadata_ != nullptr, kState, "create_local_plan before set_up");
  report_ = {};
  views_ = {};
  FaultList faults;
  LoadPlan plan;
  LeafLoader loader(options_, *metadata_, faults, report_, plan, views_);
  for (const auto& [key, leaf] : flat_) loader.add(key, leaf.value);
  for (const auto& entry : metadata_->state_dict_metadata) {
    if (!flat_.contains(entry.first)) report_.unexpected.push_back(entry.first);
  }
  faults.throw_if_any("the checkpoint does not fit the destination", DCP_WHERE);
  return plan;
}

std::vector<LoadPlan> DefaultLoadPlanner::create_global_plan(std::vector<LoadPlan> all_plans) { return all_plans; }

LoadPlan DefaultLoadPlanner::finish_plan(LoadPlan plan) { return plan; }

at::Tensor DefaultLoadPlanner::resolve_tensor(const ReadItem& item) {
  const at::Tensor* view = views_.find(item.dest_index);
  DCP_CHECK(view != nullptr, kKey, "no destination '", to_string(item.dest_index), "' in the state dict");
  const auto ndim = static_cast<std::size_t>(view->dim());
  DCP_CHECK(item.dest_offsets.size() == ndim && item.lengths.size() == ndim, kInvalidArgument, "destination '",
            to_string(item.dest_index), "' has ", ndim, " dimensions, the item ", item.lengths.size());
  at::Tensor region = *view;
  for (std::size_t dim = 0; dim < ndim; ++dim) {
    if (item.lengths[dim] == region.sizes()[dim]) continue;
    region = region.narrow(static_cast<std::int64_t>(dim), item.dest_offsets[dim], item.lengths[dim]);
  }
  return region;
}

void DefaultLoadPlanner::commit_tensor(const ReadItem&, const at::Tensor&) {
  // The filled tensor is an alias of the destination already.
}

void DefaultLoadPlanner::load_object(const ReadItem& item, Value value) {
  const std::string& key = item.dest_index.fqn;
  const FlatLeaf* leaf = flat_.find(key);
  DCP_CHECK(leaf != nullptr, kKey, "no destination '", key, "' in the state dict");
  Value accepted = accept_object(key, leaf->value, std::move(value));
  const std::lock_guard lock(objects_mutex_);
  objects_.insert_or_assign(key, std::move(accepted));
}

void DefaultLoadPlanner::commit_objects() {
  const std::lock_guard lock(objects_mutex_);
  for (auto& [key, value] : objects_) {
    const Path& path = flat_.find(key)->path;
    Value* destination = get_element(*state_, path);
    DCP_CHECK(destination != nullptr, kState, "key '", key, "': ", describe(path),
              " has gone from the state dict during the load");
    *destination = std::move(value);
  }
  objects_ = {};
}

}  // namespace dcp

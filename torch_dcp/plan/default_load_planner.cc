#include "torch_dcp/plan/default_load_planner.h"

#include <algorithm>
#include <string_view>
#include <unordered_set>

#include "torch_dcp/plan/load_leaf_internal.h"
#include "torch_dcp/plan/narrow_internal.h"
#include "torch_dcp/state_dict/equal.h"
#include "torch_dcp/tensor/quantized.h"

namespace dcp {
namespace {

bool is_below(const Path& path, const Path& above) {
  return path.size() > above.size() && std::equal(above.begin(), above.end(), path.begin());
}

}  // namespace

DefaultLoadPlanner::DefaultLoadPlanner(LoadPlannerOptions options) : options_(options) {}
DefaultLoadPlanner::~DefaultLoadPlanner() = default;

void DefaultLoadPlanner::set_up(StateDict& state, const Metadata& metadata, const LoadPlannerContext& context) {
  set_up_leaves(state, find_leaves(state, options_.flatten), metadata, context);
  if (options_.flatten == FlattenRule::kCurrent) take_old_keys();
}

void DefaultLoadPlanner::set_up_leaves(StateDict& state, LeafPlaces leaves, const Metadata& metadata,
                                       const LoadPlannerContext& context) {
  context_ = context;
  state_ = &state;
  metadata_ = &metadata;
  leaves_ = std::move(leaves);
  old_keys_.clear();
  report_ = {};
  views_ = {};
  tied_.clear();
  const std::lock_guard lock(objects_mutex_);
  objects_ = {};
}

/// Those of earlier forms that are stored, and have wanted keys below them that are not.
std::vector<const LeafPlace*> DefaultLoadPlanner::find_old_objects(const LeafPlaces& old) const {
  const auto& stored = metadata_->state_dict_metadata;
  std::vector<const LeafPlace*> objects;
  FaultList faults;
  for (const auto& [old_key, object] : old) {
    if (leaves_.contains(old_key) || !stored.contains(old_key)) continue;
    bool is_needed = false;
    std::vector<std::pair<const std::string*, std::string>> others;  // keys below that are not to be loaded from there
    for (const auto& [key, leaf] : leaves_) {
      if (!is_below(leaf.path, object.path)) continue;
      if (!is_wanted(key)) {
        others.emplace_back(&key, "is not wanted");
      } else if (const std::string& name = stored_key(key); name != key) {
        others.emplace_back(&key, "is to be loaded from '" + name + "'");
      } else {
        is_needed = is_needed || !stored.contains(key);
      }
    }
    if (!is_needed) continue;
    if (others.empty()) objects.push_back(&object);
    if (options_.partial) continue;  // What is missing then stays as it is.
    for (const auto& [key, why] : others) {
      faults.add(ErrorKind::kKey, *key,
                 why + ", but the checkpoint has '" + old_key + "' as one object, of which other " +
                     "keys are wanted: it can be loaded as a whole only");
    }
  }
  faults.throw_if_any("the checkpoint does not fit the destination", DCP_WHERE);
  return objects;
}

/// Up to PyTorch 2.3 a mapping without tensors was one object. Where keys are missing, and flattening so
/// gives a key above them that is stored, that one is asked for in their place.
void DefaultLoadPlanner::take_old_keys() {
  const auto& stored = metadata_->state_dict_metadata;
  const bool has_all = std::all_of(leaves_.begin(), leaves_.end(), [&](const auto& leaf) {
    return !is_wanted(leaf.first) || stored.contains(stored_key(leaf.first));
  });
  if (has_all) return;
  const LeafPlaces old = find_leaves(*state_, FlattenRule::kUpTo2_3);
  const std::vector<const LeafPlace*> objects = find_old_objects(old);
  if (objects.empty()) return;
  LeafPlaces merged;
  for (auto& [key, leaf] : leaves_) {
    const auto above = std::find_if(objects.begin(), objects.end(), [&, &leaf = leaf](const LeafPlace* object) {
      return is_below(leaf.path, object->path);
    });
    if (above == objects.end()) {
      merged.insert(key, std::move(leaf));
    } else {
      const std::string old_key = flat_key((*above)->path);
      old_keys_.insert(old_key);
      merged.insert(old_key, **above);
    }
  }
  leaves_ = std::move(merged);
}

LoadPlan DefaultLoadPlanner::create_local_plan() {
  DCP_CHECK(metadata_ != nullptr, kState, "create_local_plan before set_up");
  report_ = {};
  views_ = {};
  tied_.clear();
  FaultList faults;
  LoadPlan plan;
  plan.items.reserve(leaves_.size());
  views_.reserve(leaves_.size());
  LeafLoader loader(options_, *metadata_, faults, report_, plan, views_, tied_);
  for (const auto& [key, leaf] : leaves_) {
    if (wants(key)) {
      loader.add(key, name_in_checkpoint(key), *leaf.value);
    } else {
      report_.skipped.push_back(key);
    }
  }
  report_unexpected();
  faults.throw_if_any("the checkpoint does not fit the destination", DCP_WHERE);
  return plan;
}

void DefaultLoadPlanner::report_unexpected() {
  // Only if keys are renamed or skipped, those asked for are others than those of the destinations.
  const bool is_plain =
      report_.skipped.empty() && std::all_of(leaves_.begin(), leaves_.end(), [this](const auto& leaf) {
        const std::string& stored = name_in_checkpoint(leaf.first);
        return &stored == &leaf.first || stored == leaf.first;
      });
  std::unordered_set<std::string_view> asked_for;
  for (const auto& leaf : leaves_) {
    if (!is_plain && wants(leaf.first)) asked_for.insert(name_in_checkpoint(leaf.first));
  }
  for (const auto& entry : metadata_->state_dict_metadata) {
    const bool is_expected = is_plain ? leaves_.contains(entry.first) : asked_for.contains(entry.first);
    if (!is_expected) report_.unexpected.push_back(entry.first);
  }
}

std::vector<LoadPlan> DefaultLoadPlanner::create_global_plan(std::vector<LoadPlan> all_plans) { return all_plans; }

LoadPlan DefaultLoadPlanner::finish_plan(LoadPlan plan) { return plan; }

at::Tensor DefaultLoadPlanner::resolve_tensor(const ReadItem& item) {
  const at::Tensor* view = views_.find(item.dest_index);
  DCP_CHECK(view != nullptr, kKey, "no destination '", to_string(item.dest_index), "' in the state dict");
  const auto ndim = static_cast<std::size_t>(view->dim());
  DCP_CHECK(item.dest_offsets.size() == ndim && item.lengths.size() == ndim, kInvalidArgument, "destination '",
            to_string(item.dest_index), "' has ", ndim, " dimensions, the item ", item.lengths.size());
  return narrow_to(*view, item.dest_offsets, item.lengths);
}

void DefaultLoadPlanner::commit_tensor(const ReadItem& item, const at::Tensor& tensor) {
  // The filled tensor is an alias of the destination already, but a quantizer belongs to one handle only.
  if (!tensor.is_quantized()) return;
  const LeafPlace* leaf = leaves_.find(item.dest_index.fqn);
  if (leaf == nullptr) return;
  const std::lock_guard lock(objects_mutex_);  // Tied tensors are one.
  if (const auto* plain = std::get_if<at::Tensor>(&leaf->value->storage())) {
    set_quantizer(*plain, quantizer_of(tensor));
  } else if (const auto* distributed = std::get_if<DTensor>(&leaf->value->storage())) {
    set_quantizer(distributed->local(), quantizer_of(tensor));
  }
}

void DefaultLoadPlanner::load_object(const ReadItem& item, Value value) {
  const std::string& key = item.dest_index.fqn;
  const LeafPlace* leaf = leaves_.find(key);
  DCP_CHECK(leaf != nullptr, kKey, "no destination '", key, "' in the state dict");
  const bool is_emptied = options_.flatten == FlattenRule::kCurrent && leaf->value->is_dict() &&
                          !leaf->value->as_dict().empty() && value.is_dict() && value.as_dict().empty();
  if (is_emptied) {
    refuse_emptied(key, leaf->value->as_dict());
    return;
  }
  Value accepted = accept_object(key, *leaf->value, std::move(value));
  const std::lock_guard lock(objects_mutex_);
  objects_.insert_or_assign(key, std::move(accepted));
}

/// A whole dict was asked for by its old key, and what is stored there is the `{}` of the present form: the
/// entries are missing.
void DefaultLoadPlanner::refuse_emptied(const std::string& key, const Dict& destination) {
  std::string missing;
  const std::lock_guard lock(objects_mutex_);
  for (const auto& entry : destination) {
    const std::string child = key + "." + to_string(entry.first);
    missing += (missing.empty() ? "'" : ", '") + child + "'";
    report_.missing.push_back(child);
  }
  DCP_CHECK(options_.partial, kKey, missing, ": missing in the checkpoint, where '", key, "' is an empty dict");
}

void DefaultLoadPlanner::check_tied() const {
  if (options_.partial) return;
  FaultList faults;
  for (const TiedView& tied : tied_) {
    if (bit_equal(tied.live, tied.other)) continue;
    faults.add(ErrorKind::kKey, tied.key,
               "is the same tensor as '" + tied.first_key + "' here, but the checkpoint has other values for it");
  }
  faults.throw_if_any("the checkpoint does not fit the destination", DCP_WHERE);
}

void DefaultLoadPlanner::commit_objects() {
  check_tied();
  const std::lock_guard lock(objects_mutex_);
  // All are found before the first is changed. (What stands inside another value that is changed was no leaf.)
  std::vector<Value*> destinations;
  for (auto& [key, value] : objects_) {
    const Path& path = leaves_.find(key)->path;
    destinations.push_back(get_element(*state_, path));
    DCP_CHECK(destinations.back() != nullptr, kState, "key '", key, "': ", describe(path),
              " has gone from the state dict during the load");
  }
  std::size_t number = 0;
  for (auto& [key, value] : objects_) *destinations[number++] = std::move(value);
  objects_ = {};
}

}  // namespace dcp

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <unordered_map>

#include "torch_dcp/base/checked_math.h"
#include "torch_dcp/base/fault_list.h"
#include "torch_dcp/base/limits.h"
#include "torch_dcp/plan/default_load_planner.h"
#include "torch_dcp/plan/key_pattern_internal.h"
#include "torch_dcp/plan/validate.h"
#include "torch_dcp/tensor/dtype.h"
#include "torch_dcp/tensor/quantized.h"

namespace dcp {
namespace {

/// What will stand in the rebuilt state dict.
struct Planned {
  Path path;
  const TensorStorageMetadata* tensor = nullptr;  ///< null for an object
};

using PlannedLeaves = OrderedMap<std::string, Planned>;

/// Which of the wanted names select a key, by itself or as a dotted prefix of it or of its path.
class Selection {
 public:
  explicit Selection(const std::set<std::string>& names) : names_(names) {
    for (const std::string& name : names) {
      longest_ = std::max(longest_, name.size());
      if (KeyPattern::is_pattern(name)) patterns_.emplace_back(name, KeyPattern(name));
    }
  }

  bool takes(const std::string& key, const Path& path) {
    if (names_.empty()) return true;
    bool is_taken = use(key);
    // Prefixes longer than any name are left out, since a key may be as long as a file says.
    for (std::size_t dot = key.find('.'); dot != std::string::npos && dot <= longest_; dot = key.find('.', dot + 1)) {
      is_taken |= use(key.substr(0, dot));
    }
    std::string prefix;
    for (const PathItem& item : path) {
      prefix += (&item == path.data() ? "" : ".") + to_string(item);
      if (prefix.size() > longest_ && patterns_.empty()) break;
      is_taken |= use(prefix);
    }
    for (const auto& [name, pattern] : patterns_) {
      if (!pattern.selects(key) && !pattern.selects(prefix)) continue;
      used_.insert(name);
      is_taken = true;
    }
    return is_taken;
  }

  void check_all_used() const {
    FaultList faults;
    for (const std::string& name : names_) {
      if (used_.contains(name)) continue;
      faults.add(ErrorKind::kKey, name,
                 KeyPattern::is_pattern(name) ? "no key in the checkpoint, nor a prefix of one, is like it"
                                              : "neither a key nor a prefix of one in the checkpoint");
    }
    faults.throw_if_any("cannot rebuild what was asked for", DCP_WHERE);
  }

 private:
  bool use(const std::string& name) {
    if (!names_.contains(name)) return false;
    used_.insert(name);
    return true;
  }

  const std::set<std::string>& names_;
  std::vector<std::pair<std::string, KeyPattern>> patterns_;
  std::size_t longest_ = 0;
  std::set<std::string> used_;
};

PlannedLeaves select_leaves(const Metadata& metadata, const std::set<std::string>& names) {
  Selection selection(names);
  PlannedLeaves leaves;
  const auto add = [&](const std::string& key, const StorageMetadata& entry, const Path& path) {
    if (selection.takes(key, path)) leaves.insert(key, {path, std::get_if<TensorStorageMetadata>(&entry)});
  };
  // The paths are in the order of the state dict that was saved; the entries' depends on who wrote what.
  if (metadata.planner_data) {
    for (const auto& [key, path] : *metadata.planner_data) {
      if (const StorageMetadata* entry = metadata.state_dict_metadata.find(key)) add(key, *entry, path);
    }
  }
  for (const auto& [key, entry] : metadata.state_dict_metadata) {
    if (!metadata.planner_data || !metadata.planner_data->contains(key)) add(key, entry, {PathItem::dict_key(key)});
  }
  selection.check_all_used();
  return leaves;
}

/// Why a tensor cannot be rebuilt for its dtype; nothing if it can.
std::optional<std::string> find_dtype_fault(const TensorProperties& properties) {
  const ScalarType dtype = properties.dtype;
  if (properties.newer_dtype != NewerDtype::kNone) {
    return "this LibTorch has no dtype " + dtype_name(properties) + " (a load into a tensor of " + dtype_name(dtype) +
           " with `missing_dtypes_as_bits` gives its bits)";
  }
  const bool is_packed = c10::isQIntType(dtype) && !is_quantized_dtype(dtype);
  if (dtype == ScalarType::Undefined || c10::isBitsType(dtype) || is_packed) {
    return std::string("a tensor of dtype ") + c10::toString(dtype) + " cannot be rebuilt";
  }
  return std::nullopt;
}

/// A quantized tensor gets the quantizer of the file when it is read.
at::Tensor empty_tensor(const Sizes& size, ScalarType dtype) {
  at::Tensor tensor = at::empty(size, at::TensorOptions(dtype));
  if (is_quantized_dtype(dtype)) set_quantizer(tensor, {});
  return tensor;
}

/// Checks all tensors before anything is allocated, for a file may state any size.
void check_tensors(const PlannedLeaves& leaves) {
  FaultList faults;
  std::optional<std::int64_t> total_bytes = 0;
  for (const auto& [key, leaf] : leaves) {
    if (leaf.tensor == nullptr) continue;
    if (const auto fault = find_dtype_fault(leaf.tensor->properties)) {
      faults.add(ErrorKind::kUnsupported, key, *fault);
    } else if (const auto chunk_fault = find_chunk_fault(*leaf.tensor, /*must_cover=*/true)) {
      faults.add(ErrorKind::kCorruptData, key, *chunk_fault);
    } else if (total_bytes) {
      const auto bytes = checked_mul(*checked_numel(leaf.tensor->size), element_bytes(leaf.tensor->properties.dtype));
      total_bytes = bytes ? checked_add(*total_bytes, *bytes) : std::nullopt;
      if (!total_bytes) faults.add(ErrorKind::kCorruptData, key, "bytes of all tensors do not fit 64 bits");
    }
  }
  faults.throw_if_any("cannot rebuild the state dict", DCP_WHERE);
}

/// Names a path or a beginning of one. (Its spelling for people may be that of another, too.)
std::string identity(const Path& path) {
  std::string result;
  for (const PathItem& item : path) {
    const std::string text = to_string(item);
    result += std::to_string(static_cast<int>(item.step)) + ":" + std::to_string(text.size()) + ":" + text;
  }
  return result;
}

/// Finds paths that contradict each other, and bounds the lists that they make.
class PathCheck {
 public:
  PathCheck(const PlannedLeaves& leaves, std::map<std::string, std::string>& opened)
      : leaves_(leaves), opened_(opened), slots_left_(kFreeSlots + kSlotsPerKey * leaves.size()) {}

  void run() {
    for (const auto& [key, leaf] : leaves_) add_leaf(key, leaf.path);
    for (const auto& [key, leaf] : leaves_) add_containers(key, leaf.path);
    faults_.throw_if_any("the paths of the checkpoint make no state dict", DCP_WHERE);
  }

 private:
  // Python drops empty dicts, so that lists may have gaps; but a path costs a file a few bytes, a
  // list as long as the path says gigabytes.
  static constexpr std::size_t kFreeSlots = 1'000'000;
  static constexpr std::size_t kSlotsPerKey = 64;
  static constexpr std::size_t kMaxDepth = ParseLimits().max_depth;

  struct Container {
    bool is_list = false;
    std::string key;  ///< the first that makes it
    std::size_t length = 0;
  };

  void add_leaf(const std::string& key, const Path& path) {
    if (path.empty() || path.size() > kMaxDepth) {
      faults_.add(ErrorKind::kCorruptData, key, "has a path of " + std::to_string(path.size()) + " steps");
      return;
    }
    const auto [it, is_new] = keys_by_path_.try_emplace(identity(path), key);
    if (!is_new) faults_.add(ErrorKind::kKey, key, "has the path of key '" + it->second + "', " + describe(path));
  }

  void add_containers(const std::string& key, const Path& path) {
    if (path.size() > kMaxDepth) return;  // Named by add_leaf.
    Path prefix;
    for (const PathItem& item : path) {
      if (!add_step(key, prefix, item)) return;
      prefix.push_back(item);
    }
  }

  bool add_step(const std::string& key, const Path& prefix, const PathItem& item) {
    const std::string place = identity(prefix);
    const bool is_list = item.step == PathStep::kListIndex;
    if (prefix.empty() && is_list) {
      faults_.add(ErrorKind::kCorruptData, key, "its path " + describe(Path{item}) + " begins with a list position");
      return false;
    }
    if (!prefix.empty() && !check_leaf_above(key, prefix, place)) return false;
    const auto [it, is_new] = containers_.try_emplace(place, Container{is_list, key, 0});
    if (it->second.is_list != is_list) {
      faults_.add(ErrorKind::kKey, key,
                  "takes " + spell(prefix) + " for a " + (is_list ? "list" : "dict") + ", key '" + it->second.key +
                      "' for a " + (is_list ? "dict" : "list"));
      return false;
    }
    return !is_list || check_position(key, prefix, item.index, it->second);
  }

  /// A value cannot also be a container, unless it may prove to be an empty dict.
  bool check_leaf_above(const std::string& key, const Path& prefix, const std::string& place) {
    const auto above = keys_by_path_.find(place);
    if (above == keys_by_path_.end()) return true;
    if (leaves_.find(above->second)->tensor == nullptr) {
      opened_.try_emplace(above->second, key);
      return true;
    }
    faults_.add(ErrorKind::kKey, key,
                "lies within " + describe(prefix) + ", where key '" + above->second + "' is a tensor");
    return false;
  }

  bool check_position(const std::string& key, const Path& prefix, std::int64_t index, Container& list) {
    const std::size_t length = index < 0 ? 0 : static_cast<std::size_t>(index) + 1;
    if (index >= 0 && length <= list.length) return true;
    if (index < 0 || length - list.length > slots_left_) {
      faults_.add(ErrorKind::kCorruptData, key,
                  "position " + std::to_string(index) + " of the list " + spell(prefix) + " is out of reason");
      return false;
    }
    slots_left_ -= length - list.length;
    list.length = length;
    return true;
  }

  static std::string spell(const Path& prefix) { return prefix.empty() ? "the state dict" : describe(prefix); }

  const PlannedLeaves& leaves_;
  std::map<std::string, std::string>& opened_;
  std::size_t slots_left_;
  std::unordered_map<std::string, std::string> keys_by_path_;
  std::unordered_map<std::string, Container> containers_;
  FaultList faults_;
};

Value make_whole_tensor(const std::string&, const TensorStorageMetadata& tensor) {
  return empty_tensor(tensor.size, tensor.properties.dtype);
}

}  // namespace

RebuildLoadPlanner::RebuildLoadPlanner(std::set<std::string> keys, MakeDestination make_destination)
    : keys_(std::move(keys)), make_destination_(std::move(make_destination)) {
  if (!make_destination_) make_destination_ = make_whole_tensor;
}
RebuildLoadPlanner::~RebuildLoadPlanner() = default;

void RebuildLoadPlanner::set_up(StateDict& state, const Metadata& metadata, const LoadPlannerContext& context) {
  DCP_CHECK(state.empty(), kInvalidArgument, "a state dict to rebuild into must be empty, it has ", state.size(),
            " entries");
  opened_.clear();
  const PlannedLeaves leaves = select_leaves(metadata, keys_);
  check_tensors(leaves);
  PathCheck(leaves, opened_).run();
  Dict rebuilt;
  for (const auto& [key, leaf] : leaves) {
    if (opened_.contains(key)) continue;
    Value destination;
    if (leaf.tensor != nullptr) destination = make_destination_(key, *leaf.tensor);
    set_element(rebuilt, leaf.path, std::move(destination));
  }
  state = std::move(rebuilt);
  LeafPlaces places;
  places.reserve(leaves.size());
  for (const auto& [key, leaf] : leaves) {
    places.insert(key, {leaf.path, opened_.contains(key) ? &nothing_ : get_element(std::as_const(state), leaf.path)});
  }
  set_up_leaves(state, std::move(places), metadata, context);
}

void RebuildLoadPlanner::load_object(const ReadItem& item, Value value) {
  const auto opened = opened_.find(item.dest_index.fqn);
  if (opened == opened_.end()) {
    DefaultLoadPlanner::load_object(item, std::move(value));
    return;
  }
  DCP_CHECK(value.is_dict() && value.as_dict().empty(), kKey, "key '", opened->first, "' is a ",
            value_kind_name(value.kind()), ", and key '", opened->second, "' lies within it");
}

}  // namespace dcp

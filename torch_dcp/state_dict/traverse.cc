#include "torch_dcp/state_dict/traverse.h"

#include <algorithm>

#include "torch_dcp/base/error.h"
#include "torch_dcp/base/limits.h"

namespace dcp {
namespace {

class Traversal {
 public:
  Traversal(const std::function<void(const Path&, const Value&)>& visit, FlattenRule rule)
      : visit_(visit), rule_(rule) {}

  void enter(const Dict& dict) {
    for (const auto& [key, value] : dict) {
      path_.push_back(PathItem::dict_key(key));
      take(value);
      path_.pop_back();
    }
  }

 private:
  void take(const Value& value) {
    check_depth(path_.size());
    if (!is_opened(value, path_.size())) {
      visit_(path_, value);
    } else if (value.is_dict()) {
      enter(value.as_dict());
    } else {
      enter(value.as_list());
    }
  }

  void enter(const List& list) {
    for (std::size_t i = 0; i < list.size(); ++i) {
      path_.push_back(PathItem::list_index(static_cast<std::int64_t>(i)));
      take(list[i]);
      path_.pop_back();
    }
  }

  /// An empty container has nothing to open, and is kept as a leaf.
  bool is_opened(const Value& value, std::size_t depth) const {
    if (rule_ == FlattenRule::kTopLevel) return false;
    if (value.is_dict()) {
      if (value.as_dict().empty()) return false;
      return rule_ == FlattenRule::kCurrent ||
             std::any_of(value.as_dict().begin(), value.as_dict().end(),
                         [&](const auto& entry) { return opens_its_container(entry.second, depth + 1); });
    }
    return value.is_list() && std::any_of(value.as_list().begin(), value.as_list().end(), [&](const Value& element) {
             return opens_its_container(element, depth + 1);
           });
  }

  bool opens_its_container(const Value& value, std::size_t depth) const {
    check_depth(depth);
    if (value.is_tensor_like()) return true;
    // Even an empty mapping opens the list around it, though it is no container with leaves itself.
    if (rule_ == FlattenRule::kCurrent && value.is_dict()) return true;
    return is_opened(value, depth);
  }

  void check_depth(std::size_t depth) const {
    if (depth <= ParseLimits().max_depth) return;
    const Path start(path_.begin(),
                     path_.begin() + static_cast<std::ptrdiff_t>(std::min<std::size_t>(path_.size(), 3)));
    DCP_THROW(kInvalidArgument, "the state dict is nested more than ", ParseLimits().max_depth, " deep below ",
              describe(start));
  }

  const std::function<void(const Path&, const Value&)>& visit_;
  FlattenRule rule_;
  Path path_;
};

}  // namespace

void visit_leaves(const Dict& state, const std::function<void(const Path&, const Value&)>& visit, FlattenRule rule) {
  Traversal(visit, rule).enter(state);
}

}  // namespace dcp

#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "torch_dcp/base/ordered_map.h"
#include "torch_dcp/state_dict/path.h"

namespace dcp {

/// The paths of a plan's leaves by their flat keys, or nothing.
///
/// A value whose copies share one map until one of them is edited: the ranks of a job mostly have the same paths, and
/// their coordinator the plans of all.
///
/// Thread safety: as a container, copies that share a map counted as one for `edit`.
class PlannerPaths {
 public:
  using Map = OrderedMap<std::string, Path>;

  PlannerPaths() = default;  ///< nothing
  explicit PlannerPaths(Map paths) : map_(std::make_shared<Map>(std::move(paths))) {}

  explicit operator bool() const { return has_value(); }
  bool has_value() const { return map_ != nullptr; }
  /// \pre has_value()
  const Map& operator*() const { return *map_; }
  const Map* operator->() const { return map_.get(); }

  /// The map, to be changed: an empty one if there is none, a copy if it is shared.
  Map& edit() {
    if (!map_) {
      map_ = std::make_shared<Map>();
    } else if (map_.use_count() > 1) {
      map_ = std::make_shared<Map>(*map_);
    }
    return *map_;
  }

  void reset() { map_.reset(); }

  /// Whether both are the same object in memory, so that there is nothing to compare; also if both are nothing.
  bool is_shared_with(const PlannerPaths& other) const { return map_ == other.map_; }

  /// Alike in order too.
  friend bool operator==(const PlannerPaths& a, const PlannerPaths& b) {
    if (a.map_ == b.map_) return true;
    return a.map_ && b.map_ && std::equal(a->begin(), a->end(), b->begin(), b->end());
  }

 private:
  std::shared_ptr<Map> map_;
};

}  // namespace dcp

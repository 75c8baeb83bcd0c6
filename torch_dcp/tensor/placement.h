#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "torch_dcp/base/export.h"

namespace dcp {

enum class PlacementKind : std::uint8_t { kReplicate, kShard, kStridedShard, kPartial };

/// How one mesh dimension relates to a tensor, with the meaning of PyTorch's placements.
///
/// `shard(d)` cuts tensor dimension d into chunks of ceil(size / ranks), the last ones
/// short or empty. `strided_shard(d, split_factor)` is Shard applied as if the dimension
/// had first been cut into `split_factor` parts by a mesh dimension to the right.
struct DCP_API Placement {
  PlacementKind kind = PlacementKind::kReplicate;
  std::int64_t dim = 0;           ///< kShard, kStridedShard: the tensor dimension
  std::int64_t split_factor = 1;  ///< kStridedShard
  std::string reduce_op;          ///< kPartial: "sum", "avg", ...

  static Placement replicate() { return {}; }
  static Placement shard(std::int64_t dim) { return {PlacementKind::kShard, dim, 1, {}}; }
  static Placement strided_shard(std::int64_t dim, std::int64_t split_factor) {
    return {PlacementKind::kStridedShard, dim, split_factor, {}};
  }
  static Placement partial(std::string reduce_op = "sum") {
    return {PlacementKind::kPartial, 0, 1, std::move(reduce_op)};
  }

  bool is_shard() const { return kind == PlacementKind::kShard || kind == PlacementKind::kStridedShard; }
  friend bool operator==(const Placement&, const Placement&) = default;
};

using Placements = std::vector<Placement>;

/// Spells `Shard(0)`, `Replicate()`, `_StridedShard(0, split_factor=2)`, `Partial(sum)`: the names are Python's.
DCP_API std::string to_string(const Placement& placement);

}  // namespace dcp

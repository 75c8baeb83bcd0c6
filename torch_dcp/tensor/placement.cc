#include "torch_dcp/tensor/placement.h"

namespace dcp {

std::string to_string(const Placement& placement) {
  switch (placement.kind) {
    case PlacementKind::kReplicate:
      return "Replicate()";
    case PlacementKind::kShard:
      return "Shard(" + std::to_string(placement.dim) + ")";
    case PlacementKind::kStridedShard:
      return "_StridedShard(" + std::to_string(placement.dim) +
             ", split_factor=" + std::to_string(placement.split_factor) + ")";
    case PlacementKind::kPartial:
      return "Partial(" + placement.reduce_op + ")";
  }
  return "unknown placement";
}

}  // namespace dcp

#include "torch_dcp/tensor/c10d_placement.h"

#if DCP_HAS_C10D_PLACEMENT

#include <torch/csrc/distributed/Placement.h>

#include <typeinfo>

#include "torch_dcp/base/error.h"

namespace dcp {

namespace c10d_placements = torch::distributed;

std::shared_ptr<const c10d_placements::Placement> to_c10d_placement(const Placement& placement) {
  switch (placement.kind) {
    case PlacementKind::kReplicate:
      return std::make_shared<c10d_placements::Replicate>();
    case PlacementKind::kShard:
      return std::make_shared<c10d_placements::Shard>(placement.dim);
    case PlacementKind::kStridedShard:
      return std::make_shared<c10d_placements::StridedShard>(placement.dim, placement.split_factor);
    case PlacementKind::kPartial:
      return std::make_shared<c10d_placements::Partial>(placement.reduce_op);
  }
  DCP_THROW(kInternal, "placement of unknown kind ", static_cast<int>(placement.kind));
}

Placement from_c10d_placement(const c10d_placements::Placement& placement) {
  if (dynamic_cast<const c10d_placements::Replicate*>(&placement)) return Placement::replicate();
  if (const auto* shard = dynamic_cast<const c10d_placements::Shard*>(&placement)) return Placement::shard(shard->dim);
  if (const auto* strided = dynamic_cast<const c10d_placements::StridedShard*>(&placement)) {
    return Placement::strided_shard(strided->dim, strided->split_factor);
  }
  if (const auto* partial = dynamic_cast<const c10d_placements::Partial*>(&placement)) {
    return Placement::partial(partial->reduce_op);
  }
  DCP_THROW(kUnsupported, "a placement of type ", typeid(placement).name(), " has no equal here");
}

}  // namespace dcp

#endif

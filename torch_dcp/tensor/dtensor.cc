#include "torch_dcp/tensor/dtensor.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "torch_dcp/base/error.h"

namespace dcp {
namespace {

bool is_partial_placement(const Placement& placement) { return placement.kind == PlacementKind::kPartial; }

/// A Partial leaves the shape as it is; so does Replicate.
Placements without_partial(Placements placements) {
  std::replace_if(placements.begin(), placements.end(), is_partial_placement, Placement::replicate());
  return placements;
}

at::Tensor narrowed(at::Tensor tensor, const Sizes& offsets, const Sizes& sizes) {
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    tensor = tensor.narrow(static_cast<std::int64_t>(d), offsets[d], sizes[d]);
  }
  return tensor;
}

at::Tensor copy_part(const at::Tensor& whole, const LocalLayout& layout) {
  const std::vector<LayoutPiece> pieces = pieces_of(layout);
  if (pieces.size() == 1) {
    return narrowed(whole, pieces[0].box.offsets, pieces[0].box.sizes).clone(at::MemoryFormat::Contiguous);
  }
  const at::Tensor local = at::empty(layout.local_sizes, whole.options());
  for (const LayoutPiece& piece : pieces) {
    narrowed(local, piece.local_offsets, piece.box.sizes).copy_(narrowed(whole, piece.box.offsets, piece.box.sizes));
  }
  return local;
}

}  // namespace

std::shared_ptr<const DTensor::Spread> DTensor::make_spread(std::shared_ptr<const DeviceMesh> mesh,
                                                            Placements placements, Sizes global_sizes) {
  DCP_CHECK(mesh, kInvalidArgument, "a DTensor needs a mesh");
  // A rank outside of the mesh checks the arguments too, with the first rank's place.
  const Sizes coordinate = mesh->my_coordinate().value_or(Sizes(mesh->ndim(), 0));
  LocalLayout layout = compute_local_layout(global_sizes, *mesh, without_partial(placements), coordinate);
  if (!mesh->my_coordinate()) layout = {};
  return std::make_shared<const Spread>(
      Spread{std::move(mesh), std::move(placements), std::move(global_sizes), std::move(layout)});
}

DTensor::DTensor(at::Tensor local, std::shared_ptr<const Spread> spread)
    : local_(std::move(local)), spread_(std::move(spread)) {
  if (!is_in_mesh()) {
    DCP_CHECK(!local_.defined() || local_.numel() == 0, kShape, "rank ", mesh().my_rank(),
              " is not in the mesh, but its part of the DTensor has sizes ", to_string(local_.sizes()));
    return;
  }
  DCP_CHECK(local_.defined(), kInvalidArgument, "the local tensor of a DTensor is undefined on rank ",
            mesh().my_rank());
  const Sizes& wanted = spread_->layout.local_sizes;
  DCP_CHECK(local_.sizes() == c10::IntArrayRef(wanted), kShape, "the local tensor of a DTensor of sizes ",
            to_string(global_sizes()), " has sizes ", to_string(local_.sizes()), " on rank ", mesh().my_rank(),
            ", but mesh and placements give it ", to_string(wanted));
}

DTensor::DTensor(at::Tensor local, std::shared_ptr<const DeviceMesh> mesh, Placements placements, Sizes global_sizes)
    : DTensor(std::move(local), make_spread(std::move(mesh), std::move(placements), std::move(global_sizes))) {}

DTensor DTensor::distribute(const at::Tensor& whole, std::shared_ptr<const DeviceMesh> mesh, Placements placements) {
  DCP_CHECK(whole.defined(), kInvalidArgument, "an undefined tensor cannot be distributed");
  const auto spread = make_spread(std::move(mesh), std::move(placements), Sizes(whole.sizes()));
  const auto partial = std::find_if(spread->placements.begin(), spread->placements.end(), is_partial_placement);
  DCP_CHECK(partial == spread->placements.end(), kUnsupported, "a tensor cannot be distributed to ",
            to_string(*partial));
  const at::Tensor detached = whole.detach();
  const bool is_in_mesh = spread->mesh->my_coordinate().has_value();
  at::Tensor local = is_in_mesh ? copy_part(detached, spread->layout) : at::empty({0}, detached.options());
  if (whole.requires_grad()) local.set_requires_grad(true);
  return DTensor(std::move(local), spread);
}

DTensor DTensor::empty(Sizes global_sizes, at::ScalarType dtype, std::shared_ptr<const DeviceMesh> mesh,
                       Placements placements) {
  const auto spread = make_spread(std::move(mesh), std::move(placements), std::move(global_sizes));
  const Sizes local_sizes = spread->mesh->my_coordinate() ? spread->layout.local_sizes : Sizes{0};
  return DTensor(at::empty(local_sizes, at::TensorOptions(dtype)), spread);
}

bool DTensor::is_partial() const { return std::any_of(placements().begin(), placements().end(), is_partial_placement); }

const LocalLayout& DTensor::layout() const {
  DCP_CHECK(is_in_mesh(), kState, "rank ", mesh().my_rank(), " is not in the mesh and holds no part of the DTensor");
  return spread_->layout;
}

}  // namespace dcp

#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "torch_dcp/tensor/layout.h"

namespace dcp {

/// A tensor spread over a mesh: this rank's part, and how all parts make the whole.
///
/// A handle: copies share the local tensor's memory.
class DCP_API DTensor {
 public:
  /// \param local         This rank's part; its shape must be that of `layout()`. A rank
  ///                      outside of the mesh gives an undefined or 0-element tensor.
  /// \param global_sizes  Shape of the whole.
  /// \throws dcp::Error kShape if the local shape is not what mesh and placements give this rank;
  ///         kInvalidArgument for no mesh, an undefined local tensor on a rank of the mesh, or
  ///         placements that do not fit.
  ///
  /// Partial placements are allowed here (the local shape is as for Replicate); they can
  /// neither be saved nor loaded.
  DTensor(at::Tensor local, std::shared_ptr<const DeviceMesh> mesh, Placements placements, Sizes global_sizes);

  /// Cuts this rank's part out of a whole tensor that every rank has; copies it, so that the
  /// whole may be freed. Contiguous, and requires a gradient if the whole does. Talks to nobody.
  /// \throws dcp::Error kUnsupported for Partial, kInvalidArgument as the constructor.
  static DTensor distribute(const at::Tensor& whole, std::shared_ptr<const DeviceMesh> mesh, Placements placements);

  /// An uninitialised part of a tensor of `global_sizes`.
  static DTensor empty(Sizes global_sizes, at::ScalarType dtype, std::shared_ptr<const DeviceMesh> mesh,
                       Placements placements);

  const at::Tensor& local() const { return local_; }
  const DeviceMesh& mesh() const { return *spread_->mesh; }
  const std::shared_ptr<const DeviceMesh>& mesh_ptr() const { return spread_->mesh; }
  const Placements& placements() const { return spread_->placements; }
  const Sizes& global_sizes() const { return spread_->global_sizes; }
  at::ScalarType dtype() const { return local_.scalar_type(); }
  bool is_in_mesh() const { return mesh().my_coordinate().has_value(); }

  /// Whether a placement is Partial: the elements are then no parts of the whole, but summands.
  bool is_partial() const;

  /// What this rank holds.
  /// \throws dcp::Error kState on a rank outside of the mesh.
  const LocalLayout& layout() const;

 private:
  /// Shared by copies, which makes them cheap.
  struct Spread {
    std::shared_ptr<const DeviceMesh> mesh;
    Placements placements;
    Sizes global_sizes;
    LocalLayout layout;  ///< empty on a rank outside of the mesh
  };

  static std::shared_ptr<const Spread> make_spread(std::shared_ptr<const DeviceMesh> mesh, Placements placements,
                                                   Sizes global_sizes);
  DTensor(at::Tensor local, std::shared_ptr<const Spread> spread);

  at::Tensor local_;
  std::shared_ptr<const Spread> spread_;
};

}  // namespace dcp

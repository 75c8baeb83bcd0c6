#pragma once

#include <vector>

#include "torch_dcp/tensor/box.h"
#include "torch_dcp/tensor/device_mesh.h"
#include "torch_dcp/tensor/placement.h"

namespace dcp {

/// A run of consecutive global indices in one dimension.
struct IndexRun {
  std::int64_t offset = 0;
  std::int64_t length = 0;
  friend bool operator==(const IndexRun&, const IndexRun&) = default;
};

/// What one rank holds of a tensor: per dimension, runs of global indices in the
/// order in which its local tensor has them. Plain shards have exactly one run per
/// dimension, of length 0 where the rank has nothing (its offset is then the size of
/// the dimension, where PyTorch puts it); runs ascend and do not touch each other.
struct LocalLayout {
  Sizes local_sizes;                        ///< [ndim], shape of the local tensor
  Sizes offsets;                            ///< [ndim], PyTorch's global offset of the local tensor
  std::vector<std::vector<IndexRun>> runs;  ///< per dimension
};

/// Computes which part of a tensor the rank at `coordinate` of the mesh holds.
///
/// \param global_sizes  [d0, ..., dn-1].
/// \param placements    One per mesh dimension, applied from the first to the last.
/// \throws dcp::Error kInvalidArgument if counts or dimensions do not fit, kUnsupported for Partial.
///
/// Collective: no. Thread safety: pure.
/// Source: torch/distributed/tensor/_utils.py, compute_local_shape_and_global_offset (2.14.1).
DCP_API LocalLayout compute_local_layout(c10::IntArrayRef global_sizes, const DeviceMesh& mesh,
                                         const Placements& placements, const Sizes& coordinate);

/// A box of a local tensor that is also a box of the whole.
struct LayoutPiece {
  Box box;              ///< in global coordinates
  Sizes local_offsets;  ///< [ndim], where it lies in the local tensor
};

/// Cuts what a rank holds into boxes: the product of its runs, in order of their offsets.
/// At least one; exactly one, which may be empty, for plain shards.
DCP_API std::vector<LayoutPiece> pieces_of(const LocalLayout& layout);

/// The part of chunk `index` when `size` indices are cut into `parts` by torch.chunk's rule:
/// chunks of ceil(size / parts), the last ones short or empty. An empty one lies at the end.
///
/// \pre size >= 0, parts >= 1, index >= 0.
DCP_API IndexRun chunk_of(std::int64_t size, std::int64_t parts, std::int64_t index);

}  // namespace dcp

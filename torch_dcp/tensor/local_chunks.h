#pragma once

#include <ATen/core/Tensor.h>

#include <variant>
#include <vector>

#include "torch_dcp/tensor/box.h"
#include "torch_dcp/tensor/dtensor.h"
#include "torch_dcp/tensor/sharded_tensor.h"

namespace dcp {

/// Every kind of tensor this library saves and loads. This file is the one seam over
/// the kinds: what is above asks only for global sizes, dtype and local chunks.
using TensorLike = std::variant<at::Tensor, DTensor, ShardedTensor>;

/// A part of a tensor on this rank: where it lies in the whole, and its elements.
struct LocalChunk {
  Box box;          ///< in global coordinates
  at::Tensor view;  ///< shape `box.sizes`, aliases the live tensor, requires no gradient; may have any strides
};

/// Shape of the whole tensor, in elements.
DCP_API Sizes global_sizes(const TensorLike& tensor);

DCP_API at::ScalarType dtype_of(const TensorLike& tensor);

/// Whether `requires_grad` is set on (the local part of) the tensor.
DCP_API bool requires_grad(const TensorLike& tensor);

/// True for kinds whose parts lie on several ranks (a DTensor, also a replicated one; a ShardedTensor).
DCP_API bool is_distributed(const TensorLike& tensor);

/// The parts this rank holds, in order of their offsets; a part may be empty (a DTensor
/// rank without rows has one chunk of size 0, as in Python); none for a rank outside of the mesh.
///
/// \throws dcp::Error kUnsupported for sparse, nested or meta tensors and Partial placements,
///         kInvalidArgument for an undefined tensor.
/// Collective: no.
DCP_API std::vector<LocalChunk> local_chunks(const TensorLike& tensor);

}  // namespace dcp

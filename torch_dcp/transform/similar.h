#pragma once

#include <c10/core/ScalarType.h>

#include "torch_dcp/state_dict/value.h"

namespace dcp {

/// Size and dtype of a tensor of any kind: of the whole, not of this rank's part.
struct DCP_API TensorInfo {
  Sizes sizes;  ///< [ndim]
  at::ScalarType dtype = at::kFloat;

  friend bool operator==(const TensorInfo& a, const TensorInfo& b) { return a.sizes == b.sizes && a.dtype == b.dtype; }
};

/// \throws dcp::Error kInvalidArgument for an undefined tensor, kUnsupported for a nested one.
DCP_API TensorInfo tensor_info(const TensorLike& tensor);

/// Whether one state dict could be copied into the other without a conversion, which is what a buffer that is used
/// again has to be.
///
/// Dicts have the same keys, in any order, and sequences the same length; a list is as good as a tuple. Tensors are of
/// the same kind, sizes and dtype; DTensors have the same mesh, placements and local sizes, ShardedTensors the same
/// shards on this rank. Values that are no tensors may differ, also in kind; elements are not looked at.
///
/// \throws dcp::Error kInvalidArgument for nesting beyond 500. Collective: no. Thread safety: pure.
DCP_API bool similar(const Dict& a, const Dict& b);

}  // namespace dcp

#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>

#include "torch_dcp/base/limits.h"
#include "torch_dcp/pickle/value.h"
#include "torch_dcp/pickle/writer.h"
#include "torch_dcp/tensor/box.h"

namespace dcp {

/// What a pickled `_rebuild_tensor_v2` or `_v3` call (or `_rebuild_parameter` around one) says, checked:
/// sizes and strides of one ndim, non-negative, and all elements inside the storage. Strides of 0 may make more
/// elements than the storage has; their bytes fit 64 bits.
struct PickledTensor {
  std::string storage_key;         ///< digits: the member "data/KEY"
  std::int64_t storage_numel = 0;  ///< in elements of `dtype`
  std::int64_t storage_bytes = 0;
  c10::ScalarType dtype = c10::ScalarType::Float;
  Sizes sizes;
  Sizes strides;
  std::int64_t storage_offset = 0;  ///< in elements; 0 without elements
  bool is_conj = false;
  bool is_neg = false;
};

/// Whether the node is a call that makes a tensor (of any kind, also one that is refused below).
bool is_tensor_call(pickle::Ref node);

/// \throws dcp::Error kCorruptData, kUnsupported (quantized, an unknown storage or dtype).
PickledTensor parse_tensor_call(pickle::Ref node, const ParseLimits& limits);

/// Writes the call that makes a contiguous tensor on the storage `storage_key`, with Python's memo places,
/// leaving it on the pickle's stack.
void write_tensor_call(pickle::Writer& writer, const std::string& storage_key, c10::ScalarType dtype,
                       c10::IntArrayRef sizes);

}  // namespace dcp

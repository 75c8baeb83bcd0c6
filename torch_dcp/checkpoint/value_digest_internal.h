#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "torch_dcp/state_dict/value.h"

namespace dcp {

/// 64 bits that stand for a tensor's dtype, sizes, elements (their bits, row-major) and quantizer. Tensors that differ
/// in one element of at most 8 bytes always have other ones; others have the same with a chance of 2^-64. Not made to
/// withstand anybody who looks for such tensors.
///
/// A tensor that is not contiguous on the CPU passes through a buffer of at most 16 MiB, or of one element.
std::uint64_t digest_of(const at::Tensor& tensor);

/// The same for any value: kinds, keys, order and contents.
///
/// \throws dcp::Error kUnsupported for what cannot be saved as an object.
std::uint64_t digest_of(const Value& value);

}  // namespace dcp

#pragma once

#include <string>

#include "torch_dcp/state_dict/value.h"

namespace dcp {

/// Whether two values are the same to the last bit.
///
/// Kinds, structure and order are equal; tensors have the same dtype, sizes and bits (NaNs are
/// compared by their bits; strides, device and requires_grad do not count; quantized ones have the
/// same quantizer); doubles have the same bits; DTensors and ShardedTensors have the same layout
/// and local bits; stateful objects are the same object.
///
/// \throws dcp::Error kUnsupported for sparse, nested and meta tensors.
/// Collective: no.
DCP_API bool bit_equal(const Value& a, const Value& b);

/// The path of the first difference by the rule of `bit_equal`, and what differs there, such as
/// `['a'][2]: sizes [2] and [3]`; empty if there is none.
///
/// \throws dcp::Error as `bit_equal` does.
DCP_API std::string first_difference(const Value& a, const Value& b);

}  // namespace dcp

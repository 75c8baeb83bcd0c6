#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>

#include "torch_dcp/base/export.h"

namespace dcp {

/// What a load may do when a stored dtype is not the destination's.
enum class DtypePolicy : std::uint8_t {
  kExact,     ///< refuse
  kLossless,  ///< convert if every stored value has an equal in the destination's dtype
  kAny,       ///< convert as `Tensor::to` does
};

/// Whether the policy converts tensors of `from` into another dtype `to`.
/// \throws dcp::Error kInvalidArgument for a number that is no policy.
DCP_API bool may_convert(c10::ScalarType from, c10::ScalarType to, DtypePolicy policy);

}  // namespace dcp

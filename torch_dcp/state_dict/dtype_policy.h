#pragma once

#include <cstdint>

namespace dcp {

/// What a load may do when a stored dtype is not the destination's.
enum class DtypePolicy : std::uint8_t {
  kExact,     ///< refuse
  kLossless,  ///< convert if every stored value has an equal in the destination's dtype
  kAny,       ///< convert as `Tensor::to` does
};

}  // namespace dcp

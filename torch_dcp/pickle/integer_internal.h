#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "torch_dcp/base/bytes.h"

namespace dcp::pickle {

/// Reads a little-endian two's complement number of any length, nothing if it does not fit 64 bits.
std::optional<std::int64_t> integer_from_bytes(ByteSpan bytes);

/// Returns the decimal digits of such a number, with a minus sign if it is negative.
/// The time grows with the square of the length, which the caller bounds.
std::string decimal_from_bytes(ByteSpan bytes);

/// Returns the shortest such bytes of `value`; none for 0.
Bytes bytes_from_integer(std::int64_t value);

}  // namespace dcp::pickle

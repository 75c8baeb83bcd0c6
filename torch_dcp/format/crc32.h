#pragma once

#include <cstdint>

#include "torch_dcp/base/bytes.h"
#include "torch_dcp/base/export.h"

namespace dcp {

/// Zip's CRC-32 of `bytes`, continued from `seed` (0 to start).
DCP_API std::uint32_t crc32_of(ByteSpan bytes, std::uint32_t seed = 0);

/// The CRC-32 of two byte strings one after another, from theirs and the second's length in bytes.
DCP_API std::uint32_t crc32_combine(std::uint32_t first, std::uint32_t second, std::int64_t second_bytes);

}  // namespace dcp

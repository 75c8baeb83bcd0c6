#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace dcp {

/// Owned bytes.
using Bytes = std::vector<std::uint8_t>;
/// Bytes that somebody else owns.
using ByteSpan = std::span<const std::uint8_t>;
using MutableByteSpan = std::span<std::uint8_t>;

/// Views the characters of `text` as bytes.
inline ByteSpan as_bytes(std::string_view text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

/// Views `bytes` as characters, whatever they encode.
inline std::string_view as_text(ByteSpan bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

}  // namespace dcp

#pragma once

#include <cstddef>
#include <string_view>

namespace dcp::pickle {

/// Returns the position of the first byte that is not part of valid UTF-8, or the
/// length of `text` if all is well. Surrogates in their 3-byte form pass, as with
/// Python's error handler `surrogatepass`, which pickles are written with.
std::size_t find_bad_utf8(std::string_view text) noexcept;

inline bool is_utf8(std::string_view text) noexcept { return find_bad_utf8(text) == text.size(); }

/// Returns whether all bytes are below 0x80.
bool is_ascii(std::string_view text) noexcept;

}  // namespace dcp::pickle

#include <cstdint>
#include <cstring>

#include "torch_dcp/pickle/utf8_internal.h"

namespace dcp::pickle {
namespace {

constexpr std::uint64_t kHighBits = 0x8080808080808080;

std::size_t skip_ascii(std::string_view text, std::size_t at) noexcept {
  for (; at + sizeof(std::uint64_t) <= text.size(); at += sizeof(std::uint64_t)) {
    std::uint64_t word;
    std::memcpy(&word, text.data() + at, sizeof(word));
    if ((word & kHighBits) != 0) break;
  }
  while (at < text.size() && static_cast<std::uint8_t>(text[at]) < 0x80) ++at;
  return at;
}

/// Returns the length of the sequence of several bytes at `at`, 0 if it is malformed.
std::size_t sequence_length(std::string_view text, std::size_t at) noexcept {
  const auto byte_at = [&](std::size_t i) { return static_cast<std::uint8_t>(text[at + i]); };
  const std::uint8_t lead = byte_at(0);
  // 0xC0 and 0xC1 would be overlong, above 0xF4 lies nothing.
  const std::size_t length = lead < 0xC2 ? 0 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : lead < 0xF5 ? 4 : 0;
  if (length == 0 || text.size() - at < length) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte_at(i) & 0xC0) != 0x80) return 0;
  }
  const bool is_overlong = (lead == 0xE0 && byte_at(1) < 0xA0) || (lead == 0xF0 && byte_at(1) < 0x90);
  const bool is_beyond_unicode = lead == 0xF4 && byte_at(1) > 0x8F;
  return is_overlong || is_beyond_unicode ? 0 : length;
}

}  // namespace

std::size_t find_bad_utf8(std::string_view text) noexcept {
  for (std::size_t at = skip_ascii(text, 0); at < text.size(); at = skip_ascii(text, at)) {
    const std::size_t length = sequence_length(text, at);
    if (length == 0) return at;
    at += length;
  }
  return text.size();
}

bool is_ascii(std::string_view text) noexcept { return skip_ascii(text, 0) == text.size(); }

}  // namespace dcp::pickle

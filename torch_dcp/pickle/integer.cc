#include <algorithm>
#include <vector>

#include "torch_dcp/pickle/integer_internal.h"

namespace dcp::pickle {
namespace {

constexpr std::uint64_t kDecimalBase = 1'000'000'000;
constexpr int kDecimalDigits = 9;

bool is_negative(ByteSpan bytes) { return !bytes.empty() && (bytes.back() & 0x80) != 0; }

/// Returns the absolute value in 32-bit digits, least significant first, without leading zeros.
std::vector<std::uint32_t> magnitude(ByteSpan bytes) {
  const bool negative = is_negative(bytes);
  // One digit more than needed: the absolute value of the smallest number has one bit more.
  std::vector<std::uint32_t> digits(bytes.size() / 4 + 1, negative ? 0xFFFFFFFF : 0);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const int shift = static_cast<int>(i % 4) * 8;
    digits[i / 4] = (digits[i / 4] & ~(0xFFu << shift)) | (static_cast<std::uint32_t>(bytes[i]) << shift);
  }
  if (negative) {
    std::uint64_t carry = 1;
    for (std::uint32_t& digit : digits) {
      carry += static_cast<std::uint32_t>(~digit);
      digit = static_cast<std::uint32_t>(carry);
      carry >>= 32;
    }
  }
  while (!digits.empty() && digits.back() == 0) digits.pop_back();
  return digits;
}

/// Divides `digits` by the decimal base in place and returns the remainder.
std::uint64_t divide(std::vector<std::uint32_t>& digits) {
  std::uint64_t remainder = 0;
  for (std::size_t i = digits.size(); i-- > 0;) {
    const std::uint64_t value = (remainder << 32) | digits[i];
    digits[i] = static_cast<std::uint32_t>(value / kDecimalBase);
    remainder = value % kDecimalBase;
  }
  while (!digits.empty() && digits.back() == 0) digits.pop_back();
  return remainder;
}

}  // namespace

std::optional<std::int64_t> integer_from_bytes(ByteSpan bytes) {
  const std::uint8_t fill = is_negative(bytes) ? 0xFF : 0;
  std::size_t size = bytes.size();
  while (size > 8 && bytes[size - 1] == fill) --size;
  if (size > 8 || (size == 8 && (bytes[7] & 0x80) != (fill & 0x80))) return std::nullopt;
  std::uint64_t value = fill == 0 ? 0 : ~std::uint64_t{0};
  for (std::size_t i = size; i-- > 0;) value = (value << 8) | bytes[i];
  return static_cast<std::int64_t>(value);
}

std::string decimal_from_bytes(ByteSpan bytes) {
  std::vector<std::uint32_t> digits = magnitude(bytes);
  std::string reversed;
  while (!digits.empty()) {
    std::uint64_t remainder = divide(digits);
    for (int i = 0; i < kDecimalDigits; ++i, remainder /= 10) {
      reversed.push_back(static_cast<char>('0' + remainder % 10));
    }
  }
  while (reversed.size() > 1 && reversed.back() == '0') reversed.pop_back();
  if (reversed.empty()) reversed = "0";
  if (is_negative(bytes)) reversed.push_back('-');
  std::reverse(reversed.begin(), reversed.end());
  return reversed;
}

Bytes bytes_from_integer(std::int64_t value) {
  Bytes bytes;
  bool is_negative_so_far = false;
  for (std::int64_t rest = value; rest != (is_negative_so_far ? -1 : 0); rest >>= 8) {
    bytes.push_back(static_cast<std::uint8_t>(rest));
    is_negative_so_far = (bytes.back() & 0x80) != 0;
    // A sign bit that is not the number's own needs one byte more, which the loop's condition sees to.
  }
  return bytes;
}

}  // namespace dcp::pickle

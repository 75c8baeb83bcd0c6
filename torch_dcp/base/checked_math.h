#pragma once

#include <cstdint>
#include <optional>

namespace dcp {

/// Sums and products of numbers that came from a file: nothing where the result
/// does not fit 64 bits, which the caller reports as corrupt data.
inline std::optional<std::int64_t> checked_add(std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  if (__builtin_add_overflow(a, b, &result)) return std::nullopt;
  return result;
}

inline std::optional<std::int64_t> checked_mul(std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  if (__builtin_mul_overflow(a, b, &result)) return std::nullopt;
  return result;
}

/// Returns the product of non-negative sizes, 1 for none; nothing if a size is
/// negative or the product of the non-zero ones overflows (a zero does not hide
/// an overflow: strides are computed from the same numbers).
template <typename SizesRange>
std::optional<std::int64_t> checked_numel(const SizesRange& sizes) {
  std::int64_t product = 1;
  bool has_zero = false;
  for (std::int64_t size : sizes) {
    if (size < 0) return std::nullopt;
    if (size == 0) {
      has_zero = true;
      continue;
    }
    const auto next = checked_mul(product, size);
    if (!next) return std::nullopt;
    product = *next;
  }
  return has_zero ? 0 : product;
}

}  // namespace dcp

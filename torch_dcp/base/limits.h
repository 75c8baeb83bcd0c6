#pragma once

#include <cstddef>
#include <cstdint>

namespace dcp {

/// Bounds on what a parser accepts. Every number that a file states is compared
/// with one of these, and with the bytes that are really there, before anything
/// is allocated for it.
struct ParseLimits {
  std::size_t max_depth = 500;                 ///< nesting of containers and calls
  std::size_t max_values = 64'000'000;         ///< values made while parsing one file
  std::size_t max_memo_entries = 64'000'000;   ///< pickle memo entries
  std::size_t max_string_bytes = 1ull << 30;   ///< one string or bytes value
  std::size_t max_integer_bytes = 4096;        ///< one arbitrary-precision integer
  std::size_t max_header_bytes = 100'000'000;  ///< a JSON header or side file
  std::size_t max_list_index = 16'000'000;     ///< list position in a path
  std::size_t max_ndim = 64;                   ///< dimensions of a tensor
};

}  // namespace dcp

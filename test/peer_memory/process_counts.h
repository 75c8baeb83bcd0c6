#pragma once

#include <cstddef>
#include <filesystem>
#include <iterator>

namespace dcp::test {

/// Descriptors that this process has open, the one that counts them included.
inline std::size_t descriptor_count() {
  return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {}));
}

inline std::size_t thread_count() {
  return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator("/proc/self/task"), {}));
}

}  // namespace dcp::test

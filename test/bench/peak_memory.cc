#include "test/bench/peak_memory.h"

#include <malloc.h>

#include <fstream>
#include <string>

namespace dcp::bench {
namespace {

/// A line of /proc/self/status, in bytes.
std::optional<std::int64_t> status_of(const std::string& name) {
  std::ifstream file("/proc/self/status");
  for (std::string word; file >> word;) {
    std::int64_t kilobytes = 0;
    if (word == name + ":" && file >> kilobytes) return kilobytes << 10;
  }
  return std::nullopt;
}

/// Makes the highest mark of this process's memory what it has now.
bool reset_peak() {
  std::ofstream file("/proc/self/clear_refs");
  return static_cast<bool>(file << "5" << std::flush);
}

}  // namespace

std::optional<std::int64_t> peak_memory_of(const std::function<void()>& call) {
  ::malloc_trim(0);
  const bool can_tell = reset_peak();
  const auto before = status_of("VmRSS");
  call();
  const auto peak = status_of("VmHWM");
  if (!can_tell || !before || !peak) return std::nullopt;
  return *peak - *before;
}

}  // namespace dcp::bench

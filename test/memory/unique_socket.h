#pragma once

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <string>

namespace dcp::test {

/// A path for a socket that nobody else uses: short, since the system allows a hundred characters only.
inline std::string unique_socket() {
  static std::atomic<int> count = 0;
  const char* const folder = std::getenv("TEST_TMPDIR");
  std::string path = std::string(folder == nullptr ? "/tmp" : folder) + "/v" + std::to_string(::getpid()) + "_" +
                     std::to_string(++count);
  if (path.size() > 80)
    path = (std::filesystem::temp_directory_path() / std::filesystem::path(path).filename()).string();
  return path;
}

}  // namespace dcp::test

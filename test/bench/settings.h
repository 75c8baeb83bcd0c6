#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

namespace dcp::bench {

struct Settings {
  int rounds = 7;
  int python_slow_rounds = 1;  ///< of what takes Python a minute
  std::size_t threads = 2;     ///< of everybody who can use several

  std::int64_t large_bytes = std::int64_t{1} << 30;
  std::int64_t large_count = 64;
  std::int64_t small_bytes = 4096;
  std::int64_t small_count = 20'000;
  std::int64_t slice_tensor_bytes = std::int64_t{256} << 20;
  std::int64_t ranks = 512;  ///< also the most that Python plans for
  std::int64_t sharded = 1000;
  std::int64_t replicated = 100;
  std::int64_t keys = 560'000;
  std::vector<std::int64_t> scale_ranks = {8, 64, 512, 4096, 16384};  ///< rising
  int peer_ranks = 4;                                 ///< that keep their checkpoints in each other's memory
  std::int64_t peer_bytes = std::int64_t{256} << 20;  ///< of all of them; takes twelve times as much memory
  std::int64_t peer_count = 16;                       ///< tensors of each

  std::string disk;                 ///< a folder on the disk to be measured
  std::string memory = "/dev/shm";  ///< a folder in memory; empty: left out
  std::string peer_script;          ///< empty: without Python
  std::string json;                 ///< a file for the results; empty: none
  std::set<std::string> sections = {"large", "small", "slice", "planning", "metadata", "scale", "memory"};
};

}  // namespace dcp::bench

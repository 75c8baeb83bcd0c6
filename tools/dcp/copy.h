#pragma once

#include <cstddef>
#include <string>

namespace dcp::tool {

struct CopyOptions {
  int ranks = 1;
  std::size_t threads = 1;  ///< writer threads of each rank
  bool zstd = false;        ///< compresses each item as PyTorch's ZStandard extension does
};

/// Loads a checkpoint on `ranks` ranks, every tensor sharded on its first dimension by the chunk rule (uneven
/// and empty shards included), and saves it again from there. Objects are saved as they are.
///
/// The ranks are threads of this process.
///
/// \throws dcp::CheckpointError, dcp::Error.
void copy_checkpoint(const std::string& source, const std::string& destination, const CopyOptions& options);

}  // namespace dcp::tool

#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace dcp::examples {

/// A checkpoint of a run.
struct RunCheckpoint {
  std::int64_t step = 0;
  std::string path;
};

/// Where the checkpoint of a step lies in a run's folder.
std::string checkpoint_path(const std::string& folder, std::int64_t step);

/// The newest checkpoint in a run's folder that was saved to its end; nothing if there is none, or no folder.
std::optional<RunCheckpoint> newest_checkpoint(const std::string& folder);

}  // namespace dcp::examples

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

/// The name of a step's folder, as writers into several of them are told it.
inline constexpr const char* kFolderOfStep = "step-{step}";

/// Where the checkpoint of a step lies in a run's folder.
std::string checkpoint_path(const std::string& folder, std::int64_t step);

/// The newest checkpoint in a run's folder that was saved to its end; nothing if there is none, or no folder.
std::optional<RunCheckpoint> newest_checkpoint(const std::string& folder);

}  // namespace dcp::examples

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "torch_dcp/io/file_system.h"

namespace dcp::tiered {

/// Names of the folders that checkpoints of steps have within one directory: `step-000340`.
class StepFolders {
 public:
  /// \param pattern  With `{step}` once; no slash.
  /// \throws dcp::Error kInvalidArgument.
  explicit StepFolders(const std::string& pattern);

  /// \param step  Not negative; has at least six digits, so that names sort as steps do.
  std::string name_of(std::int64_t step) const;
  /// The step whose folder has this name; nothing for another name.
  std::optional<std::int64_t> step_of(std::string_view name) const;

  struct Found {
    std::int64_t step = 0;
    std::string name;
  };
  /// Those in `directory`, newest first, complete or not; none if there is no such directory.
  std::vector<Found> list(FileSystem& files, const std::string& directory) const;

 private:
  std::string before_;
  std::string after_;
};

}  // namespace dcp::tiered

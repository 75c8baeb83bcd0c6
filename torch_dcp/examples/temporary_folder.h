#pragma once

#include <string>

namespace dcp::examples {

/// A folder of the program's own, which ends with it unless it is to be kept.
class TemporaryFolder {
 public:
  /// \param purpose  A part of its name.
  /// \param keep     Leaves the folder, and says on standard output where it is.
  /// \throws std::runtime_error if the system refuses.
  explicit TemporaryFolder(const std::string& purpose, bool keep = false);
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::string& path() const { return path_; }

 private:
  bool keep_;
  std::string path_;
};

}  // namespace dcp::examples

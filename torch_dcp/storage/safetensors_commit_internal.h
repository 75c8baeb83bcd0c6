#pragma once

#include <optional>
#include <string>
#include <vector>

#include "torch_dcp/base/bytes.h"
#include "torch_dcp/io/file_system.h"

namespace dcp {

/// Replaces the checkpoint of a folder of safetensors; how is told in safetensors_commit.cc.
class SafetensorsCommit {
 public:
  SafetensorsCommit(FileSystem& files, std::string directory, bool sync_files)
      : files_(files), directory_(std::move(directory)), sync_files_(sync_files) {}

  /// Refuses what a save must not put its files beside, before anything is written.
  ///
  /// \throws dcp::Error kAlreadyExists: a checkpoint if `overwrite` is off; a DCP checkpoint, or tensors of another
  ///         origin, in any case.
  void check_directory(bool overwrite) const;

  /// The path under which the file `name` is to be written.
  std::string temporary_path(const std::string& name) const;

  /// Puts the files, which lie complete and synced at their temporary paths, in the place of all that is there.
  /// After an error before the first old file is touched the folder is what it was, without the new files.
  ///
  /// \param index  Of the folder; nothing: it shall have none.
  void run(const std::vector<std::string>& names, const std::optional<Bytes>& index);

  /// Removes a file that is not going to be used; says why it could not.
  std::optional<std::string> drop(const std::string& name) const noexcept;

 private:
  void sync_directory() const {
    if (sync_files_) files_.sync_directory(directory_);
  }
  void write_marker() const;
  void begin_replacing(const std::vector<std::string>& names) const;
  /// Removes the marker, unless it was there before, and the new files; says what could not be.
  std::vector<std::string> take_back(const std::vector<std::string>& names, bool was_unfinished) const;
  std::optional<std::string> remove(const std::string& path) const;
  void remove_old(const std::vector<std::string>& new_names) const;
  std::string path_of(std::string_view name) const { return join_path(directory_, name); }

  FileSystem& files_;
  std::string directory_;
  bool sync_files_;
};

}  // namespace dcp

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "torch_dcp/base/bytes.h"
#include "torch_dcp/io/file_system.h"

namespace dcp {

/// Replaces the checkpoint of a folder of safetensors; how is told in safetensors_commit.cc.
class SafetensorsCommit {
 public:
  /// \param save_id    Of the save whose files these are; a plain one.
  /// \param overwrite  Off: a checkpoint in the folder is an error.
  SafetensorsCommit(FileSystem& files, std::string directory, std::string save_id, bool overwrite, bool sync_files)
      : files_(files),
        directory_(std::move(directory)),
        save_id_(std::move(save_id)),
        overwrite_(overwrite),
        sync_files_(sync_files) {}

  /// Refuses what a save must not put its files beside, before anything is written; `run` does so again.
  ///
  /// \throws dcp::Error kAlreadyExists: a checkpoint if overwriting is off; a DCP checkpoint, or tensors of another
  ///         origin, in any case.
  void check_directory() const;

  /// Removes the files of saves that have not come to their commit, so that the space is there for this one. Before any
  /// of this save's files is written.
  void remove_leftovers() const;

  /// The path under which the file `name` is to be written.
  std::string temporary_path(const std::string& name) const;

  /// Puts the files, which lie complete and synced at their temporary paths, in the place of all that is there.
  /// After an error before the commit point the folder is what it was, without the new files; after one from there on
  /// the new checkpoint is there for this library's readers, and the error says so; or that it may be, or that another
  /// save has taken over.
  ///
  /// \param index  Of the folder; nothing: it shall have none.
  void run(const std::vector<std::string>& names, const std::optional<Bytes>& index) const;

  /// Removes a file that is not going to be used; says why it could not.
  std::optional<std::string> drop(const std::string& name) const noexcept;

 private:
  void sync_directory() const {
    if (sync_files_) files_.sync_directory(directory_);
  }
  void write_marker(const std::vector<std::string>& names) const;
  /// What this save's marker, once it may be there, tells of the save.
  enum class Outcome : std::uint8_t { kNotCommitted, kCommitted, kUnknown };
  Outcome outcome() const noexcept;
  bool has_own_marker() const;
  void check_own_marker() const;
  /// Removes one of the folder's files; it may be gone already.
  void remove(const std::string& name) const;
  /// Removes the new files; says what could not be.
  std::vector<std::string> take_back(const std::vector<std::string>& names) const;
  void remove_old(const std::vector<std::string>& new_names) const;
  void put_in_place(const std::vector<std::string>& names, const std::optional<Bytes>& index) const;
  void remove_marker() const;
  std::string path_of(std::string_view name) const { return join_path(directory_, name); }

  FileSystem& files_;
  std::string directory_;
  std::string save_id_;
  bool overwrite_;
  bool sync_files_;
};

}  // namespace dcp

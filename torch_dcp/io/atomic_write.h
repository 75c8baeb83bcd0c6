#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "torch_dcp/base/bytes.h"
#include "torch_dcp/base/export.h"
#include "torch_dcp/io/file_system.h"

namespace dcp {

/// Writes a small file so that a crash at any moment leaves the old file, or none, or
/// the new one whole. In this order:
///
///  1. create `directory/name.tmp` (one left by a crash is truncated) and append `bytes`;
///  2. sync the file: otherwise the rename might reach the medium before the bytes;
///  3. close it, which may report an error that was held back;
///  4. rename it to `directory/name`: from here on readers see the new file;
///  5. sync the directory: from here on a crash leaves the new file.
///
/// One writer per name at a time. If a step before the rename fails, `name` is as it
/// was and the temporary file is removed if the system lets it. If the rename is told to
/// have failed, it may have been done all the same (a network file system); if step 5 fails,
/// the new file is in place, but whether a crash would keep it is unknown.
///
/// \param sync  Without it steps 2 and 5 are left out: whole for readers, but not
///              for what a power cut leaves.
/// \throws dcp::Error  as `files` does.
DCP_API void atomic_write(FileSystem& files, std::string_view directory, std::string_view name, ByteSpan bytes,
                          bool sync = true);

/// The same for a file that is written part by part: its constructor is step 1, `commit` is steps 2 to 5. Without
/// `commit` nothing of the name `path` changes, and the temporary file is removed if the system lets it.
class DCP_API AtomicFile {
 public:
  /// \throws dcp::Error as `files` does.
  AtomicFile(std::shared_ptr<FileSystem> files, std::string path, bool sync = true);
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();

  WritableFile& file() { return *file_; }

  /// \throws dcp::Error as `files` does.
  void commit();

  /// Whether `commit` came so far that the new file may be in place, also if it threw then.
  bool may_be_in_place() const { return may_be_in_place_; }

 private:
  std::string temporary_path() const { return path_ + ".tmp"; }
  void discard() noexcept;

  std::shared_ptr<FileSystem> files_;
  std::string path_;
  bool sync_;
  std::unique_ptr<WritableFile> file_;
  bool is_temporary_ = true;  ///< that the temporary file is there
  bool may_be_in_place_ = false;
};

}  // namespace dcp

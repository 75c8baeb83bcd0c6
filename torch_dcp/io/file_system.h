#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "torch_dcp/base/bytes.h"
#include "torch_dcp/base/export.h"

namespace dcp {

/// A file opened for reading. Safe to use from many threads at once.
class DCP_API RandomAccessFile {
 public:
  virtual ~RandomAccessFile();

  /// Size of the file when it was opened, in bytes.
  virtual std::uint64_t size() const = 0;

  /// Fills all of `out` with the bytes from `offset` on.
  ///
  /// \throws dcp::Error kCorruptData if the file ends before; kIo if the system refuses.
  virtual void read_at(std::uint64_t offset, MutableByteSpan out) const = 0;
};

/// A new file being written, by one thread. Destroying it without `close` leaves
/// a file of unknown content. After a failed call the file is given up: every
/// later call throws, so that a later success cannot hide lost bytes. Calls after
/// `close` throw kState.
class DCP_API WritableFile {
 public:
  virtual ~WritableFile();

  /// Appends all of `bytes`.
  ///
  /// \throws dcp::Error kIo, when any number of the bytes may have been written.
  virtual void append(ByteSpan bytes) = 0;

  /// Appends the parts one after another, in as few system calls as possible.
  virtual void append_all(const std::vector<ByteSpan>& parts);

  /// Bytes appended so far.
  virtual std::uint64_t size() const = 0;

  /// Says whether bytes should start on their way to the medium as they are
  /// appended, which shortens `sync`; the default. Off is better for a file that
  /// will not be synced. A hint: an implementation may ignore it.
  virtual void set_early_write_back(bool enabled);

  /// Says whether the bytes may go past the system's page cache, where the file system can do that; off by default.
  /// Better for a large file that will be synced and not read soon. Bytes may be held back until `sync` or `close`. A
  /// hint, to be given before the first append.
  virtual void set_direct_writes(bool enabled);

  /// Returns when the bytes are on the medium.
  virtual void sync() = 0;

  /// Ends the writing and reports what the system held back until now. Says nothing
  /// about the medium: that is `sync`.
  virtual void close() = 0;
};

enum class FileType : std::uint8_t { kNone, kFile, kDirectory, kOther };

/// What is done with a path whose last name is a symbolic link. (Links among the directories above are followed.)
enum class Links : std::uint8_t { kFollow, kRefuse };

/// The seam to the operating system. Implementations are safe to use from many
/// threads; every error is a `dcp::Error` that names the path and the cause
/// (kNotFound, kAlreadyExists or kIo). A path below something that is no directory
/// is kIo, except for the questions `file_type` and `file_size`: nothing is there.
class DCP_API FileSystem {
 public:
  virtual ~FileSystem();

  /// Creates or truncates `path`, never what a link of this name points to: a link is kUnsupported. With
  /// `exclusive`, an existing file is kAlreadyExists.
  virtual std::unique_ptr<WritableFile> create_file(const std::string& path, bool exclusive = false) = 0;

  /// Opens a regular file. Its bytes stay readable when the name is removed or replaced by a rename. A refused link is
  /// kUnsupported, whatever it points to.
  virtual std::unique_ptr<RandomAccessFile> open_file(const std::string& path, Links links = Links::kFollow) = 0;

  /// What `path` is (links followed); kNone if there is nothing.
  virtual FileType file_type(const std::string& path) = 0;

  /// Size in bytes, or nothing if there is no such file; a refused link is no such file.
  virtual std::optional<std::uint64_t> file_size(const std::string& path, Links links = Links::kFollow) = 0;

  /// Names (not paths) in a directory, sorted.
  virtual std::vector<std::string> list_directory(const std::string& path) = 0;

  /// Creates `path` and the directories above it; fine if it is there already, also
  /// when others create the same directories at this moment. Returns the directories
  /// in which this call made a new name, outermost first, for `sync_directory`.
  ///
  /// \throws dcp::Error kAlreadyExists if `path` is there but no directory.
  virtual std::vector<std::string> create_directories(const std::string& path) = 0;

  /// Removes a file; kNotFound if there is none.
  virtual void remove_file(const std::string& path) = 0;

  /// Gives the file `from` the name `to` in one step, replacing a file that has it.
  virtual void rename_file(const std::string& from, const std::string& to) = 0;

  /// Returns when the directory's entries (new, renamed, removed names) are on the medium.
  virtual void sync_directory(const std::string& path) = 0;
};

/// Forwards every call to another file system; override what should differ.
class DCP_API FileSystemWrapper : public FileSystem {
 public:
  explicit FileSystemWrapper(std::shared_ptr<FileSystem> base);
  ~FileSystemWrapper() override;

  std::unique_ptr<WritableFile> create_file(const std::string& path, bool exclusive = false) override;
  std::unique_ptr<RandomAccessFile> open_file(const std::string& path, Links links = Links::kFollow) override;
  FileType file_type(const std::string& path) override;
  std::optional<std::uint64_t> file_size(const std::string& path, Links links = Links::kFollow) override;
  std::vector<std::string> list_directory(const std::string& path) override;
  std::vector<std::string> create_directories(const std::string& path) override;
  void remove_file(const std::string& path) override;
  void rename_file(const std::string& from, const std::string& to) override;
  void sync_directory(const std::string& path) override;

 protected:
  FileSystem& base() { return *base_; }

 private:
  std::shared_ptr<FileSystem> base_;
};

/// Joins a directory and a name with one slash. An empty directory or name adds
/// nothing; a name's own leading slashes do not make it absolute.
DCP_API std::string join_path(std::string_view directory, std::string_view name);

/// Returns the path of the directory that holds `path`'s last name: "." for a bare
/// name, "/" for a name at the root and for the root itself.
DCP_API std::string parent_path(std::string_view path);

/// Reads a whole file of at most `max_bytes` bytes.
///
/// \throws dcp::Error kCorruptData if it is larger.
DCP_API Bytes read_whole_file(FileSystem& files, const std::string& path, std::uint64_t max_bytes,
                              Links links = Links::kFollow);

}  // namespace dcp

#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "torch_dcp/base/error.h"
#include "torch_dcp/io/file_system.h"

namespace dcp::test {

enum class FileOp : std::uint8_t {
  kCreate,
  kAppend,
  kSync,
  kClose,
  kOpen,
  kRead,
  kStat,  ///< file_type or file_size
  kList,
  kCreateDirectories,
  kRemove,
  kRename,
  kSyncDirectory,
};

/// Returns the enumerator's name in snake case, such as "sync_directory".
const char* file_op_name(FileOp op);

/// Whether `op` changes what a crash leaves: not open, read, stat and list.
bool is_change(FileOp op);

/// One operation as it was asked for.
struct FileEvent {
  FileOp op = FileOp::kStat;
  std::string path = {};
  std::string to = {};       ///< the new path of a rename
  std::uint64_t offset = 0;  ///< of an append or read, in bytes
  std::uint64_t bytes = 0;   ///< of an append or read
  bool was_refused = false;  ///< by a fault, a hook or because of `stop_after_changes`

  friend bool operator==(const FileEvent&, const FileEvent&) = default;
};

/// "append a/b 100", "rename a/b.tmp a/b", "sync a/b"; "refused " before it where it was.
std::string to_string(const FileEvent& event);

/// Which operations fail, and how.
struct Fault {
  std::optional<FileOp> op = {};   ///< any without
  std::string path_contains = {};  ///< any path if empty; a rename matches by either of its paths
  std::uint64_t nth = 1;           ///< the matching operation that fails, counted from 1 since `fail`
  bool is_lasting = false;         ///< all matching operations from then on fail
  /// Appends only: fails the append in which the matching files together would exceed so
  /// many bytes since `fail`, whatever its number; it writes what fits, as a full disk does.
  std::optional<std::uint64_t> after_bytes = {};
  ErrorKind kind = ErrorKind::kIo;
  std::string message = "No space left on device";
};

/// Records what is asked of another file system, and fails what it is told to.
///
/// A refused operation does not reach the file system below, except that a refused
/// append writes the first half of its bytes (or those that fit `after_bytes`), as a
/// system that is full or dies does. Safe to use from many threads; files may outlive it.
class FaultInjectingFileSystem final : public FileSystemWrapper {
 public:
  explicit FaultInjectingFileSystem(std::shared_ptr<FileSystem> base);
  ~FaultInjectingFileSystem() override;

  /// Adds a fault; several work side by side.
  void fail(Fault fault);
  /// Ends all faults, the hook and the stop.
  void clear_faults();

  /// The next `change_count` changes (`is_change`) are done; the one after and whatever
  /// follows it, reading too, throws kIo "process stopped", as if the process had been
  /// killed there. Loop change_count = 0, 1, 2, ... until `is_stopped` stays false.
  void stop_after_changes(std::uint64_t change_count);
  bool is_stopped() const;

  /// Called before each operation, on the thread that asks for it; what it throws refuses the operation.
  void set_hook(std::function<void(const FileEvent&)> hook);

  /// All operations since the start or `clear_trace`, in the order in which they began.
  std::vector<FileEvent> trace() const;
  /// The trace as text without reads, stats, opens and lists; see `to_string`.
  std::vector<std::string> changes() const;
  void clear_trace();

  std::unique_ptr<WritableFile> create_file(const std::string& path, bool exclusive = false) override;
  std::unique_ptr<RandomAccessFile> open_file(const std::string& path, Links links = Links::kFollow) override;
  FileType file_type(const std::string& path) override;
  std::optional<std::uint64_t> file_size(const std::string& path, Links links = Links::kFollow) override;
  std::vector<std::string> list_directory(const std::string& path) override;
  std::vector<std::string> create_directories(const std::string& path) override;
  void remove_file(const std::string& path) override;
  void rename_file(const std::string& from, const std::string& to) override;
  void sync_directory(const std::string& path) override;

 private:
  class Control;
  class Writer;
  class Reader;

  std::shared_ptr<Control> control_;
};

}  // namespace dcp::test

#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "torch_dcp/base/limits.h"
#include "torch_dcp/io/file_system.h"
#include "torch_dcp/storage/storage_reader.h"
#include "torch_dcp/storage/stream_transforms.h"

namespace dcp {

struct ItemBytes;
struct SideFile;
class TensorItemForms;

struct FileSystemReaderOptions {
  std::size_t thread_count = 1;  ///< reading threads of each rank; several may share a file
  /// Checks the CRC-32 of every item that is read whole. (A slice of an item is read without the rest of it.)
  bool verify_checksums = true;
  /// Reads files of the checkpoint that are symbolic links too, wherever they point to. (The directory itself may
  /// always be one.) Only for checkpoints whose author is trusted: a link may name any file of this machine.
  bool follow_links = false;
  /// What items may have gone through, beside "stream.zstd/1", which is always known (`zstd_transform`); of two for one
  /// descriptor these count. An item that went through others is refused by name. Such an item is read whole, also for
  /// a slice of it, and held in memory, one for each thread: an object of at most 64 MiB or 16 times its stored bytes,
  /// a tensor of the bytes that the metadata states and 1 MiB.
  StreamTransforms transforms = {};
  ParseLimits limits = {};
  std::shared_ptr<FileSystem> file_system = nullptr;  ///< the local one if null
};

/// Reads a directory that this library or PyTorch's FileSystemWriter wrote. Executes nothing, opens no file outside of
/// the directory (a file that is a symbolic link is refused, see `follow_links`), and ignores files that no metadata
/// names.
///
/// Class state after an error: `set_up` starts anew. Thread safety: one load at a time.
/// Source: torch/distributed/checkpoint/filesystem.py (2.14.1); interop FORMAT.md 1.
class DCP_API FileSystemReader : public StorageReader {
 public:
  explicit FileSystemReader(std::string path, FileSystemReaderOptions options = {});
  ~FileSystemReader() override;

  const std::string& path() const { return path_; }
  std::string place() const override { return path_; }

  /// As `read_plain_metadata`, and what the side file says put into it.
  std::optional<Metadata> read_metadata() override;
  std::optional<Metadata> read_merged_metadata() override;
  Metadata read_rank_metadata(int rank) override;
  void set_up(const Metadata& metadata, const StorageReaderContext& context) override;
  void check(const LoadPlan& plan, LoadPlanner& planner) override;
  void read_data(const LoadPlan& plan, LoadPlanner& planner) override;

  /// The metadata as Python reads it: without the side file.
  std::optional<Metadata> read_plain_metadata();

  /// The side file of the same save; nothing if there is none.
  ///
  /// \throws dcp::Error kCorruptData, kUnsupported, naming the file.
  std::optional<SideFile> read_side_file(const Metadata& metadata);

  /// Reads all of one stored item and checks all that can be checked without a model: that its file is there and
  /// holds it, the CRC-32 of each of its members, that a tensor has the dtype and sizes of the metadata and lies in its
  /// storage, that an object can be read. From many threads at once, after `set_up`.
  ///
  /// Memory: 1 MiB for a tensor; for an object its bytes and its value; for an item that went through transforms all
  /// of its bytes before them.
  ///
  /// \param index    With the chunk's number, else the chunk is looked for.
  /// \param on_read  Told how many bytes have been read since the last call; may be empty.
  /// \returns The type of an object that this library keeps without understanding it, else an empty text.
  /// \throws dcp::Error kCorruptData, kUnsupported, kIo.
  std::string verify_item(const MetadataIndex& index, const std::function<void(std::int64_t)>& on_read = {});

  /// The bytes of one object item, transforms undone.
  Bytes read_item(const StorageInfo& info);

 private:
  struct StoredTensor;
  struct ReadTask;
  struct Opened;

  std::string file(const std::string& name) const { return join_path(path_, name); }
  Links links() const { return options_.follow_links ? Links::kFollow : Links::kRefuse; }
  /// Whether the directory has something of this name; anything but a file is an error.
  bool has_file(const std::string& name);
  Metadata read_metadata_file(const std::string& name);
  /// The open data file of an item, after a check that it holds all of the item. From any thread.
  std::shared_ptr<const RandomAccessFile> data_file(const StorageInfo& info);
  /// The plan's items by file and position, so that a disk reads forward and files are opened one by one.
  std::vector<const ReadItem*> in_file_order(const LoadPlan& plan) const;
  const StorageInfo& storage_info(const MetadataIndex& index) const;
  void check_object(const ReadItem& item, LoadPlanner& planner);
  void check_tensor(const ReadItem& item);
  /// Opens the tensor item of a chunk and compares it with the metadata.
  ///
  /// \param forms  Makes it faster where many items are alike; may be null.
  StoredTensor open_tensor(const MetadataIndex& index, const StorageInfo& info, const ItemBytes& bytes,
                           TensorItemForms* forms);
  std::vector<ReadTask> make_tasks(const LoadPlan& plan) const;
  void run_task(ReadTask& task, LoadPlanner& planner);

  std::string path_;
  FileSystemReaderOptions options_;
  std::shared_ptr<FileSystem> files_;
  StreamTransforms transforms_;  ///< all that are known
  StorageReaderContext context_;
  const Metadata* metadata_ = nullptr;
  std::unique_ptr<Opened> opened_;
};

/// Whether `path` holds a checkpoint that was saved to its end: readable metadata, and every file that it names is
/// there, no symbolic link, with all its bytes. (Saved without collectives: this holds for each rank's metadata that is
/// there.) Opens no data file. False also for a path that does not exist.
///
/// \throws dcp::Error kIo if the system refuses to look.
DCP_API bool is_complete(const std::string& path, std::shared_ptr<FileSystem> file_system = nullptr);

}  // namespace dcp

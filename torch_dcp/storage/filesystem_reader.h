#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "torch_dcp/base/limits.h"
#include "torch_dcp/io/file_system.h"
#include "torch_dcp/storage/storage_reader.h"
#include "torch_dcp/storage/stream_transforms.h"

namespace dcp {

struct BlockSums;
struct ItemBytes;
struct ItemSums;
struct RegionReadOptions;
struct SideFile;
struct TensorItem;
class TensorItemForms;

/// A file of metadata as a load read it.
struct MetadataFileState {
  std::uint64_t byte_count = 0;
  std::uint32_t crc32 = 0;
  std::string save_id;  ///< may be empty
};

/// What is checked of a slice of a tensor, with the sums of blocks of 1 MiB that this library's saves put into the side
/// file. Where there are none (Python's saves have no such file), nothing is.
enum class VerifySlices : std::uint8_t {
  kOff,
  /// Blocks that the slice has whole, so that nothing else is read for it.
  kCoveredBlocks,
  /// Every block of which the slice has a part, once for all slices of its item; up to a block more is read at either
  /// end, and for many small rows all that is between them. Takes a block of memory (1 MiB, 64 at most) for each
  /// thread.
  kWholeBlocks,
};

struct FileSystemReaderOptions {
  std::size_t thread_count = 1;  ///< reading threads of each rank; several may share a file
  /// Checks the CRC-32 of every item that is read whole, and slices as `verify_slices` says.
  bool verify_checksums = true;
  VerifySlices verify_slices = VerifySlices::kCoveredBlocks;
  /// Bytes between two wanted ranges of a file that are read along, so that one call brings both: of a slice of an
  /// item, and of items of up to 16 KiB that lie close together. A page by default: a cold medium gives no less, and
  /// from the page cache a call costs about as much as copying half of it. More is better where a call is slow, as over
  /// a network. 0: nothing is read along.
  ///
  /// Of a slice, ranges of a quarter of this or more are only joined over holes of up to 1 / 32 of their size, so that
  /// at most 1.03 bytes are read for each wanted one; smaller ones, rows of a few hundred bytes, over any hole of up to
  /// this size. Counted, by default, for each wanted byte, when tensors whose rows have 4 KiB are cut anew along their
  /// columns: 1.5 from 4 parts to 3, 1.6 from 8 to 6, 1.0 from 8 to 2 and from 1 to 2, 8 from 1 to 8 (in a thousandth
  /// of the calls); with rows of 16 KiB: 1.0, 1.5, 1.0, 1.0 and 1.0; with rows of 64 KiB 1.0 throughout.
  std::size_t merge_hole_bytes = 4096;
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
  /// Compares the files of metadata that the load has read with what is there now.
  bool is_still_there() override;
  void set_up(const Metadata& metadata, const StorageReaderContext& context) override;
  /// Tells all ranks which files of metadata the load goes by.
  std::vector<LoadPlan> prepare_global_plan(std::vector<LoadPlan> plans) override;
  void check(const LoadPlan& plan, LoadPlanner& planner) override;
  void read_data(const LoadPlan& plan, LoadPlanner& planner) override;

  /// The metadata as Python reads it: without the side file.
  std::optional<Metadata> read_plain_metadata();
  /// What `rank` saved without collectives, as Python reads it.
  Metadata read_plain_rank_metadata(int rank);

  /// The side file of the same save; nothing if there is none.
  ///
  /// \param rank  Whose metadata it is, if it was saved without collectives.
  /// \throws dcp::Error kCorruptData, kUnsupported, naming the file.
  std::optional<SideFile> read_side_file(const Metadata& metadata, std::optional<int> rank = {});

  /// Reads all of one stored item and checks all that can be checked without a model: that its file is there and
  /// holds it, the CRC-32 of each of its members, that a tensor has the dtype and sizes of the metadata and lies in its
  /// storage, that an object can be read. From many threads at once, after `set_up`.
  ///
  /// Memory: 1 MiB for a tensor; for an object its bytes and its value; for an item that went through transforms all
  /// of its bytes before them.
  ///
  /// \param index    With the chunk's number, else the chunk is looked for.
  /// \param on_read  Told how many bytes have been read since the last call; may be empty.
  /// \param sums     Those that it has of the item must make the item's CRC-32; may be null.
  /// \returns The type of an object that this library keeps without understanding it, else an empty text.
  /// \throws dcp::Error kCorruptData, kUnsupported, kIo.
  std::string verify_item(const MetadataIndex& index, const std::function<void(std::int64_t)>& on_read = {},
                          const BlockSums* sums = nullptr);

  /// The bytes of one object item, transforms undone.
  Bytes read_item(const StorageInfo& info);

 private:
  struct StoredTensor;
  struct ReadTask;
  struct Opened;
  /// An item and where it is stored, if the metadata say that.
  using PlacedItem = std::pair<std::optional<StorageInfo>, const ReadItem*>;

  std::string file(const std::string& name) const { return join_path(path_, name); }
  Links links() const { return options_.follow_links ? Links::kFollow : Links::kRefuse; }
  /// Whether the directory has something of this name; anything but a file is an error.
  bool has_file(const std::string& name);
  Metadata read_metadata_file(const std::string& name);
  std::optional<SideFile> read_side_file(const std::string& save_id, std::optional<int> rank);
  /// What the coordinator's `prepare_global_plan` told.
  void take_over_metadata_files(const LoadPlan& plan);
  bool is_as_it_was(const std::string& name, const MetadataFileState& state);
  [[noreturn]] void throw_replaced(const std::string& what_happened) const;
  /// \throws dcp::Error kState unless the checkpoint is still there.
  void throw_if_replaced(const std::string& what_happened);
  /// In a `catch` block: throws kState if what was caught can come from that the checkpoint has been replaced.
  void throw_if_failed_by_replacement();
  /// The open data file of an item, after a check that it holds all of the item. From any thread.
  std::shared_ptr<const RandomAccessFile> data_file(const StorageInfo& info);
  void check_is_inside(const RandomAccessFile& data, const StorageInfo& info) const;
  std::int64_t hole_bytes() const;
  /// The same file for the check, which reads small items that lie close together at once.
  std::shared_ptr<const RandomAccessFile> data_file_for_check(const StorageInfo& info);
  /// What the check reads of the plan's items, by file.
  void expect_check_of(const std::vector<PlacedItem>& items);
  Bytes read_item(std::shared_ptr<const RandomAccessFile> file, const StorageInfo& info);
  /// The plan's items by file and position, so that a disk reads forward and files are opened one by one.
  std::vector<PlacedItem> in_file_order(const LoadPlan& plan) const;
  StorageInfo storage_info(const MetadataIndex& index) const;
  void check_object(const ReadItem& item, LoadPlanner& planner);
  void check_tensor(const ReadItem& item);
  /// Opens the tensor item of a chunk and compares it with the metadata.
  ///
  /// \param forms  Makes it faster where many items are alike; may be null.
  StoredTensor open_tensor(const MetadataIndex& index, const StorageInfo& info, const ItemBytes& bytes,
                           TensorItemForms* forms);
  /// What can be wrong with a part of an item; found out before anything is changed.
  void check_region(const ReadItem& item, const TensorItem& stored);
  /// Whether the item is a slice that sums may be of use for.
  bool may_check_slice(const ReadItem& item, const TensorItem& stored) const;
  /// Gets the side file that has an item's sums, once for each load.
  void prepare_slice_checks(const MetadataIndex& index);
  /// The side file of the load's `.metadata`, as far as it has sums.
  void prepare_side_file();
  /// The rank whose own metadata says where the item is; nothing if that of all ranks does.
  std::optional<int> rank_of_part(const MetadataIndex& index) const;
  /// The sums that the item's are among, if there are any.
  const BlockSums* block_sums_for(const MetadataIndex& index) const;
  /// What a slice is checked with, if it is.
  std::optional<ItemSums> sums_of(const ReadItem& item, const TensorItem& stored) const;
  std::vector<ReadTask> make_tasks(const LoadPlan& plan) const;
  /// How many of the task's items from `first` on are read in one pass over their blocks.
  std::size_t count_in_pass(const ReadTask& task, std::size_t first) const;
  void run_task(ReadTask& task, LoadPlanner& planner);
  /// Reads `count` of the task's items, which are of the stored tensor in `bytes`.
  void read_slices(ReadTask& task, std::size_t first, std::size_t count, const ItemBytes& bytes, LoadPlanner& planner,
                   RegionReadOptions& options);

  std::string path_;
  FileSystemReaderOptions options_;
  std::shared_ptr<FileSystem> files_;
  StreamTransforms transforms_;  ///< all that are known
  StorageReaderContext context_;
  const Metadata* metadata_ = nullptr;
  std::unique_ptr<Opened> opened_;
  std::map<std::string, MetadataFileState> metadata_files_;  ///< that the load goes by, by name
  std::unique_ptr<SideFile> side_file_;                      ///< that was read last, without its paths
};

/// Whether `path` holds a checkpoint that was saved to its end: readable metadata, and every file that it names is
/// there, no symbolic link, with all its bytes. (Saved without collectives: this holds for each rank's metadata that is
/// there.) Opens no data file. False also for a path that does not exist.
///
/// \throws dcp::Error kIo if the system refuses to look.
DCP_API bool is_complete(const std::string& path, std::shared_ptr<FileSystem> file_system = nullptr);

}  // namespace dcp

#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "torch_dcp/base/limits.h"
#include "torch_dcp/io/file_system.h"
#include "torch_dcp/storage/storage_reader.h"

namespace dcp {

struct FileSystemReaderOptions {
  std::size_t thread_count = 1;  ///< data files read at once by each rank
  /// Checks the CRC-32 of every item that is read whole. (A slice of an item is read without the rest of it.)
  bool verify_checksums = true;
  ParseLimits limits = {};
  std::shared_ptr<FileSystem> file_system = nullptr;  ///< the local one if null
};

/// Reads a directory that this library or PyTorch's FileSystemWriter wrote. Executes nothing, opens no file outside of
/// the directory, and ignores files that no metadata names.
///
/// Class state after an error: `set_up` starts anew. Thread safety: one load at a time.
/// Source: torch/distributed/checkpoint/filesystem.py (2.14.1); interop FORMAT.md 1.
class DCP_API FileSystemReader : public StorageReader {
 public:
  explicit FileSystemReader(std::string path, FileSystemReaderOptions options = {});
  ~FileSystemReader() override;

  const std::string& path() const { return path_; }

  std::optional<Metadata> read_metadata() override;
  Metadata read_rank_metadata(int rank) override;
  void set_up(const Metadata& metadata, const StorageReaderContext& context) override;
  void check(const LoadPlan& plan, LoadPlanner& planner) override;
  void read_data(const LoadPlan& plan, LoadPlanner& planner) override;

  /// The stored bytes of one item, as they lie in its file.
  Bytes read_item(const StorageInfo& info);

 private:
  struct StoredTensor;
  struct Opened;

  std::string file(const std::string& name) const { return join_path(path_, name); }
  Metadata read_metadata_file(const std::string& name);
  void apply_side_file(Metadata& metadata);
  /// The open data file of an item, after a check that it holds all of the item. From any thread.
  std::shared_ptr<const RandomAccessFile> data_file(const StorageInfo& info);
  /// The plan's items by file and position, so that a disk reads forward and files are opened one by one.
  std::vector<const ReadItem*> in_file_order(const LoadPlan& plan) const;
  const StorageInfo& storage_info(const MetadataIndex& index) const;
  void check_object(const ReadItem& item, LoadPlanner& planner);
  void check_tensor(const ReadItem& item);

  std::string path_;
  FileSystemReaderOptions options_;
  std::shared_ptr<FileSystem> files_;
  StorageReaderContext context_;
  const Metadata* metadata_ = nullptr;
  bool has_rank_metadata_ = false;  ///< the metadata was that of one rank
  std::unique_ptr<Opened> opened_;
};

/// Whether `path` holds a checkpoint that was saved to its end: readable metadata, and every file that it names is
/// there with all its bytes. (Saved without collectives: this holds for each rank's metadata that is there.) Opens no
/// data file. False also for a path that does not exist.
///
/// \throws dcp::Error kIo if the system refuses to look.
DCP_API bool is_complete(const std::string& path, std::shared_ptr<FileSystem> file_system = nullptr);

}  // namespace dcp

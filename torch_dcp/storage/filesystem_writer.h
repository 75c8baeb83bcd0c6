#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "torch_dcp/io/file_system.h"
#include "torch_dcp/storage/storage_writer.h"
#include "torch_dcp/storage/stream_transforms.h"

namespace dcp {

struct BlockSums;

/// What happens to a checkpoint that is in the directory already.
enum class OverwriteForm : std::uint8_t {
  /// New data files under names of their own; one rename of `.metadata` switches from the old to the new; then the
  /// old files go. Needs space for both. A crash at any moment leaves exactly the old or the new. (Without
  /// collectives this holds for each rank's part alone.)
  kReplace,
  /// The old `.metadata` goes first, and then its data files, before anything is written: for full disks. A crash
  /// leaves no checkpoint, never a mixture.
  kRevokeFirst,
};

struct FileSystemWriterOptions {
  bool overwrite = true;  ///< off: a checkpoint in the directory is kAlreadyExists
  OverwriteForm overwrite_form = OverwriteForm::kReplace;
  std::size_t thread_count = 1;      ///< writer threads, and files per rank, of each rank
  bool single_file_per_rank = true;  ///< off: one file per item
  bool sync_files = true;            ///< off: nothing is synced; a power cut may lose the checkpoint or damage it
  bool checksums = true;             ///< off: no CRC-32 of tensors is recorded, and no load can check their bytes
  /// What each item's bytes go through, in this order, such as `zstd_transform()`. Through fixed buffers, however large
  /// the item. A slice of such an item cannot be read without the rest of it.
  StreamTransforms transforms = {};
  std::shared_ptr<FileSystem> file_system = nullptr;  ///< the local one if null
};

/// Writes the layout of PyTorch's FileSystemWriter into one directory.
///
/// Class state after an error: `set_up` starts anew. Thread safety: one save at a time.
/// Source: torch/distributed/checkpoint/filesystem.py (2.14.1); interop FORMAT.md 1.
class DCP_API FileSystemWriter : public StorageWriter {
 public:
  explicit FileSystemWriter(std::string path, FileSystemWriterOptions options = {});
  ~FileSystemWriter() override;

  const std::string& path() const { return path_; }

  void set_up(const StorageWriterContext& context) override;
  StorageMeta storage_meta() const override;
  SavePlan prepare_local_plan(SavePlan plan) override;
  std::vector<SavePlan> prepare_global_plan(std::vector<SavePlan> plans) override;
  std::vector<WriteResult> write_data(const SavePlan& plan, const SavePlanner& planner) override;
  Metadata finish(Metadata metadata, const std::vector<std::vector<WriteResult>>& results) override;
  bool may_have_committed() const override { return may_have_committed_; }
  void committed() noexcept override;
  void abort() noexcept override;
  std::vector<std::string> warnings() const override { return warnings_; }

 private:
  std::string file(std::string_view name) const { return join_path(path_, name); }
  /// The file whose rename commits: `.metadata`, or this rank's without collectives.
  std::string metadata_name() const;
  /// Names in the directory that this save replaces.
  std::vector<std::string> find_replaced();
  void revoke_replaced();
  void write_side_file(const Metadata& metadata, BlockSums block_sums);
  /// The commit.
  void write_metadata(ByteSpan bytes);
  /// Creates, fills, syncs and closes this rank's data file `number`. From several threads at once.
  std::vector<WriteResult> write_file(const SavePlan& plan, const SavePlanner& planner, std::size_t number,
                                      const std::vector<std::size_t>& items);

  std::string path_;
  FileSystemWriterOptions options_;
  std::shared_ptr<FileSystem> files_;
  StorageWriterContext context_;
  std::string save_id_;
  std::vector<std::string> new_directories_;  ///< that this rank made
  std::vector<std::string> written_;   ///< this rank's files of this save, data files by number, once they are made
  std::vector<std::string> replaced_;  ///< on the coordinator: names that a commit replaces
  std::vector<std::string> kept_;      ///< names that the committed checkpoint needs
  std::vector<std::string> warnings_;
  bool may_have_committed_ = false;
};

}  // namespace dcp

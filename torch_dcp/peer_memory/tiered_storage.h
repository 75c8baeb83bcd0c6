#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "torch_dcp/peer_memory/peer_memory.h"
#include "torch_dcp/peer_memory/process_group_storage.h"
#include "torch_dcp/storage/filesystem_reader.h"
#include "torch_dcp/storage/storage_reader.h"
#include "torch_dcp/storage/storage_writer.h"

namespace dcp {

/// Alike on every rank.
struct TieredWriterOptions {
  std::int64_t step = -1;              ///< of the next save; see `set_step`
  std::int64_t disk_every = 50;        ///< saves of steps that this divides go to disk too; 0: none
  std::string folder = "step-{step}";  ///< name of a step's folder; `{step}` has at least six digits
  /// What a save does that is due for disk while an earlier one is still on its way there: wait for it, or stay in
  /// memory alone, which `warnings` tells.
  bool skip_if_busy = false;
  /// So many flushes that failed in a row make the next save that is due throw, before it writes anything; 0: none.
  int most_failed_flushes = 3;
  bool checksums = true;                              ///< of each item
  bool sync_files = true;                             ///< off: a power cut may lose what is on disk, or damage it
  std::shared_ptr<FileSystem> file_system = nullptr;  ///< of the disk; the local one if null
  /// How long the destructor waits for a flush; then it stops it, and what is on disk of it is no checkpoint.
  std::chrono::milliseconds close_deadline = std::chrono::minutes(5);
  /// For the steps of flushes: "flush plan", "flush write", "flush commit", "flush clear".
  CommunicatorOptions communicator_options = {};
};

/// What became of the last save that was due for disk.
struct TieredFlush {
  std::int64_t step = -1;
  std::string path;  ///< of the folder
  bool has_ended = false;
  std::string error;       ///< empty if it has not failed
  std::int64_t bytes = 0;  ///< that this rank has written
};

/// Saves into the memory of a group's ranks, and copies each n-th of those checkpoints to disk while training goes on.
///
/// A copy ("flush") starts when the save is committed in memory. Each rank copies its own files out of its own memory,
/// which it holds open: later saves may drop the generation meanwhile. The folder becomes a checkpoint as one that
/// `FileSystemWriter` writes: by the rename of `.metadata` when all ranks' files are there; before that nothing lists
/// it, and a checkpoint that the folder had stays. The files are the same but for the names in the metadata.
///
/// A flush that fails costs no save: the checkpoint in memory is good, and training goes on. It is told by `warnings`
/// of the next save, by `last_flush` and by `wait_for_flush`, and the next save that is due tries again, until
/// `most_failed_flushes` in a row have failed.
///
/// Memory: while a flush runs a rank's vault holds the files of up to three generations; its budget must have room for
/// that.
///
/// Thread safety: one save at a time.
class DCP_API TieredWriter : public StorageWriter {
 public:
  /// \param group      The one of `memory`.
  /// \param directory  Holds the folders of steps.
  /// \throws dcp::Error kInvalidArgument.
  /// Collective: all ranks of the group, same order as other communicators of it; waits for none of them.
  TieredWriter(std::shared_ptr<PeerMemory> memory, const GroupRef& group, std::string directory,
               TieredWriterOptions options = {});
  /// Waits for a flush within `close_deadline`.
  ~TieredWriter() override;

  /// To be called before each save.
  void set_step(std::int64_t step);
  /// The generation that the last save committed.
  std::optional<PeerGeneration> committed_generation() const;

  /// Waits until no flush runs. \throws dcp::CheckpointError of the last flush if it failed, once; alike on all ranks.
  void wait_for_flush();
  /// Nothing if no save has been due yet.
  std::optional<TieredFlush> last_flush() const;

  void set_up(const StorageWriterContext& context) override;
  StorageMeta storage_meta() const override;
  SavePlan prepare_local_plan(SavePlan plan) override;
  std::vector<SavePlan> prepare_global_plan(std::vector<SavePlan> plans) override;
  std::vector<WriteResult> write_data(const SavePlan& plan, const SavePlanner& planner) override;
  Metadata finish(Metadata metadata, const std::vector<std::vector<WriteResult>>& results) override;
  bool may_have_committed() const override;
  void committed() noexcept override;
  void abort() noexcept override;
  std::vector<std::string> warnings() const override;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

struct TieredReaderOptions {
  std::string folder = "step-{step}";   ///< as the writer's
  FileSystemReaderOptions reader = {};  ///< for both; `file_system` is of the disk
};

/// Where a load reads from.
struct TieredSource {
  bool is_memory = false;
  std::int64_t step = -1;                ///< -1 in memory if it was saved without one
  std::string place;                     ///< "mem:generation 12 (step 340)", or a path
  std::vector<std::string> passed_over;  ///< on the coordinator: newer ones, and why they were not taken
};

/// Loads the newest checkpoint that is complete: of the ranks' memory, or of the folders on disk. At equal steps
/// memory; a generation without a step counts as older than all folders.
///
/// The coordinator decides, and tells the others by name of the folder, or number of the generation: they need not see
/// what else there is. What is incomplete or cannot be opened is passed over, and told by `source`; what turns out to
/// be damaged later throws, as in any load.
///
/// Thread safety: one load at a time.
class DCP_API TieredReader : public StorageReader {
 public:
  /// \param memory     May be null: files alone.
  /// \param directory  Holds the folders of steps; may be empty: memory alone.
  TieredReader(std::shared_ptr<PeerMemory> memory, std::string directory, TieredReaderOptions options = {});
  ~TieredReader() override;

  /// What the last load read from; nothing before it has decided.
  std::optional<TieredSource> source() const;

  std::string place() const override;
  /// \throws dcp::Error kNotFound ('incomplete checkpoint'), naming both places, if nothing is complete.
  std::optional<Metadata> read_metadata() override;
  std::optional<Metadata> read_merged_metadata() override;
  Metadata read_rank_metadata(int rank) override;
  bool is_still_there() override;
  void set_up(const Metadata& metadata, const StorageReaderContext& context) override;
  LoadPlan prepare_local_plan(LoadPlan plan) override;
  std::vector<LoadPlan> prepare_global_plan(std::vector<LoadPlan> plans) override;
  void check(const LoadPlan& plan, LoadPlanner& planner) override;
  void read_data(const LoadPlan& plan, LoadPlanner& planner) override;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dcp

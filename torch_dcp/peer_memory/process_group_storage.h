#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "torch_dcp/peer_memory/peer_memory.h"
#include "torch_dcp/storage/filesystem_reader.h"
#include "torch_dcp/storage/filesystem_writer.h"
#include "torch_dcp/storage/storage_reader.h"
#include "torch_dcp/storage/storage_writer.h"

namespace dcp {

struct ProcessGroupWriterOptions {
  std::int64_t step =
      -1;  ///< of the training, told by `PeerMemory::newest` and by readers; may be changed before a save
  bool checksums = true;  ///< of each item, beside the sums of whole files
};

/// Saves into the memory of a group's ranks: a generation is complete when `finish` has returned, the last complete one
/// stays beside it.
///
/// Throws, beside what planners do: kState 'memory budget' if a vault is full, kComm and kDeadline for a peer that is
/// lost or late, kUnsupported without collectives, kInvalidArgument if the save's ranks are not those of the memory.
/// The generation before stays, and training goes on.
class DCP_API ProcessGroupStorageWriter : public StorageWriter {
 public:
  explicit ProcessGroupStorageWriter(std::shared_ptr<PeerMemory> memory, ProcessGroupWriterOptions options = {});
  ~ProcessGroupStorageWriter() override;

  void set_step(std::int64_t step);
  /// The generation that the last save committed.
  std::optional<PeerGeneration> committed_generation() const;

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

/// Loads the newest complete generation, on the ranks of the memory, whatever number of ranks saved it.
class DCP_API ProcessGroupStorageReader : public StorageReader {
 public:
  explicit ProcessGroupStorageReader(std::shared_ptr<PeerMemory> memory, FileSystemReaderOptions options = {});
  ~ProcessGroupStorageReader() override;

  std::string place() const override;
  /// \throws dcp::Error kNotFound ('incomplete checkpoint') if no generation is complete.
  std::optional<Metadata> read_metadata() override;
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

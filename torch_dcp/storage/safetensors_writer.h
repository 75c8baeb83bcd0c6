#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "torch_dcp/base/ordered_map.h"
#include "torch_dcp/io/file_system.h"
#include "torch_dcp/storage/storage_writer.h"

namespace dcp {

/// Key -> number of the file that gets the tensor, from 1 on.
using FqnToIndex = OrderedMap<std::string, std::int64_t>;

struct SafetensorsWriterOptions {
  /// Empty: all tensors go to file 1. Else every key that is saved must be there; the same on every rank.
  FqnToIndex fqn_to_index_mapping = {};
  /// Off: whole tensors, each file by one rank, and an index. On: each rank writes what it holds into files of its own
  /// (`shard-...`), without an index.
  bool save_distributed = false;
  /// With `save_distributed`: the shards go to the folder `sharded`, and the coordinator puts them together into whole
  /// files with an index. It does so alone, in the step "commit", whose deadline must allow for it.
  bool enable_consolidation = false;
  std::size_t thread_count = 1;                       ///< files written at once by each rank
  std::size_t thread_count_consolidation = 1;         ///< see ConsolidateOptions
  bool overwrite = true;                              ///< off: a checkpoint in the folder is kAlreadyExists
  bool sync_files = true;                             ///< off: nothing is synced; a power cut may lose the checkpoint
  std::shared_ptr<FileSystem> file_system = nullptr;  ///< the local one if null
};

/// Saves tensors as safetensors, in the files that PyTorch's HuggingFaceStorageWriter makes.
///
/// Needs collectives; without them only rank 0 can save, alone (the others would write its files too).
///
/// Refused before anything is written, naming all keys: objects and dtypes that the form lacks; keys without a file;
/// without `save_distributed` tensors of which a rank holds only a part, and a file of which several ranks hold
/// tensors; with it, tensors that the ranks' parts do not cover, and two parts of a tensor on one rank (a file can hold
/// one). Tensors that are not contiguous are written as if they were.
///
/// Overwriting: the new files are written beside the old; then these are removed and those get their names, while a
/// marker in the folder keeps readers from taking a part or a mixture for the whole. A crash or error before that
/// leaves the old checkpoint, then a folder that readers refuse ('incomplete checkpoint'), then the new checkpoint.
/// Takes the space of both. Never removed: files of other names. A folder with a `.metadata`, or with `*.safetensors`
/// of other names, is refused.
///
/// Class state after an error: `set_up` starts anew. Thread safety: one save at a time.
/// Source: torch/distributed/checkpoint/hf_storage.py (2.14.1); interop FORMAT.md 6.
class DCP_API SafetensorsWriter : public StorageWriter {
 public:
  explicit SafetensorsWriter(std::string path, SafetensorsWriterOptions options = {});
  ~SafetensorsWriter() override;

  const std::string& path() const { return path_; }

  void set_up(const StorageWriterContext& context) override;
  StorageMeta storage_meta() const override;
  SavePlan prepare_local_plan(SavePlan plan) override;
  std::vector<SavePlan> prepare_global_plan(std::vector<SavePlan> plans) override;
  std::vector<WriteResult> write_data(const SavePlan& plan, const SavePlanner& planner) override;
  Metadata finish(Metadata metadata, const std::vector<std::vector<WriteResult>>& results) override;
  void abort() noexcept override;
  std::vector<std::string> warnings() const override { return warnings_; }

 private:
  /// The number of the file that gets a key; nothing if the mapping lacks it.
  std::optional<std::int64_t> file_number(const std::string& key) const;
  /// The files' number in their names.
  std::int64_t largest_number() const;
  std::string file_name(std::int64_t number) const;
  std::vector<WriteResult> write_file(const SavePlan& plan, const SavePlanner& planner, const std::string& name,
                                      const std::vector<std::size_t>& items);
  void commit(const Metadata& metadata);

  std::string path_;
  SafetensorsWriterOptions options_;
  std::shared_ptr<FileSystem> files_;
  std::string directory_;  ///< that the ranks write to: `path_`, or `sharded` below it
  StorageWriterContext context_;
  std::string save_id_;
  std::vector<std::string> new_directories_;
  std::vector<std::string> written_;  ///< names of this rank's files of this save
  std::vector<std::string> warnings_;
};

}  // namespace dcp

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

class SafetensorsCommit;

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
  std::size_t thread_count = 1;                ///< files written at once by each rank
  std::size_t thread_count_consolidation = 1;  ///< see ConsolidateOptions
  /// Off: a checkpoint in the folder is kAlreadyExists, also one that comes while this save writes. With
  /// `enable_consolidation` this is said of the folder itself; shards in `sharded` are always replaced.
  bool overwrite = true;
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
/// Overwriting: the new files are written beside the old; then a marker in the folder names them, the old ones are
/// removed and the new ones get their names. A crash or error at any moment leaves exactly the old or exactly the new
/// checkpoint for this library's readers, which go by the marker; PyTorch's refuse the folder while the marker is
/// there, and those that go by the index find the old checkpoint until its index goes, then none, then the new one. An
/// error that leaves the new one, or may have left it, says so. The next save into the folder ends such a state. Takes
/// the space of both. Never removed: files of other names. A folder with a `.metadata`, or with `*.safetensors` of
/// other names, is refused.
///
/// With `enable_consolidation` this holds for each of the two folders by itself: the one of the shards comes first, so
/// that it may already have the new checkpoint, all of it, when the other still has the old one (or none).
///
/// Not supported: two savers into one folder at once (two jobs, or one that was only taken for dead). Guaranteed is
/// then that a load gives one whole checkpoint or an error, and that a save that sees another one's marker in place of
/// its own, or its files gone, changes nothing more and ends with an error ('another save has taken over', or that its
/// file is not there). Not guaranteed is that a checkpoint stays: there is no lock, so that one may remove the other's
/// files between two looks.
///
/// Every file carries the id of its save and the number of that save's files in its folder, and every part the size of
/// its tensor: readers miss a file that is lost, and never mix two saves. What consolidation makes has the same id.
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
  /// Files that the ranks together are about to write.
  std::int64_t count_files(const std::vector<SavePlan>& plans) const;
  SafetensorsCommit folder(const std::string& directory) const;
  std::vector<WriteResult> write_file(const SavePlan& plan, const SavePlanner& planner, const std::string& name,
                                      const std::vector<std::size_t>& items);
  void commit(const Metadata& metadata);
  void consolidate() const;
  std::string path_;
  SafetensorsWriterOptions options_;
  std::shared_ptr<FileSystem> files_;
  std::string directory_;  ///< that the ranks write to: `path_`, or `sharded` below it
  StorageWriterContext context_;
  std::string save_id_;          ///< this rank's own until the plan has brought the coordinator's
  std::int64_t file_count_ = 0;  ///< of all ranks; from the plan too
  std::vector<std::string> new_directories_;
  std::vector<std::string> written_;  ///< names of this rank's files of this save
  std::vector<std::string> warnings_;
};

}  // namespace dcp

#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>

#include "torch_dcp/base/limits.h"
#include "torch_dcp/io/file_system.h"
#include "torch_dcp/storage/storage_reader.h"

namespace dcp {

class SafetensorsFolder;

struct SafetensorsReaderOptions {
  std::size_t thread_count = 1;  ///< parts read at once by each rank
  ParseLimits limits = {};
  std::shared_ptr<FileSystem> file_system = nullptr;  ///< the local one if null
};

/// Reads safetensors into any layout: a folder that PyTorch's HuggingFaceStorageWriter or `SafetensorsWriter` wrote,
/// whole or in shards (also a folder `sharded` by itself), one from a model hub, or one single file. Keys are the
/// tensors' names; there are no objects. Symbolic links are followed: a hub's cache consists of them.
///
/// Which files: with an index (`model.safetensors.index.json`) those that it names, else all `*.safetensors`. Index and
/// folder must agree, or nothing is read: every name is a plain one, the file is there and holds the tensor, its other
/// tensors are all in the index, and no file of a save (`model-N-of-M`, `shard-K-model-N-of-M`) is left out. Other
/// `*.safetensors` beside an index are left alone. While a save replaces the folder, and after one that was interrupted
/// there: those that its marker (`model-save-unfinished.safetensors`) names, and nothing else.
///
/// Stricter than PyTorch: parts of a tensor must cover it exactly and be of one dtype; a tensor in two files is an
/// error that names it and them; so is all that `read_safetensors_header` refuses. There are no checksums in this form.
///
/// Files that this library wrote tell their save, the number of its files and the sizes of its tensors. All files must
/// be of one save and all of them be there. The id is in the metadata's `storage_meta`, and each rank compares it with
/// every file that it opens: beside a save that replaces the folder a load gives the old checkpoint, the new one, or
/// kCorruptData ('try again'), and never a mixture. Files of PyTorch do not tell; of these only what the tensors' parts
/// show is seen.
///
/// Keeps the files that it has read from open, 256 at most, until the next load begins or it is destroyed.
///
/// Class state after an error: `set_up` starts anew. Thread safety: one load at a time.
/// Source: torch/distributed/checkpoint/hf_storage.py (2.14.1); interop FORMAT.md 6.3.
class DCP_API SafetensorsReader : public StorageReader {
 public:
  explicit SafetensorsReader(std::string path, SafetensorsReaderOptions options = {});
  ~SafetensorsReader() override;

  const std::string& path() const;
  std::string place() const override { return path(); }

  /// Names, dtypes, sizes and places of all tensors. Reads the headers of all files.
  ///
  /// \throws dcp::Error kNotFound ('incomplete checkpoint' and the path) if there are none or a save did not end;
  ///         kCorruptData naming file and keys; kIo.
  std::optional<Metadata> read_metadata() override;
  void set_up(const Metadata& metadata, const StorageReaderContext& context) override;
  void check(const LoadPlan& plan, LoadPlanner& planner) override;
  void read_data(const LoadPlan& plan, LoadPlanner& planner) override;

  /// One whole tensor, put together, on the CPU; without a load around it.
  ///
  /// \param metadata  From `read_metadata`.
  /// \throws dcp::Error kKey if there is no such tensor; kCorruptData, kIo.
  at::Tensor read_tensor(const Metadata& metadata, const std::string& name);

 private:
  void read_part(const Metadata& metadata, const ReadItem& item, const at::Tensor& destination);

  SafetensorsReaderOptions options_;
  std::unique_ptr<SafetensorsFolder> folder_;
  StorageReaderContext context_;
  const Metadata* metadata_ = nullptr;
  bool has_open_files_ = false;  ///< from `read_metadata`, of the load that begins
};

}  // namespace dcp

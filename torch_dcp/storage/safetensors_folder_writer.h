#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "torch_dcp/base/export.h"
#include "torch_dcp/base/ordered_map.h"
#include "torch_dcp/io/file_system.h"
#include "torch_dcp/storage/safetensors_file_writer.h"

namespace dcp {

class SafetensorsCommit;

/// The name that PyTorch gives file `number` of `largest`, both from 1 on: `model-00001-of-00003.safetensors`.
DCP_API std::string safetensors_file_name(std::int64_t number, std::int64_t largest);

struct SafetensorsFolderOptions {
  bool overwrite = true;   ///< off: a checkpoint in the folder is kAlreadyExists
  bool sync_files = true;  ///< off: nothing is synced; a power cut may lose the checkpoint or damage it
  std::shared_ptr<FileSystem> file_system = nullptr;  ///< the local one if null
  std::string save_id = {};     ///< that the files carry, of letters, digits and '-'; empty: a new one
  std::int64_t file_count = 0;  ///< how many files are going to be begun, which each of them says; 0: they do not say
};

/// Writes a folder of whole tensors with its index from one process, file by file and tensor by tensor: for tools that
/// convert. (`SafetensorsWriter` saves a state dict, also of many ranks.)
///
/// The files lie beside what is there under other names until `commit`, which replaces that. A crash leaves exactly the
/// old or exactly the new checkpoint for this library's readers; others, such as PyTorch's, refuse the folder if the
/// crash was within `commit`. Destroying it without `commit` removes what was written. Thread safety: one thread, but
/// for the files themselves, which may be written by one each.
class DCP_API SafetensorsFolderWriter {
 public:
  /// Creates the folder if it is not there, and removes from it what interrupted saves left. One writer or save into a
  /// folder at a time (see SafetensorsWriter).
  ///
  /// \throws dcp::Error kAlreadyExists for a checkpoint that must not be overwritten, a DCP checkpoint, or tensors in
  ///         files of other names; kIo.
  explicit SafetensorsFolderWriter(std::string path, SafetensorsFolderOptions options = {});
  ~SafetensorsFolderWriter();
  SafetensorsFolderWriter(const SafetensorsFolderWriter&) = delete;
  SafetensorsFolderWriter& operator=(const SafetensorsFolderWriter&) = delete;

  /// Begins a file. It must be closed before `commit` and not used after.
  ///
  /// \param name     Made by `safetensors_file_name`.
  /// \param tensors  Whole ones; each in one file of the folder only.
  /// \throws dcp::Error as SafetensorsFileWriter does; kKey for a tensor that another file has.
  std::unique_ptr<SafetensorsFileWriter> begin_file(const std::string& name, std::vector<SafetensorsSpec> tensors);

  /// Puts the files in the place of the folder's checkpoint, the index last. The index names the tensors in the order
  /// in which files were begun and tensors given.
  ///
  /// \throws dcp::Error kState if there are not `file_count` files; kIo; kAlreadyExists if files have come that must
  /// not
  ///         be replaced. Either nothing has changed, or the error says that the new checkpoint is complete for this
  ///         library's readers, or may be, or that another save has taken over.
  void commit();

 private:
  SafetensorsCommit folder() const;

  std::string path_;
  SafetensorsFolderOptions options_;
  std::shared_ptr<FileSystem> files_;
  std::string save_id_;
  std::vector<std::string> new_directories_;
  std::vector<std::string> names_;
  OrderedMap<std::string, std::string> weight_map_;  ///< tensor -> file
  std::int64_t total_size_ = 0;
  bool is_committed_ = false;
};

}  // namespace dcp

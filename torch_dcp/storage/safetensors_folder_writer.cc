#include "torch_dcp/storage/safetensors_folder_writer.h"

#include <algorithm>
#include <utility>

#include "torch_dcp/base/error.h"
#include "torch_dcp/format/safetensors_index.h"
#include "torch_dcp/io/local_file_system.h"
#include "torch_dcp/storage/safetensors_commit_internal.h"
#include "torch_dcp/storage/safetensors_names_internal.h"
#include "torch_dcp/storage/safetensors_stamp_internal.h"
#include "torch_dcp/storage/save_id_internal.h"

namespace dcp {

std::string safetensors_file_name(std::int64_t number, std::int64_t largest) {
  return safetensors_names::data_file_name(number, largest);
}

SafetensorsFolderWriter::SafetensorsFolderWriter(std::string path, SafetensorsFolderOptions options)
    : path_(std::move(path)),
      options_(std::move(options)),
      files_(options_.file_system ? options_.file_system : local_file_system()),
      save_id_(options_.save_id.empty() ? make_save_id() : options_.save_id) {
  DCP_CHECK(!path_.empty(), kInvalidArgument, "a checkpoint needs a path");
  DCP_CHECK(is_plain_id(save_id_), kInvalidArgument, path_, ": '", save_id_, "' cannot be the id of a save");
  DCP_CHECK(options_.file_count >= 0, kInvalidArgument, path_, ": file_count is negative");
  new_directories_ = files_->create_directories(path_);
  folder().check_directory();
  folder().remove_leftovers();
}

SafetensorsCommit SafetensorsFolderWriter::folder() const {
  return {*files_, path_, save_id_, options_.overwrite, options_.sync_files};
}

SafetensorsFolderWriter::~SafetensorsFolderWriter() {
  if (is_committed_) return;
  // What cannot be removed is harmless: no reader looks at it, and the next save removes it.
  for (const std::string& name : names_) folder().drop(name);
}

std::unique_ptr<SafetensorsFileWriter> SafetensorsFolderWriter::begin_file(const std::string& name,
                                                                           std::vector<SafetensorsSpec> tensors) {
  DCP_CHECK(!is_committed_, kState, path_, ": the folder has been committed");
  DCP_CHECK(safetensors_names::is_data_file(name), kInvalidArgument, path_, ": '", name,
            "' is no name of a file of a checkpoint");
  DCP_CHECK(std::find(names_.begin(), names_.end(), name) == names_.end(), kInvalidArgument, path_, ": ", name,
            " was begun already");
  for (const SafetensorsSpec& spec : tensors) {
    const std::string* other = weight_map_.find(spec.name);
    DCP_CHECK(other == nullptr, kKey, path_, ": '", spec.name, "' is in ", *other, " already");
  }
  std::vector<std::string> keys;
  for (const SafetensorsSpec& spec : tensors) keys.push_back(spec.name);
  names_.push_back(name);
  auto file =
      std::make_unique<SafetensorsFileWriter>(*files_, folder().temporary_path(name), std::move(tensors),
                                              options_.sync_files, stamp_metadata({save_id_, options_.file_count}));
  for (std::string& key : keys) weight_map_.insert(std::move(key), name);
  total_size_ += file->position_of(keys.size()) - file->position_of(0);
  return file;
}

void SafetensorsFolderWriter::commit() {
  DCP_CHECK(!is_committed_, kState, path_, ": the folder has been committed");
  const auto count = static_cast<std::int64_t>(names_.size());
  DCP_CHECK(options_.file_count == 0 || options_.file_count == count, kState, path_, ": ", count, " of the ",
            options_.file_count, " files have been begun");
  if (options_.sync_files) {
    files_->sync_directory(path_);
    for (auto made = new_directories_.rbegin(); made != new_directories_.rend(); ++made) files_->sync_directory(*made);
  }
  const Bytes index = encode_safetensors_index({total_size_, std::move(weight_map_)});
  is_committed_ = true;  // The new files may become the only ones; as long as they are not, `run` removes them itself.
  folder().run(names_, index);
}

}  // namespace dcp

// Which files of a folder are its checkpoint, and that they are of one save.
//
// A reader may look while a save replaces the folder (safetensors_commit.cc). It never takes a mixture: every file says
// of which save it is and of how many files that consists, so that what it has found is one whole save or refused; the
// metadata carries the save's id to all ranks, which compare it with each file that they open later.

#include <algorithm>
#include <set>
#include <utility>

#include "torch_dcp/base/error.h"
#include "torch_dcp/base/fault_list.h"
#include "torch_dcp/storage/safetensors_folder_internal.h"
#include "torch_dcp/storage/safetensors_marker_internal.h"
#include "torch_dcp/storage/safetensors_names_internal.h"
#include "torch_dcp/storage/safetensors_parts_internal.h"
#include "torch_dcp/tensor/dtype.h"

namespace dcp {
namespace {

using safetensors_names::kIndex;

constexpr std::size_t kMaxOpenFiles = 256;
constexpr const char* kTryAgain = ", or a save into the folder is just being committed (try again)";

}  // namespace

OpenSafetensors::OpenSafetensors(std::string name, std::shared_ptr<const RandomAccessFile> file,
                                 const ParseLimits& limits)
    : name_(std::move(name)),
      file_(std::move(file)),
      header_(read_safetensors_header(*file_, limits)),
      stamp_(stamp_of(header_)) {
  by_name_.reserve(header_.tensors.size());
  for (const SafetensorsTensor& tensor : header_.tensors) by_name_.emplace(tensor.name, &tensor);
}

const SafetensorsTensor* OpenSafetensors::find(const std::string& name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : found->second;
}

SafetensorsFolder::SafetensorsFolder(std::string path, std::shared_ptr<FileSystem> files, ParseLimits limits)
    : path_(std::move(path)), files_(std::move(files)), limits_(limits) {
  DCP_CHECK(!path_.empty(), kInvalidArgument, "a checkpoint needs a path");
}

bool SafetensorsFolder::is_single_file() { return files_->file_type(path_) == FileType::kFile; }

std::string SafetensorsFolder::path_of(const std::string& name) {
  return is_single_file() ? path_ : join_path(path_, name);
}

std::shared_ptr<const OpenSafetensors> SafetensorsFolder::open(const std::string& name) {
  const std::lock_guard lock(mutex_);
  if (auto opened = open_if_there(name)) return opened;
  // A save may have given its file the name by now.
  if (const auto final_name = safetensors_names::final_name(name)) {
    if (auto opened = open_if_there(*final_name)) return opened;
  }
  DCP_THROW(kCorruptData, "the file ", path_of(name), " is missing", is_single_file() ? "" : kTryAgain);
}

std::shared_ptr<const OpenSafetensors> SafetensorsFolder::open_if_there(const std::string& name) {
  const auto found = opened_.find(name);
  if (found != opened_.end()) return found->second;
  const std::string path = path_of(name);
  if (files_->file_type(path) != FileType::kFile) return nullptr;
  try {
    // Links are followed: in the cache of a hub's client all files are links to where their bytes are kept.
    auto opened = std::make_shared<OpenSafetensors>(name, files_->open_file(path), limits_);
    if (opened_.size() < kMaxOpenFiles) opened_.emplace(name, opened);
    return opened;
  } catch (c10::Error& error) {
    const auto* const ours = dynamic_cast<const Error*>(&error);
    if (ours != nullptr && ours->kind() == ErrorKind::kNotFound) return nullptr;  // gone since
    error.add_context("while reading the header of " + path);
    throw;
  }
}

void SafetensorsFolder::close_files() {
  const std::lock_guard lock(mutex_);
  opened_.clear();
}

std::optional<std::vector<std::string>> SafetensorsFolder::indexed_files(const std::vector<std::string>& names) {
  const std::string path = join_path(path_, kIndex);
  try {
    index_ = decode_safetensors_index(read_whole_file(*files_, path, limits_.max_header_bytes), limits_);
  } catch (c10::Error& error) {
    const auto* const ours = dynamic_cast<const Error*>(&error);
    if (ours != nullptr && ours->kind() == ErrorKind::kNotFound) return std::nullopt;  // gone since
    error.add_context("while reading " + path);
    throw;
  }
  std::set<std::string> indexed;
  FaultList faults;
  for (const auto& [name, file] : index_.weight_map) {
    if (std::binary_search(names.begin(), names.end(), file)) {
      indexed.insert(file);
    } else {
      faults.add(ErrorKind::kCorruptData, name, "the index says that it is in " + file + ", which is missing");
    }
  }
  for (const std::string& name : names) {
    if (safetensors_names::is_data_file(name) && !indexed.contains(name)) {
      faults.add(ErrorKind::kCorruptData, name, "the index does not name this file, which is left from another save");
    }
  }
  faults.throw_if_any(path + " does not agree with its folder" + kTryAgain, DCP_WHERE);
  return std::vector<std::string>(indexed.begin(), indexed.end());
}

std::vector<std::string> SafetensorsFolder::checkpoint_files() {
  constexpr int kMostLooks = 3;  // Saves that come to their end meanwhile are rare.
  for (int look = 0; look < kMostLooks; ++look) {
    if (auto names = look_for_files()) return *std::move(names);
  }
  DCP_THROW(kCorruptData, "saves into ", path_, " are just being committed (try again)");
}

std::optional<std::vector<std::string>> SafetensorsFolder::look_for_files() {
  using safetensors_names::kUnfinished;
  has_index_ = false;
  marked_save_id_.clear();
  if (is_single_file()) return std::vector{path_.substr(path_.rfind('/') + 1)};
  const FileType type = files_->file_type(path_);
  DCP_CHECK(type != FileType::kNone, kNotFound, "incomplete checkpoint: ", path_, " does not exist");
  DCP_CHECK(type == FileType::kDirectory, kNotFound, "incomplete checkpoint: ", path_,
            " is neither a directory nor a file");
  std::vector<std::string> names = files_->list_directory(path_);
  if (std::binary_search(names.begin(), names.end(), kUnfinished)) {
    FoundMarker found = find_safetensors_marker(*files_, path_, limits_);
    if (found.state == MarkerState::kNone) return std::nullopt;  // gone since
    DCP_CHECK(found.state == MarkerState::kComplete, kNotFound, "incomplete checkpoint: a save into ", path_,
              " did not end (", kUnfinished, ")");
    marked_save_id_ = found.marker.save_id;
    for (std::string& name : found.marker.files) name = safetensors_names::temporary_name(name, marked_save_id_);
    return std::move(found.marker.files);
  }
  has_index_ = std::binary_search(names.begin(), names.end(), kIndex);
  if (has_index_) return indexed_files(names);
  const bool has_shards = std::binary_search(names.begin(), names.end(), safetensors_names::kShardedFolder);
  std::erase_if(names, [](const std::string& name) { return !safetensors_names::is_safetensors_file(name); });
  DCP_CHECK(!names.empty(), kNotFound, "incomplete checkpoint: ", path_, " has no .safetensors file",
            has_shards ? "; there may be shards in its folder 'sharded' that were not put together" : "");
  return names;
}

/// Each tensor must lie where the index says, and nowhere else.
void SafetensorsFolder::check_index() {
  FaultList faults;
  std::set<std::string> files;
  for (const auto& [name, file] : index_.weight_map) {
    files.insert(file);
    if (open(file)->find(name) == nullptr) {
      faults.add(ErrorKind::kCorruptData, name, "the index says that it is in " + file + ", which does not hold it");
    }
  }
  for (const std::string& file : files) {
    const auto opened = open(file);
    for (const SafetensorsTensor& tensor : opened->header().tensors) {
      const std::string* indexed = index_.weight_map.find(tensor.name);
      if (indexed != nullptr && *indexed == file) continue;
      faults.add(ErrorKind::kCorruptData, tensor.name,
                 file + " holds it, the index " + (indexed ? "says it is in " + *indexed : "does not name it"));
    }
  }
  faults.throw_if_any(join_path(path_, kIndex) + " does not agree with its folder" + kTryAgain, DCP_WHERE);
}

/// Says that files do not belong together, and why that may be.
std::string SafetensorsFolder::mixture_text(const std::string& what) const {
  return c10::str("files of two saves lie in ", path_,
                  ", or a save into it is just being committed (try again): ", what);
}

Metadata SafetensorsFolder::read_metadata() {
  close_files();
  SafetensorsParts parts;
  const std::vector<std::string> names = checkpoint_files();
  std::shared_ptr<const OpenSafetensors> first;
  for (const std::string& name : names) {
    const auto opened = open(name);
    if (!first) first = opened;
    const std::string& save_id = opened->stamp().save_id;
    DCP_CHECK(save_id == first->stamp().save_id, kCorruptData,
              mixture_text(c10::str(first->name(), " is of ", spell_save(first->stamp().save_id), ", ", opened->name(),
                                    " of ", spell_save(save_id))));
    DCP_CHECK(marked_save_id_.empty() || save_id == marked_save_id_, kCorruptData,
              mixture_text(c10::str(safetensors_names::kUnfinished, " is of ", spell_save(marked_save_id_), ", ",
                                    opened->name(), " of ", spell_save(save_id))));
    parts.add(opened->name(), opened->header());
  }
  if (has_index_) check_index();
  const auto expected = first && !is_single_file() ? static_cast<std::size_t>(first->stamp().file_count) : 0;
  std::string heading = "the safetensors of " + path_ + " make no checkpoint";
  const bool has_all_files = expected == 0 || expected == names.size();
  if (!has_all_files) heading += c10::str(": ", names.size(), " of the ", expected, " files of their save are there");
  Metadata metadata = parts.finish(heading);
  DCP_CHECK(has_all_files, kCorruptData, heading);
  if (first && !first->stamp().save_id.empty()) {
    metadata.storage_meta.emplace();
    metadata.storage_meta->save_id = first->stamp().save_id;
  }
  return metadata;
}

const SafetensorsTensor& SafetensorsFolder::find_part(const OpenSafetensors& opened, const Metadata& metadata,
                                                      const MetadataIndex& index) {
  const std::optional<StorageInfo> info = metadata.storage_data.find(index);
  const std::optional<Box> chunk = find_chunk(metadata, index);
  DCP_CHECK(info && chunk, kInternal, to_string(index), " is no stored part");
  const auto& tensor = std::get<TensorStorageMetadata>(*metadata.state_dict_metadata.find(index.fqn));
  const std::string save_id = metadata.storage_meta ? metadata.storage_meta->save_id.value_or("") : "";
  DCP_CHECK(opened.stamp().save_id == save_id, kCorruptData, "the file is of ", spell_save(opened.stamp().save_id),
            ", and was of ", spell_save(save_id), " when the checkpoint was opened: it has been replaced (try again)");
  const SafetensorsTensor* part = opened.find(index.fqn);
  DCP_CHECK(part, kCorruptData, "the file does not hold it any more");
  const Sizes offsets = part->saved_offsets ? *part->saved_offsets : Sizes(part->sizes.size(), 0);
  DCP_CHECK(part->dtype == tensor.properties.dtype && part->sizes == chunk->sizes && offsets == chunk->offsets &&
                part->position + opened.header().data_position == info->offset,
            kCorruptData, "the file holds ", dtype_name(part->dtype), " ", to_string(Box{offsets, part->sizes}),
            " at byte ", part->position + opened.header().data_position, ", and held ",
            dtype_name(tensor.properties.dtype), " ", to_string(*chunk), " at byte ", info->offset,
            " when the checkpoint was opened");
  return *part;
}

}  // namespace dcp

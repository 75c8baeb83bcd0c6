#include <algorithm>
#include <set>
#include <utility>

#include "torch_dcp/base/error.h"
#include "torch_dcp/base/fault_list.h"
#include "torch_dcp/plan/validate.h"
#include "torch_dcp/storage/safetensors_folder_internal.h"
#include "torch_dcp/storage/safetensors_names_internal.h"
#include "torch_dcp/tensor/dtype.h"

namespace dcp {
namespace {

using safetensors_names::kIndex;

constexpr std::size_t kMaxOpenFiles = 256;

/// The parts of one tensor that were found.
struct Parts {
  TensorStorageMetadata tensor;  ///< `size` is the least that holds all parts
  std::vector<StorageInfo> places;
};

/// Puts together the parts that the files hold.
class PartTable {
 public:
  void add(const std::string& file, const SafetensorsHeader& header) {
    for (const SafetensorsTensor& tensor : header.tensors) add(file, header.data_position + tensor.position, tensor);
  }

  /// Checks that the parts of each tensor are all of it and hands them over. \throws dcp::Error naming all that are
  /// not.
  Metadata finish(const std::string& path) {
    Metadata metadata;
    for (auto& [name, parts] : tensors_) {
      drop_empty_parts(parts);
      std::vector<StorageInfo>& places = parts.places;
      std::optional<std::string> fault = find_chunk_fault(parts.tensor, /*must_cover=*/true);
      for (std::size_t i = 0; i < places.size() && !fault; ++i) {
        const MetadataIndex index{name, parts.tensor.chunks[i].offsets, static_cast<std::int64_t>(i)};
        if (!metadata.storage_data.insert(index, places[i])) fault = "its " + to_string(index) + " is there twice";
      }
      if (fault) {
        faults_.add(ErrorKind::kCorruptData, name, *fault + "; it lies in " + files_of(parts));
      } else {
        metadata.state_dict_metadata.insert(name, std::move(parts.tensor));
      }
    }
    faults_.throw_if_any("the safetensors of " + path + " make no checkpoint", DCP_WHERE);
    return metadata;
  }

 private:
  void add(const std::string& file, std::int64_t position, const SafetensorsTensor& found) {
    Box box;
    box.sizes = found.sizes;
    box.offsets = found.saved_offsets ? *found.saved_offsets : Sizes(found.sizes.size(), 0);
    Parts* parts = tensors_.find(found.name);
    if (parts == nullptr) {
      parts = &tensors_[found.name];
      parts->tensor.properties.dtype = found.dtype;
      parts->tensor.size.assign(found.sizes.size(), 0);
    }
    TensorStorageMetadata& tensor = parts->tensor;
    if (tensor.properties.dtype != found.dtype || tensor.size.size() != found.sizes.size()) {
      faults_.add(ErrorKind::kCorruptData, found.name,
                  c10::str(file, " has ", dtype_name(found.dtype), " ", to_string(found.sizes), ", ", files_of(*parts),
                           " has ", dtype_name(tensor.properties.dtype), " of ", tensor.size.size(), " dimensions"));
      return;
    }
    // The header's check has seen that these sums fit.
    for (std::size_t d = 0; d < box.ndim(); ++d) {
      tensor.size[d] = std::max(tensor.size[d], box.offsets[d] + box.sizes[d]);
    }
    tensor.chunks.push_back(std::move(box));
    parts->places.push_back({file, position, found.byte_count, {}});
  }

  /// Empty shards have nothing to read, and the offset of one may be that of a part with elements. A tensor without any
  /// keeps the first.
  static void drop_empty_parts(Parts& parts) {
    std::vector<Box>& chunks = parts.tensor.chunks;
    const bool has_elements = std::any_of(chunks.begin(), chunks.end(), [](const Box& box) { return !box.empty(); });
    std::size_t kept = 0;
    for (std::size_t i = 0; i < chunks.size(); ++i) {
      if (has_elements ? chunks[i].empty() : kept == 1) continue;
      std::swap(chunks[kept], chunks[i]);
      std::swap(parts.places[kept++], parts.places[i]);
    }
    chunks.resize(kept);
    parts.places.resize(kept);
  }

  static std::string files_of(const Parts& parts) {
    constexpr std::size_t kMaxNamed = 8;
    std::set<std::string> names;
    for (const StorageInfo& place : parts.places) names.insert(place.relative_path);
    std::string text;
    std::size_t count = 0;
    for (const std::string& name : names) {
      if (++count > kMaxNamed) return c10::str(text, " and ", names.size() - kMaxNamed, " others");
      text += (count == 1 ? "" : ", ") + name;
    }
    return text;
  }

  OrderedMap<std::string, Parts> tensors_;
  FaultList faults_;
};

}  // namespace

OpenSafetensors::OpenSafetensors(std::shared_ptr<const RandomAccessFile> file, const ParseLimits& limits)
    : file_(std::move(file)), header_(read_safetensors_header(*file_, limits)) {
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
  const auto found = opened_.find(name);
  if (found != opened_.end()) return found->second;
  const std::string path = path_of(name);
  DCP_CHECK(files_->file_type(path) == FileType::kFile, kCorruptData, "the file ", path, " is missing");
  try {
    // Links are followed: in the cache of a hub's client all files are links to where their bytes are kept.
    auto opened = std::make_shared<OpenSafetensors>(files_->open_file(path), limits_);
    if (opened_.size() < kMaxOpenFiles) opened_.emplace(name, opened);
    return opened;
  } catch (c10::Error& error) {
    error.add_context("while reading the header of " + path);
    throw;
  }
}

void SafetensorsFolder::close_files() {
  const std::lock_guard lock(mutex_);
  opened_.clear();
}

std::vector<std::string> SafetensorsFolder::indexed_files(const std::vector<std::string>& names) {
  const std::string path = join_path(path_, kIndex);
  try {
    index_ = decode_safetensors_index(read_whole_file(*files_, path, limits_.max_header_bytes), limits_);
  } catch (c10::Error& error) {
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
  faults.throw_if_any(path + " does not agree with its folder", DCP_WHERE);
  return {indexed.begin(), indexed.end()};
}

std::vector<std::string> SafetensorsFolder::checkpoint_files() {
  has_index_ = false;
  if (is_single_file()) return {path_.substr(path_.rfind('/') + 1)};
  const FileType type = files_->file_type(path_);
  DCP_CHECK(type != FileType::kNone, kNotFound, "incomplete checkpoint: ", path_, " does not exist");
  DCP_CHECK(type == FileType::kDirectory, kNotFound, "incomplete checkpoint: ", path_,
            " is neither a directory nor a file");
  std::vector<std::string> names = files_->list_directory(path_);
  DCP_CHECK(!std::binary_search(names.begin(), names.end(), safetensors_names::kUnfinished), kNotFound,
            "incomplete checkpoint: a save into ", path_, " did not end (", safetensors_names::kUnfinished, ")");
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
  faults.throw_if_any(join_path(path_, kIndex) + " does not agree with its folder", DCP_WHERE);
}

Metadata SafetensorsFolder::read_metadata() {
  close_files();
  PartTable parts;
  for (const std::string& name : checkpoint_files()) parts.add(name, open(name)->header());
  if (has_index_) check_index();
  return parts.finish(path_);
}

const SafetensorsTensor& SafetensorsFolder::find_part(const OpenSafetensors& opened, const Metadata& metadata,
                                                      const MetadataIndex& index) {
  const StorageInfo* info = metadata.storage_data.find(index);
  const Box* chunk = find_chunk(metadata, index);
  DCP_CHECK(info && chunk, kInternal, to_string(index), " is no stored part");
  const auto& tensor = std::get<TensorStorageMetadata>(*metadata.state_dict_metadata.find(index.fqn));
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

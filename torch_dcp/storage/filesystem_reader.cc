#include "torch_dcp/storage/filesystem_reader.h"

#include <algorithm>
#include <cctype>
#include <mutex>
#include <new>
#include <set>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "torch_dcp/base/error.h"
#include "torch_dcp/base/fault_list.h"
#include "torch_dcp/base/thread_pool.h"
#include "torch_dcp/format/metadata_pickle.h"
#include "torch_dcp/format/object_item.h"
#include "torch_dcp/format/side_file.h"
#include "torch_dcp/format/torch_archive.h"
#include "torch_dcp/io/local_file_system.h"
#include "torch_dcp/storage/file_layout_internal.h"
#include "torch_dcp/storage/item_reader_internal.h"
#include "torch_dcp/tensor/dtype.h"

namespace dcp {
namespace {

using file_layout::kMetadataName;

constexpr std::uint64_t kMaxMetadataBytes = std::uint64_t{8} << 30;

/// Data files kept open from the check to the read, so that a checkpoint that is replaced meanwhile is still read as it
/// was; a process may have 1024 open as a rule. Further ones are opened again.
constexpr std::size_t kMaxOpenFiles = 256;

/// Runs `call`; what it throws gets the place in the checkpoint added.
template <typename Call>
auto with_place(const std::string& path, const std::string& key, const Call& call) {
  try {
    return call();
  } catch (c10::Error& error) {
    error.add_context(c10::str(path, ": ", key));
    throw;
  } catch (const std::bad_alloc&) {
    DCP_THROW(kIo, path, ": ", key, ": out of memory");
  }
}

/// A save id that may be part of a file name: others come from foreign files.
bool is_plain_id(const std::string& id) {
  return !id.empty() && id.size() <= 64 &&
         std::all_of(id.begin(), id.end(), [](unsigned char c) { return std::isalnum(c) != 0 || c == '-'; });
}

std::string join(const std::set<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

}  // namespace

struct FileSystemReader::StoredTensor {
  TensorItem item;
  const StorageInfo* info = nullptr;
};

struct FileSystemReader::Opened {
  std::mutex mutex;  ///< of `files`
  std::unordered_map<std::string, std::shared_ptr<const RandomAccessFile>> files;
  std::unordered_map<MetadataIndex, StoredTensor, MetadataIndexHash> tensors;
};

FileSystemReader::FileSystemReader(std::string path, FileSystemReaderOptions options)
    : path_(std::move(path)),
      options_(std::move(options)),
      files_(options_.file_system ? options_.file_system : local_file_system()) {
  DCP_CHECK(!path_.empty(), kInvalidArgument, "a checkpoint needs a path");
}

FileSystemReader::~FileSystemReader() = default;

Metadata FileSystemReader::read_metadata_file(const std::string& name) {
  const Bytes bytes = read_whole_file(*files_, file(name), kMaxMetadataBytes);
  // Each value takes a byte or more, so that the file's size bounds them: what a save wrote a load must read.
  ParseLimits limits = options_.limits;
  limits.max_values = std::max<std::size_t>(limits.max_values, bytes.size());
  limits.max_memo_entries = std::max<std::size_t>(limits.max_memo_entries, bytes.size());
  try {
    return decode_metadata(bytes, limits);
  } catch (Error& error) {
    error.add_context(c10::str("while reading ", file(name)));
    throw;
  }
}

void FileSystemReader::apply_side_file(Metadata& metadata) {
  const auto& meta = metadata.storage_meta;
  if (!meta || !meta->save_id || !is_plain_id(*meta->save_id)) return;
  const std::string name = file(file_layout::side_file_name(*meta->save_id));
  if (files_->file_type(name) != FileType::kFile) return;
  const Bytes bytes = read_whole_file(*files_, name, options_.limits.max_header_bytes);
  try {
    const SideFile side_file = decode_side_file(bytes, options_.limits);
    DCP_CHECK(side_file.save_id == *meta->save_id, kCorruptData, "it belongs to save ", side_file.save_id, ", not to ",
              *meta->save_id);
    dcp::apply_side_file(side_file, metadata);
  } catch (Error& error) {
    error.add_context(c10::str("while reading ", name,
                               " (without this file the checkpoint loads as Python wrote it, integer keys as text)"));
    throw;
  }
}

std::optional<Metadata> FileSystemReader::read_metadata() {
  if (files_->file_type(file(std::string(kMetadataName))) == FileType::kFile) {
    has_rank_metadata_ = false;
    Metadata metadata = read_metadata_file(std::string(kMetadataName));
    apply_side_file(metadata);
    return metadata;
  }
  const FileType type = files_->file_type(path_);
  DCP_CHECK(type != FileType::kNone, kNotFound, "incomplete checkpoint: ", path_, " does not exist");
  DCP_CHECK(type == FileType::kDirectory, kNotFound, "incomplete checkpoint: ", path_, " is not a directory");
  const std::vector<std::string> names = files_->list_directory(path_);
  const bool has_rank_metadata = std::any_of(names.begin(), names.end(), [](const std::string& name) {
    return file_layout::rank_of_metadata(name).has_value();
  });
  DCP_CHECK(has_rank_metadata, kNotFound, "incomplete checkpoint: ", path_, " has no ", kMetadataName);
  return std::nullopt;
}

Metadata FileSystemReader::read_rank_metadata(int rank) {
  const std::string name = file_layout::rank_metadata_name(rank);
  DCP_CHECK(files_->file_type(file(name)) == FileType::kFile, kNotFound, "incomplete checkpoint: ", path_,
            " was saved without collectives and has no ", name);
  has_rank_metadata_ = true;
  return read_metadata_file(name);
}

void FileSystemReader::set_up(const Metadata& metadata, const StorageReaderContext& context) {
  metadata_ = &metadata;
  context_ = context;
  opened_ = std::make_unique<Opened>();
  if (!has_rank_metadata_ || !context.use_collectives) return;
  // Loading the parts of some ranks as if they were the whole would be silent and wrong.
  for (const std::string& name : files_->list_directory(path_)) {
    const std::optional<int> rank = file_layout::rank_of_metadata(name);
    DCP_CHECK(!rank || *rank < context.world_size, kUnsupported, path_, " was saved without collectives on at least ",
              *rank + 1, " ranks (", name, "); it loads on that many only, and here are ", context.world_size);
  }
}

const StorageInfo& FileSystemReader::storage_info(const MetadataIndex& index) const {
  const StorageInfo* info = metadata_->storage_data.find(index);
  DCP_CHECK(info, kCorruptData, "the metadata does not say where it is stored");
  DCP_CHECK(info->transform_descriptors.empty(), kUnsupported, "its bytes went through ",
            info->transform_descriptors.front(), ", which this reader does not undo");
  return *info;
}

std::shared_ptr<const RandomAccessFile> FileSystemReader::data_file(const StorageInfo& info) {
  if (!opened_) opened_ = std::make_unique<Opened>();
  const std::lock_guard lock(opened_->mutex);
  const auto found = opened_->files.find(info.relative_path);
  std::shared_ptr<const RandomAccessFile> opened = found == opened_->files.end() ? nullptr : found->second;
  if (!opened) {
    DCP_CHECK(files_->file_type(file(info.relative_path)) == FileType::kFile, kCorruptData, "the data file ",
              file(info.relative_path), " is missing");
    opened = files_->open_file(file(info.relative_path));
    if (opened_->files.size() < kMaxOpenFiles) opened_->files.emplace(info.relative_path, opened);
  }
  const auto end = static_cast<std::uint64_t>(info.offset) + static_cast<std::uint64_t>(info.length);
  DCP_CHECK(end <= opened->size(), kCorruptData, "the data file ", file(info.relative_path), " has ", opened->size(),
            " bytes, the item ends at ", end, ": the file was cut");
  return opened;
}

Bytes FileSystemReader::read_item(const StorageInfo& info) {
  const std::shared_ptr<const RandomAccessFile> data = data_file(info);
  DCP_CHECK(static_cast<std::uint64_t>(info.length) <= options_.limits.max_string_bytes, kCorruptData, "an object of ",
            info.length, " bytes; the limit is ", options_.limits.max_string_bytes);
  Bytes bytes(static_cast<std::size_t>(info.length));
  data->read_at(static_cast<std::uint64_t>(info.offset), bytes);
  return bytes;
}

void FileSystemReader::check_object(const ReadItem& item, LoadPlanner& planner) {
  planner.load_object(item, decode_object_item(read_item(storage_info(item.storage_index)), options_.limits));
}

void FileSystemReader::check_tensor(const ReadItem& item) {
  if (opened_->tensors.contains(item.storage_index)) return;
  StoredTensor stored;
  stored.info = &storage_info(item.storage_index);
  stored.item = open_tensor_item(*data_file(*stored.info), stored.info->offset, stored.info->length, options_.limits);
  const Box* chunk = find_chunk(*metadata_, item.storage_index);
  DCP_CHECK(chunk, kInternal, to_string(item.storage_index), " is no stored chunk");
  const auto& tensor = std::get<TensorStorageMetadata>(*metadata_->state_dict_metadata.find(item.storage_index.fqn));
  DCP_CHECK(stored.item.dtype == tensor.properties.dtype, kCorruptData, "the item holds ",
            dtype_name(stored.item.dtype), ", the metadata says ", dtype_name(tensor.properties.dtype));
  DCP_CHECK(stored.item.sizes == chunk->sizes, kCorruptData, "the item holds sizes ", to_string(stored.item.sizes),
            ", the metadata says ", to_string(chunk->sizes));
  opened_->tensors.emplace(item.storage_index, std::move(stored));
}

std::vector<const ReadItem*> FileSystemReader::in_file_order(const LoadPlan& plan) const {
  std::vector<std::pair<const StorageInfo*, const ReadItem*>> places;
  for (const ReadItem& item : plan.items) places.emplace_back(metadata_->storage_data.find(item.storage_index), &item);
  std::stable_sort(places.begin(), places.end(), [](const auto& a, const auto& b) {
    if (!a.first || !b.first) return !a.first && b.first;
    return std::tie(a.first->relative_path, a.first->offset) < std::tie(b.first->relative_path, b.first->offset);
  });
  std::vector<const ReadItem*> items;
  for (const auto& [info, item] : places) items.push_back(item);
  return items;
}

void FileSystemReader::check(const LoadPlan& plan, LoadPlanner& planner) {
  FaultList faults;
  for (const ReadItem* item : in_file_order(plan)) {
    if (context_.throw_if_cancelled) context_.throw_if_cancelled();
    try {
      item->type == ReadItemType::kByteIo ? check_object(*item, planner) : check_tensor(*item);
    } catch (...) {  // Whatever it is, it is named with all others.
      const RankFailure failure = current_failure(context_.rank);
      if (failure.kind == ErrorKind::kCancelled) throw;
      const StorageInfo* info = metadata_->storage_data.find(item->storage_index);
      faults.add(failure.kind, to_string(item->storage_index),
                 c10::str(info ? file(info->relative_path) : path_, ": ", failure.message));
    }
  }
  faults.throw_if_any("cannot load " + path_, DCP_WHERE);
}

void FileSystemReader::read_data(const LoadPlan& plan, LoadPlanner& planner) {
  std::vector<std::vector<const ReadItem*>> groups;  // by file
  const std::string* group_file = nullptr;
  for (const ReadItem* item : in_file_order(plan)) {
    if (item->type != ReadItemType::kTensor) continue;
    const std::string& name = opened_->tensors.at(item->storage_index).info->relative_path;
    if (!group_file || *group_file != name) groups.emplace_back();
    group_file = &name;
    groups.back().push_back(item);
  }
  std::mutex mutex;
  std::set<std::string> changed;
  const auto read_group = [&](std::size_t number) {
    std::shared_ptr<const RandomAccessFile> data;
    for (const ReadItem* item : groups[number]) {
      if (context_.throw_if_cancelled) context_.throw_if_cancelled();
      const StoredTensor& stored = opened_->tensors.at(item->storage_index);
      with_place(file(stored.info->relative_path), to_string(item->storage_index), [&] {
        if (!data) data = data_file(*stored.info);
        const at::Tensor destination = planner.resolve_tensor(*item);
        {
          const std::lock_guard lock(mutex);
          changed.insert(to_string(item->dest_index));
        }
        read_tensor_region(*data, stored.info->offset, stored.item, item->storage_offsets, item->lengths, destination,
                           options_.verify_checksums);
        planner.commit_tensor(*item, destination);
      });
    }
  };
  try {
    run_parallel(options_.thread_count, groups.size(), read_group);
  } catch (c10::Error& error) {
    error.add_context(
        c10::str("destinations that have been changed already: ", changed.empty() ? "none" : join(changed)));
    throw;
  }
  opened_->files.clear();
}

bool is_complete(const std::string& path, std::shared_ptr<FileSystem> file_system) {
  const std::shared_ptr<FileSystem> files = file_system ? std::move(file_system) : local_file_system();
  if (files->file_type(path) != FileType::kDirectory) return false;
  FileSystemReader reader(path, {.file_system = files});
  const auto has_all_files = [&](const Metadata& metadata) {
    std::unordered_map<std::string, std::int64_t> ends;
    for (const auto& [index, info] : metadata.storage_data) {
      std::int64_t& end = ends[info.relative_path];
      end = std::max(end, info.offset + info.length);
    }
    return std::all_of(ends.begin(), ends.end(), [&](const auto& entry) {
      const auto size = files->file_size(join_path(path, entry.first));
      return size && *size >= static_cast<std::uint64_t>(entry.second);
    });
  };
  try {
    if (const std::optional<Metadata> metadata = reader.read_metadata()) return has_all_files(*metadata);
    for (const std::string& name : files->list_directory(path)) {
      const std::optional<int> rank = file_layout::rank_of_metadata(name);
      if (rank && !has_all_files(reader.read_rank_metadata(*rank))) return false;
    }
    return true;
  } catch (const Error& error) {
    // "No" is the answer for these, not a failure of the question.
    if (error.kind() == ErrorKind::kIo) throw;
    return false;
  }
}

}  // namespace dcp

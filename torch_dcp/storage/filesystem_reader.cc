#include "torch_dcp/storage/filesystem_reader.h"

#include <algorithm>
#include <mutex>
#include <new>
#include <optional>
#include <set>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "torch_dcp/base/checked_math.h"
#include "torch_dcp/base/error.h"
#include "torch_dcp/base/fault_list.h"
#include "torch_dcp/base/thread_pool.h"
#include "torch_dcp/format/metadata_pickle.h"
#include "torch_dcp/format/object_item.h"
#include "torch_dcp/format/side_file.h"
#include "torch_dcp/format/torch_archive.h"
#include "torch_dcp/io/local_file_system.h"
#include "torch_dcp/plan/merge_metadata.h"
#include "torch_dcp/storage/file_layout_internal.h"
#include "torch_dcp/storage/item_reader_internal.h"
#include "torch_dcp/storage/item_stream_internal.h"
#include "torch_dcp/storage/read_ahead_file_internal.h"
#include "torch_dcp/storage/save_id_internal.h"
#include "torch_dcp/tensor/dtype.h"

namespace dcp {
namespace {

using file_layout::kMetadataName;

constexpr std::uint64_t kMaxMetadataBytes = std::uint64_t{8} << 30;

/// Data files kept open from the check to the read, so that a checkpoint that is replaced meanwhile is still read as it
/// was; a process may have 1024 open as a rule. Further ones are opened again.
constexpr std::size_t kMaxOpenFiles = 256;

/// What a task of a load reads at least, so that threads share one file too.
constexpr std::int64_t kTaskBytes = std::int64_t{4} << 20;

/// Runs `call`; what it throws gets the place in the checkpoint added, which `spell_place` spells.
template <typename SpellPlace, typename Call>
auto with_place(const SpellPlace& spell_place, const Call& call) {
  try {
    return call();
  } catch (c10::Error& error) {
    error.add_context(spell_place());
    throw;
  } catch (const std::bad_alloc&) {
    DCP_THROW(kIo, spell_place(), ": out of memory");
  }
}

/// Whether an item of `length` bytes can be a tensor of the usual form: cheap, and sure that such a form can be made.
bool may_have_form(c10::ScalarType dtype, const Sizes& sizes, std::int64_t length) {
  constexpr std::int64_t kMostAround = 4096;
  const auto numel = checked_numel(sizes);
  const auto bytes = numel ? checked_mul(*numel, element_bytes(dtype)) : std::nullopt;
  return bytes && !c10::isQIntType(dtype) && *bytes < length && length - *bytes < kMostAround;
}

/// Found out before anything is changed.
void check_region(const ReadItem& item, const TensorItem& stored) {
  DCP_CHECK(!stored.quantizer || c10::IntArrayRef(item.lengths) == c10::IntArrayRef(stored.sizes), kUnsupported,
            "a slice of a quantized tensor cannot be read");
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
  OrderedMap<MetadataIndex, StoredTensor, MetadataIndexHash> tensors;
  // Of the check, which is done by one thread.
  TensorItemForms forms;
  std::shared_ptr<const ReadAheadFile> ahead;
};

/// Items of one file that one thread reads, one after another.
struct FileSystemReader::ReadTask {
  std::vector<std::pair<const ReadItem*, const StoredTensor*>> items;
  std::int64_t bytes = 0;
  std::size_t begun = 0;  ///< how many of them may have changed their destination
};

FileSystemReader::FileSystemReader(std::string path, FileSystemReaderOptions options)
    : path_(std::move(path)),
      options_(std::move(options)),
      files_(options_.file_system ? options_.file_system : local_file_system()),
      transforms_(options_.transforms) {
  DCP_CHECK(!path_.empty(), kInvalidArgument, "a checkpoint needs a path");
  for (const auto& transform : transforms_) DCP_CHECK(transform, kInvalidArgument, path_, ": a transform is null");
  transforms_.push_back(zstd_transform());
}

FileSystemReader::~FileSystemReader() = default;

bool FileSystemReader::has_file(const std::string& name) {
  const FileType type = files_->file_type(file(name));
  if (type == FileType::kNone) return false;
  DCP_CHECK(type == FileType::kFile, kCorruptData, file(name), " is not a regular file");
  DCP_CHECK(options_.follow_links || files_->file_size(file(name), Links::kRefuse), kUnsupported, file(name),
            " is a symbolic link and may lead out of the checkpoint (FileSystemReaderOptions::follow_links reads it)");
  return true;
}

Metadata FileSystemReader::read_metadata_file(const std::string& name) {
  const Bytes bytes = read_whole_file(*files_, file(name), kMaxMetadataBytes, links());
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

std::optional<SideFile> FileSystemReader::read_side_file(const Metadata& metadata) {
  const auto& meta = metadata.storage_meta;
  if (!meta || !meta->save_id || !is_plain_id(*meta->save_id)) return std::nullopt;
  const std::string side_file_name = file_layout::side_file_name(*meta->save_id);
  if (!has_file(side_file_name)) return std::nullopt;
  const std::string name = file(side_file_name);
  const Bytes bytes = read_whole_file(*files_, name, options_.limits.max_header_bytes, links());
  try {
    SideFile side_file = decode_side_file(bytes, options_.limits);
    DCP_CHECK(side_file.save_id == *meta->save_id, kCorruptData, "it belongs to save ", side_file.save_id, ", not to ",
              *meta->save_id);
    return side_file;
  } catch (Error& error) {
    error.add_context(c10::str("while reading ", name,
                               " (without this file the checkpoint loads as Python wrote it, integer keys as text)"));
    throw;
  }
}

std::optional<Metadata> FileSystemReader::read_metadata() {
  std::optional<Metadata> metadata = read_plain_metadata();
  if (!metadata) return metadata;
  if (const std::optional<SideFile> side_file = read_side_file(*metadata)) apply_side_file(*side_file, *metadata);
  return metadata;
}

std::optional<Metadata> FileSystemReader::read_plain_metadata() {
  if (has_file(std::string(kMetadataName))) {
    return read_metadata_file(std::string(kMetadataName));
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

std::optional<Metadata> FileSystemReader::read_merged_metadata() {
  std::set<int> ranks;
  for (const std::string& name : files_->list_directory(path_)) {
    if (const std::optional<int> rank = file_layout::rank_of_metadata(name)) ranks.insert(*rank);
  }
  if (ranks.empty()) return std::nullopt;
  std::vector<Metadata> by_rank;
  for (const int rank : ranks) {
    // Checked before the next one is read, since a name may state any number.
    DCP_CHECK(static_cast<std::size_t>(rank) == by_rank.size(), kNotFound, "incomplete checkpoint: ", path_, " has ",
              file_layout::rank_metadata_name(rank), " but no ",
              file_layout::rank_metadata_name(static_cast<int>(by_rank.size())));
    by_rank.push_back(read_rank_metadata(rank));
  }
  try {
    return merge_rank_metadata(by_rank);
  } catch (Error& error) {
    error.add_context("in " + path_);
    throw;
  }
}

Metadata FileSystemReader::read_rank_metadata(int rank) {
  const std::string name = file_layout::rank_metadata_name(rank);
  DCP_CHECK(has_file(name), kNotFound, "incomplete checkpoint: ", path_, " was saved without collectives and has no ",
            name);
  return read_metadata_file(name);
}

void FileSystemReader::set_up(const Metadata& metadata, const StorageReaderContext& context) {
  metadata_ = &metadata;
  context_ = context;
  opened_ = std::make_unique<Opened>();
}

const StorageInfo& FileSystemReader::storage_info(const MetadataIndex& index) const {
  const StorageInfo* info = metadata_->storage_data.find(index);
  DCP_CHECK(info, kCorruptData, "the metadata does not say where it is stored");
  return *info;
}

std::shared_ptr<const RandomAccessFile> FileSystemReader::data_file(const StorageInfo& info) {
  if (!opened_) opened_ = std::make_unique<Opened>();
  const std::lock_guard lock(opened_->mutex);
  const auto found = opened_->files.find(info.relative_path);
  std::shared_ptr<const RandomAccessFile> opened = found == opened_->files.end() ? nullptr : found->second;
  if (!opened) {
    DCP_CHECK(has_file(info.relative_path), kCorruptData, "the data file ", file(info.relative_path), " is missing");
    opened = files_->open_file(file(info.relative_path), links());
    if (opened_->files.size() < kMaxOpenFiles) opened_->files.emplace(info.relative_path, opened);
  }
  const auto end = static_cast<std::uint64_t>(info.offset) + static_cast<std::uint64_t>(info.length);
  DCP_CHECK(end <= opened->size(), kCorruptData, "the data file ", file(info.relative_path), " has ", opened->size(),
            " bytes, the item ends at ", end, ": the file was cut");
  return opened;
}

Bytes FileSystemReader::read_item(const StorageInfo& info) {
  const ItemBytes item = open_object(data_file(info), info, transforms_, options_.limits);
  DCP_CHECK(static_cast<std::uint64_t>(item.length) <= options_.limits.max_string_bytes, kCorruptData, "an object of ",
            item.length, " bytes; the limit is ", options_.limits.max_string_bytes);
  Bytes bytes(static_cast<std::size_t>(item.length));
  item.file->read_at(static_cast<std::uint64_t>(item.offset), bytes);
  return bytes;
}

void FileSystemReader::check_object(const ReadItem& item, LoadPlanner& planner) {
  planner.load_object(item, decode_object_item(read_item(storage_info(item.storage_index)), options_.limits));
}

FileSystemReader::StoredTensor FileSystemReader::open_tensor(const MetadataIndex& index, const StorageInfo& info,
                                                             const ItemBytes& bytes, TensorItemForms* forms) {
  const Box* chunk = find_chunk(*metadata_, index);
  DCP_CHECK(chunk, kInternal, to_string(index), " is no stored chunk");
  const auto& tensor = std::get<TensorStorageMetadata>(*metadata_->state_dict_metadata.find(index.fqn));
  StoredTensor stored;
  stored.info = &info;
  const bool is_own = tensor.properties.newer_dtype == NewerDtype::kNone;
  if (forms && is_own && may_have_form(tensor.properties.dtype, chunk->sizes, bytes.length)) {
    std::optional<TensorItem> item =
        forms->of(tensor.properties.dtype, chunk->sizes).open(*bytes.file, bytes.offset, bytes.length);
    if (item) {
      stored.item = *std::move(item);
      return stored;
    }
  }
  stored.item = open_tensor_item(*bytes.file, bytes.offset, bytes.length, options_.limits);
  const NamedDtype held{stored.item.dtype, stored.item.newer_dtype};
  DCP_CHECK(held.dtype == tensor.properties.dtype && held.newer == tensor.properties.newer_dtype, kCorruptData,
            "the item holds ", dtype_name(held), ", the metadata says ", dtype_name(tensor.properties));
  DCP_CHECK(stored.item.sizes == chunk->sizes, kCorruptData, "the item holds sizes ", to_string(stored.item.sizes),
            ", the metadata says ", to_string(chunk->sizes));
  return stored;
}

void FileSystemReader::check_tensor(const ReadItem& item) {
  if (const StoredTensor* known = opened_->tensors.find(item.storage_index)) return check_region(item, known->item);
  const MetadataIndex& index = item.storage_index;
  const StorageInfo& info = storage_info(index);
  std::shared_ptr<const RandomAccessFile> data = data_file(info);
  if (!opened_->ahead || opened_->ahead->base() != data) {
    opened_->ahead = std::make_shared<const ReadAheadFile>(std::move(data));
  }
  StoredTensor stored =
      open_tensor(index, info, open_chunk(opened_->ahead, *metadata_, index, info, transforms_), &opened_->forms);
  check_region(item, stored.item);
  opened_->tensors.insert(index, std::move(stored));
}

std::string FileSystemReader::verify_item(const MetadataIndex& index,
                                          const std::function<void(std::int64_t)>& on_read) {
  const StorageInfo& info = storage_info(index);
  const ItemBytes bytes = index.offset ? open_chunk(data_file(info), *metadata_, index, info, transforms_)
                                       : open_object(data_file(info), info, transforms_, options_.limits);
  check_item_members(*bytes.file, bytes.offset, bytes.length, options_.limits, on_read);
  if (index.offset) {
    open_tensor(index, info, bytes, nullptr);
    return "";
  }
  const Value value = decode_object_item(read_item(info), options_.limits);
  return value.kind() == ValueKind::kOpaque ? value.as_opaque().type_name : "";
}

std::vector<const ReadItem*> FileSystemReader::in_file_order(const LoadPlan& plan) const {
  std::vector<std::pair<const StorageInfo*, const ReadItem*>> places;
  for (const ReadItem& item : plan.items) places.emplace_back(metadata_->storage_data.find(item.storage_index), &item);
  const auto is_before = [](const auto& a, const auto& b) {
    if (!a.first || !b.first) return !a.first && b.first;
    return std::tie(a.first->relative_path, a.first->offset) < std::tie(b.first->relative_path, b.first->offset);
  };
  if (!std::is_sorted(places.begin(), places.end(), is_before)) {
    std::stable_sort(places.begin(), places.end(), is_before);
  }
  std::vector<const ReadItem*> items;
  for (const auto& [info, item] : places) items.push_back(item);
  return items;
}

void FileSystemReader::check(const LoadPlan& plan, LoadPlanner& planner) {
  FaultList faults;
  opened_->tensors.reserve(plan.items.size());
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
  opened_->ahead.reset();
  faults.throw_if_any("cannot load " + path_, DCP_WHERE);
}

std::vector<FileSystemReader::ReadTask> FileSystemReader::make_tasks(const LoadPlan& plan) const {
  std::vector<ReadTask> tasks;
  for (const ReadItem* item : in_file_order(plan)) {
    if (item->type != ReadItemType::kTensor) continue;
    const StoredTensor* const known = opened_->tensors.find(item->storage_index);
    DCP_CHECK(known, kState, to_string(item->storage_index), " is read before it was checked");
    const StoredTensor& stored = *known;
    // Items that several destinations want lie side by side, and stay together.
    const auto goes_on = [&](const ReadTask& task) {
      const StoredTensor& last = *task.items.back().second;
      if (last.info == stored.info) return true;
      return last.info->relative_path == stored.info->relative_path &&
             (task.bytes < kTaskBytes || options_.thread_count == 1);
    };
    if (tasks.empty() || !goes_on(tasks.back())) tasks.emplace_back();
    tasks.back().items.emplace_back(item, &stored);
    tasks.back().bytes += stored.info->length;
  }
  return tasks;
}

void FileSystemReader::run_task(ReadTask& task, LoadPlanner& planner) {
  constexpr std::int64_t kFewestCopyBytes = std::int64_t{1} << 20;
  const auto thread_count = static_cast<std::int64_t>(std::max<std::size_t>(options_.thread_count, 1));
  const std::int64_t copy_bytes = std::max(kFewestCopyBytes, kReadCopyBytes / thread_count);
  std::shared_ptr<const RandomAccessFile> data;
  std::shared_ptr<const RandomAccessFile> ahead;
  const StorageInfo* opened = nullptr;
  ItemBytes bytes;
  for (const auto& [item, stored] : task.items) {
    if (context_.throw_if_cancelled) context_.throw_if_cancelled();
    const StorageInfo& info = *stored->info;
    with_place([&] { return c10::str(file(info.relative_path), ": ", to_string(item->storage_index)); },
               [&] {
                 if (opened != &info) bytes = {};  // before the next one is held
                 if (!data) data = data_file(info);
                 if (!ahead) ahead = std::make_shared<const ReadAheadFile>(data);
                 // Of a large item only a part may be wanted.
                 const bool is_small = info.length <= static_cast<std::int64_t>(ReadAheadFile::kSmallBytes);
                 if (!bytes.file)
                   bytes = open_chunk(is_small ? ahead : data, *metadata_, item->storage_index, info, transforms_);
                 opened = &info;
                 const at::Tensor destination = planner.resolve_tensor(*item);
                 ++task.begun;
                 read_tensor_region(*bytes.file, bytes.offset, stored->item, item->storage_offsets, item->lengths,
                                    destination, options_.verify_checksums, copy_bytes);
                 planner.commit_tensor(*item, destination);
               });
  }
}

void FileSystemReader::read_data(const LoadPlan& plan, LoadPlanner& planner) {
  std::vector<ReadTask> tasks = make_tasks(plan);
  try {
    run_parallel(options_.thread_count, tasks.size(), [&](std::size_t number) { run_task(tasks[number], planner); });
  } catch (c10::Error& error) {
    std::set<std::string> changed;
    for (const ReadTask& task : tasks) {
      for (std::size_t i = 0; i < task.begun; ++i) changed.insert(to_string(task.items[i].first->dest_index));
    }
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
      const auto size = files->file_size(join_path(path, entry.first), Links::kRefuse);
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

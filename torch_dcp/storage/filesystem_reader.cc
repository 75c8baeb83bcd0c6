#include "torch_dcp/storage/filesystem_reader.h"

#include <algorithm>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "torch_dcp/base/checked_math.h"
#include "torch_dcp/base/error.h"
#include "torch_dcp/base/fault_list.h"
#include "torch_dcp/format/metadata_pickle.h"
#include "torch_dcp/format/object_item.h"
#include "torch_dcp/format/side_file.h"
#include "torch_dcp/format/torch_archive.h"
#include "torch_dcp/io/local_file_system.h"
#include "torch_dcp/plan/merge_metadata.h"
#include "torch_dcp/storage/block_sums_internal.h"
#include "torch_dcp/storage/file_layout_internal.h"
#include "torch_dcp/storage/filesystem_reader_internal.h"
#include "torch_dcp/storage/item_stream_internal.h"
#include "torch_dcp/storage/save_id_internal.h"
#include "torch_dcp/tensor/dtype.h"

namespace dcp {
namespace {

using file_layout::kMetadataName;

constexpr std::uint64_t kMaxMetadataBytes = std::uint64_t{8} << 30;

/// Data files kept open from the check to the read, so that a checkpoint that is replaced meanwhile is still read as it
/// was; a process may have 1024 open as a rule. Further ones are opened again.
constexpr std::size_t kMaxOpenFiles = 256;

/// What the usual form of a tensor's item has around the elements, roughly.
constexpr std::int64_t kUsualFrameBytes = 2048;

/// Whether an item of `length` bytes can be a tensor of the usual form: cheap, and sure that such a form can be made.
bool may_have_form(c10::ScalarType dtype, const Sizes& sizes, std::int64_t length) {
  constexpr std::int64_t kMostAround = 4096;
  const auto numel = checked_numel(sizes);
  const auto bytes = numel ? checked_mul(*numel, element_bytes(dtype)) : std::nullopt;
  return bytes && !c10::isQIntType(dtype) && *bytes < length && length - *bytes < kMostAround;
}

}  // namespace

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
  if (options_.follow_links || files_->file_size(file(name), Links::kRefuse)) return true;
  if (files_->file_type(file(name)) == FileType::kNone) return false;  // gone since
  DCP_THROW(kUnsupported, file(name),
            " is a symbolic link and may lead out of the checkpoint (FileSystemReaderOptions::follow_links reads it)");
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
  side_file_.reset();
  if (std::optional<SideFile> side_file = read_side_file(*metadata)) {
    apply_side_file(*side_file, *metadata);
    side_file->typed_paths = {};
    side_file_ = std::make_unique<SideFile>(*std::move(side_file));
  }
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
  check_is_inside(*opened, info);
  return opened;
}

void FileSystemReader::check_is_inside(const RandomAccessFile& data, const StorageInfo& info) const {
  const auto end = static_cast<std::uint64_t>(info.offset) + static_cast<std::uint64_t>(info.length);
  DCP_CHECK(end <= data.size(), kCorruptData, "the data file ", file(info.relative_path), " has ", data.size(),
            " bytes, the item ends at ", end, ": the file was cut");
}

std::int64_t FileSystemReader::hole_bytes() const {
  constexpr std::size_t kMost = std::size_t{1} << 30;
  return static_cast<std::int64_t>(std::min(options_.merge_hole_bytes, kMost));
}

void FileSystemReader::expect_check_of(const std::vector<PlacedItem>& items) {
  opened_->expected.clear();
  const std::string* path = nullptr;
  std::vector<ByteRange>* ranges = nullptr;
  for (const auto& [info, item] : items) {
    if (!info || info->length > MergedFile::kSmallBytes) continue;
    // Of a plain tensor only what is around its elements, which are like a hole.
    const bool is_read_whole = item->type == ReadItemType::kByteIo || !info->transform_descriptors.empty();
    if (!is_read_whole && info->length > hole_bytes() + kUsualFrameBytes) continue;
    if (!path || *path != info->relative_path) {
      path = &info->relative_path;
      ranges = &opened_->expected[*path];
    }
    ranges->push_back({info->offset, info->length});
  }
}

std::shared_ptr<const RandomAccessFile> FileSystemReader::data_file_for_check(const StorageInfo& info) {
  if (opened_->merged && opened_->merged_path == info.relative_path) {
    check_is_inside(*opened_->merged, info);
  } else {
    opened_->merged =
        std::make_shared<const MergedFile>(data_file(info), opened_->expected[info.relative_path], hole_bytes());
    opened_->merged_path = info.relative_path;
  }
  return opened_->merged;
}

Bytes FileSystemReader::read_item(const StorageInfo& info) { return read_item(data_file(info), info); }

Bytes FileSystemReader::read_item(std::shared_ptr<const RandomAccessFile> file, const StorageInfo& info) {
  const ItemBytes item = open_object(std::move(file), info, transforms_, options_.limits);
  DCP_CHECK(static_cast<std::uint64_t>(item.length) <= options_.limits.max_string_bytes, kCorruptData, "an object of ",
            item.length, " bytes; the limit is ", options_.limits.max_string_bytes);
  Bytes bytes(static_cast<std::size_t>(item.length));
  item.file->read_at(static_cast<std::uint64_t>(item.offset), bytes);
  return bytes;
}

void FileSystemReader::check_object(const ReadItem& item, LoadPlanner& planner) {
  const StorageInfo& info = storage_info(item.storage_index);
  planner.load_object(item, decode_object_item(read_item(data_file_for_check(info), info), options_.limits));
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
  const MetadataIndex& index = item.storage_index;
  if (const StoredTensor* known = opened_->tensors.find(index)) return check_region(item, known->item);
  const StorageInfo& info = storage_info(index);
  StoredTensor stored = open_tensor(
      index, info, open_chunk(data_file_for_check(info), *metadata_, index, info, transforms_), &opened_->forms);
  check_region(item, stored.item);
  opened_->tensors.insert(index, std::move(stored));
}

void FileSystemReader::check_region(const ReadItem& item, const TensorItem& stored) {
  DCP_CHECK(!stored.quantizer || c10::IntArrayRef(item.lengths) == c10::IntArrayRef(stored.sizes), kUnsupported,
            "a slice of a quantized tensor cannot be read");
  if (!may_check_slice(item, stored)) return;
  prepare_slice_checks();
  if (const std::optional<ItemSums> sums = sums_of(item, stored)) check_sum_count(*sums, stored.data_bytes);
}

std::string FileSystemReader::verify_item(const MetadataIndex& index, const std::function<void(std::int64_t)>& on_read,
                                          const BlockSums* sums) {
  const StorageInfo& info = storage_info(index);
  const ItemBytes bytes = index.offset ? open_chunk(data_file(info), *metadata_, index, info, transforms_)
                                       : open_object(data_file(info), info, transforms_, options_.limits);
  check_item_members(*bytes.file, bytes.offset, bytes.length, options_.limits, on_read);
  if (index.offset) {
    const TensorItem item = open_tensor(index, info, bytes, nullptr).item;
    const std::vector<std::uint32_t>* const blocks = sums ? sums->items.find(index) : nullptr;
    if (blocks) check_sums({sums->block_bytes, blocks}, item.data_bytes, item.crc32);
    return "";
  }
  const Value value = decode_object_item(read_item(info), options_.limits);
  return value.kind() == ValueKind::kOpaque ? value.as_opaque().type_name : "";
}

std::vector<FileSystemReader::PlacedItem> FileSystemReader::in_file_order(const LoadPlan& plan) const {
  std::vector<PlacedItem> places;
  places.reserve(plan.items.size());
  for (const ReadItem& item : plan.items) places.emplace_back(metadata_->storage_data.find(item.storage_index), &item);
  const auto is_before = [](const PlacedItem& a, const PlacedItem& b) {
    if (!a.first || !b.first) return !a.first && b.first;
    return std::tie(a.first->relative_path, a.first->offset) < std::tie(b.first->relative_path, b.first->offset);
  };
  if (!std::is_sorted(places.begin(), places.end(), is_before)) {
    std::stable_sort(places.begin(), places.end(), is_before);
  }
  return places;
}

void FileSystemReader::check(const LoadPlan& plan, LoadPlanner& planner) {
  FaultList faults;
  opened_->tensors.reserve(plan.items.size());
  const std::vector<PlacedItem> items = in_file_order(plan);
  expect_check_of(items);
  for (const auto& [info, item] : items) {
    if (context_.throw_if_cancelled) context_.throw_if_cancelled();
    try {
      item->type == ReadItemType::kByteIo ? check_object(*item, planner) : check_tensor(*item);
    } catch (...) {  // Whatever it is, it is named with all others.
      const RankFailure failure = current_failure(context_.rank);
      if (failure.kind == ErrorKind::kCancelled) throw;
      faults.add(failure.kind, to_string(item->storage_index),
                 c10::str(info ? file(info->relative_path) : path_, ": ", failure.message));
    }
  }
  opened_->merged.reset();
  opened_->expected.clear();
  faults.throw_if_any("cannot load " + path_, DCP_WHERE);
}

}  // namespace dcp

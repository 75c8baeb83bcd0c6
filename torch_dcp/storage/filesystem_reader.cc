#include "torch_dcp/storage/filesystem_reader.h"

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

#include "torch_dcp/base/checked_math.h"
#include "torch_dcp/base/error.h"
#include "torch_dcp/base/fault_list.h"
#include "torch_dcp/format/object_item.h"
#include "torch_dcp/format/side_file.h"
#include "torch_dcp/format/torch_archive.h"
#include "torch_dcp/io/local_file_system.h"
#include "torch_dcp/storage/block_sums_internal.h"
#include "torch_dcp/storage/filesystem_reader_internal.h"
#include "torch_dcp/storage/item_stream_internal.h"
#include "torch_dcp/tensor/dtype.h"

namespace dcp {
namespace {

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

void FileSystemReader::set_up(const Metadata& metadata, const StorageReaderContext& context) {
  metadata_ = &metadata;
  context_ = context;
  opened_ = std::make_unique<Opened>();
}

StorageInfo FileSystemReader::storage_info(const MetadataIndex& index) const {
  std::optional<StorageInfo> info = metadata_->storage_data.find(index);
  DCP_CHECK(info, kCorruptData, "the metadata does not say where it is stored");
  return *std::move(info);
}

std::shared_ptr<const RandomAccessFile> FileSystemReader::data_file(const StorageInfo& info) {
  if (!opened_) opened_ = std::make_unique<Opened>();
  const std::lock_guard lock(opened_->mutex);
  const auto found = opened_->files.find(info.relative_path);
  std::shared_ptr<const RandomAccessFile> opened = found == opened_->files.end() ? nullptr : found->second;
  if (!opened) {
    DCP_CHECK(has_file(info.relative_path), kCorruptData, "the data file ", file(info.relative_path), " is missing");
    opened = files_->open_file(file(info.relative_path), links());
    if (opened_->files.size() < kMaxOpenFiles) {
      opened_->files.emplace(info.relative_path, opened);
    } else {
      opened_->has_opened_again = true;
    }
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
  const StorageInfo info = storage_info(item.storage_index);
  planner.load_object(item, decode_object_item(read_item(data_file_for_check(info), info), options_.limits));
}

FileSystemReader::StoredTensor FileSystemReader::open_tensor(const MetadataIndex& index, const StorageInfo& info,
                                                             const ItemBytes& bytes, TensorItemForms* forms) {
  const std::optional<Box> chunk = find_chunk(*metadata_, index);
  DCP_CHECK(chunk, kInternal, to_string(index), " is no stored chunk");
  const auto& tensor = std::get<TensorStorageMetadata>(*metadata_->state_dict_metadata.find(index.fqn));
  StoredTensor stored;
  stored.info = info;
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
  const StorageInfo info = storage_info(index);
  StoredTensor stored = open_tensor(
      index, info, open_chunk(data_file_for_check(info), *metadata_, index, info, transforms_), &opened_->forms);
  check_region(item, stored.item);
  opened_->tensors.insert(index, std::move(stored));
}

void FileSystemReader::check_region(const ReadItem& item, const TensorItem& stored) {
  DCP_CHECK(!stored.quantizer || c10::IntArrayRef(item.lengths) == c10::IntArrayRef(stored.sizes), kUnsupported,
            "a slice of a quantized tensor cannot be read");
  if (!may_check_slice(item, stored)) return;
  prepare_slice_checks(item.storage_index);
  if (const std::optional<ItemSums> sums = sums_of(item, stored)) check_sum_count(*sums, stored.data_bytes);
}

std::string FileSystemReader::verify_item(const MetadataIndex& index, const std::function<void(std::int64_t)>& on_read,
                                          const BlockSums* sums) {
  const StorageInfo info = storage_info(index);
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
  take_over_metadata_files(plan);
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
  try {
    faults.throw_if_any("cannot load " + path_, DCP_WHERE);
  } catch (const Error&) {
    throw_if_failed_by_replacement();
    throw;
  }
}

}  // namespace dcp

#include "torch_dcp/storage/safetensors_reader.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <mutex>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "torch_dcp/base/error.h"
#include "torch_dcp/base/fault_list.h"
#include "torch_dcp/base/thread_pool.h"
#include "torch_dcp/io/local_file_system.h"
#include "torch_dcp/storage/item_reader_internal.h"
#include "torch_dcp/storage/safetensors_folder_internal.h"

namespace dcp {
namespace {

/// Threads take the plan's items in portions of about so many bytes, in the order of the files.
constexpr std::int64_t kPortionBytes = std::int64_t{64} << 20;

std::int64_t bytes_of(const ReadItem& item, const StorageInfo& info, const Box& chunk) {
  const std::int64_t numel = chunk.numel();
  const std::int64_t element = numel == 0 ? 0 : info.length / numel;
  return Box{item.storage_offsets, item.lengths}.numel() * element;
}

std::string join(const std::set<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

/// The plan's tensor items in file order, cut into portions.
std::vector<std::vector<const ReadItem*>> portions_of(const LoadPlan& plan, const Metadata& metadata) {
  std::vector<std::pair<std::optional<StorageInfo>, const ReadItem*>> places;
  for (const ReadItem& item : plan.items) places.emplace_back(metadata.storage_data.find(item.storage_index), &item);
  std::stable_sort(places.begin(), places.end(), [](const auto& a, const auto& b) {
    return std::tie(a.first->relative_path, a.first->offset) < std::tie(b.first->relative_path, b.first->offset);
  });
  std::vector<std::vector<const ReadItem*>> portions;
  std::int64_t bytes = kPortionBytes;
  for (const auto& [info, item] : places) {
    if (bytes >= kPortionBytes) {
      portions.emplace_back();
      bytes = 0;
    }
    portions.back().push_back(item);
    bytes += bytes_of(*item, *info, *find_chunk(metadata, item->storage_index));
  }
  return portions;
}

}  // namespace

SafetensorsReader::SafetensorsReader(std::string path, SafetensorsReaderOptions options)
    : options_(std::move(options)),
      folder_(std::make_unique<SafetensorsFolder>(
          std::move(path), options_.file_system ? options_.file_system : local_file_system(), options_.limits)) {}

SafetensorsReader::~SafetensorsReader() = default;

const std::string& SafetensorsReader::path() const { return folder_->path(); }

std::optional<Metadata> SafetensorsReader::read_metadata() {
  Metadata metadata = folder_->read_metadata();
  has_open_files_ = true;
  return metadata;
}

void SafetensorsReader::set_up(const Metadata& metadata, const StorageReaderContext& context) {
  metadata_ = &metadata;
  context_ = context;
  // Those that the last load left are perhaps not of this checkpoint.
  if (!has_open_files_) folder_->close_files();
  has_open_files_ = false;
}

void SafetensorsReader::check(const LoadPlan& plan, LoadPlanner&) {
  FaultList faults;
  for (const ReadItem& item : plan.items) {
    if (context_.throw_if_cancelled) context_.throw_if_cancelled();
    const std::optional<StorageInfo> info = metadata_->storage_data.find(item.storage_index);
    try {
      DCP_CHECK(info && item.type == ReadItemType::kTensor, kInternal, "the plan reads what is no stored tensor");
      folder_->find_part(*folder_->open(info->relative_path), *metadata_, item.storage_index);
    } catch (...) {  // Whatever it is, it is named with all others.
      const RankFailure failure = current_failure(context_.rank);
      if (failure.kind == ErrorKind::kCancelled) throw;
      faults.add(failure.kind, to_string(item.storage_index),
                 c10::str(info ? folder_->path_of(info->relative_path) : path(), ": ", failure.message));
    }
  }
  faults.throw_if_any("cannot load " + path(), DCP_WHERE);
}

void SafetensorsReader::read_part(const Metadata& metadata, const ReadItem& item, const at::Tensor& destination) {
  const StorageInfo info = *metadata.storage_data.find(item.storage_index);
  const auto opened = folder_->open(info.relative_path);
  const SafetensorsTensor& part = folder_->find_part(*opened, metadata, item.storage_index);
  TensorItem stored;
  stored.dtype = part.dtype;
  stored.sizes = part.sizes;
  stored.strides.resize(part.sizes.size());
  std::int64_t stride = 1;
  for (std::size_t d = part.sizes.size(); d-- > 0;) {
    stored.strides[d] = stride;
    stride *= std::max<std::int64_t>(1, part.sizes[d]);
  }
  stored.data_bytes = part.byte_count;
  read_tensor_region(opened->file(), info.offset, stored, item.storage_offsets, item.lengths, destination,
                     {.verify_checksum = false});
}

void SafetensorsReader::read_data(const LoadPlan& plan, LoadPlanner& planner) {
  const std::vector<std::vector<const ReadItem*>> portions = portions_of(plan, *metadata_);
  std::mutex mutex;
  std::set<std::string> changed;
  const auto read_item = [&](const ReadItem& item) {
    const at::Tensor destination = planner.resolve_tensor(item);
    {
      const std::lock_guard lock(mutex);
      changed.insert(to_string(item.dest_index));
    }
    read_part(*metadata_, item, destination);
    planner.commit_tensor(item, destination);
  };
  const auto read_portion = [&](std::size_t number) {
    for (const ReadItem* item : portions[number]) {
      if (context_.throw_if_cancelled) context_.throw_if_cancelled();
      try {
        read_item(*item);
      } catch (c10::Error& error) {
        const StorageInfo info = *metadata_->storage_data.find(item->storage_index);
        error.add_context(c10::str(folder_->path_of(info.relative_path), ": ", to_string(item->storage_index)));
        throw;
      }
    }
  };
  try {
    run_parallel(options_.thread_count, portions.size(), read_portion);
  } catch (c10::Error& error) {
    error.add_context(
        c10::str("destinations that have been changed already: ", changed.empty() ? "none" : join(changed)));
    throw;
  }
}

at::Tensor SafetensorsReader::read_tensor(const Metadata& metadata, const std::string& name) {
  const StorageMetadata* entry = metadata.state_dict_metadata.find(name);
  const auto* stored = entry ? std::get_if<TensorStorageMetadata>(entry) : nullptr;
  DCP_CHECK(stored, kKey, path(), ": there is no tensor '", name, "'");
  const at::Tensor tensor = at::empty(stored->size, at::TensorOptions(stored->properties.dtype));
  for (std::size_t i = 0; i < stored->chunks.size(); ++i) {
    const Box& chunk = stored->chunks[i];
    ReadItem item;
    item.type = ReadItemType::kTensor;
    item.storage_index = {name, chunk.offsets, static_cast<std::int64_t>(i)};
    item.storage_offsets = Sizes(chunk.ndim(), 0);
    item.lengths = chunk.sizes;
    at::Tensor part = tensor;
    for (std::size_t d = 0; d < chunk.ndim(); ++d) {
      part = part.narrow(static_cast<std::int64_t>(d), chunk.offsets[d], chunk.sizes[d]);
    }
    try {
      read_part(metadata, item, part);
    } catch (c10::Error& error) {
      error.add_context(c10::str(path(), ": ", to_string(item.storage_index)));
      throw;
    }
  }
  return tensor;
}

}  // namespace dcp

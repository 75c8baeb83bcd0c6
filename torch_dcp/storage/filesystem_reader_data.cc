#include <algorithm>
#include <new>
#include <set>
#include <utility>

#include "torch_dcp/base/error.h"
#include "torch_dcp/base/thread_pool.h"
#include "torch_dcp/format/side_file.h"
#include "torch_dcp/storage/block_sums_internal.h"
#include "torch_dcp/storage/file_layout_internal.h"
#include "torch_dcp/storage/filesystem_reader_internal.h"
#include "torch_dcp/storage/item_reader_internal.h"
#include "torch_dcp/storage/item_stream_internal.h"
#include "torch_dcp/tensor/dtype.h"

namespace dcp {
namespace {

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

/// What `read` gives, unless its file has just gone with a checkpoint that is being replaced, whose open data files are
/// still good.
template <typename Read>
std::optional<SideFile> unless_gone(const Read& read) {
  try {
    return read();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kNotFound) throw;
    return std::nullopt;
  }
}

std::string join(const std::set<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

}  // namespace

bool FileSystemReader::may_check_slice(const ReadItem& item, const TensorItem& stored) const {
  if (stored.data_bytes <= kSumBlockBytes || stored.sizes == item.lengths || !stored.is_plain_contiguous())
    return false;
  if (!options_.verify_checksums || options_.verify_slices == VerifySlices::kOff) return false;
  std::int64_t stride = element_bytes(stored.dtype);
  std::int64_t begin = stored.storage_offset * stride;  // of the slice's first byte among the elements
  std::int64_t span = stride;                           // from there to its last one
  for (std::size_t d = stored.sizes.size(); d-- > 0;) {
    if (item.lengths[d] == 0) return false;
    begin += item.storage_offsets[d] * stride;
    span += (item.lengths[d] - 1) * stride;
    stride *= stored.sizes[d];
  }
  if (options_.verify_slices == VerifySlices::kWholeBlocks) return true;
  // Larger blocks begin and end where these do.
  const std::int64_t first_block = (begin + kSumBlockBytes - 1) / kSumBlockBytes * kSumBlockBytes;
  return first_block < stored.data_bytes && std::min(first_block + kSumBlockBytes, stored.data_bytes) <= begin + span;
}

std::optional<int> FileSystemReader::rank_of_part(const MetadataIndex& index) const {
  const std::optional<int> rank = file_layout::rank_of_data_file(storage_info(index).relative_path);
  return rank && metadata_files_.contains(file_layout::rank_metadata_name(*rank)) ? rank : std::nullopt;
}

const BlockSums* FileSystemReader::block_sums_for(const MetadataIndex& index) const {
  const std::optional<int> rank = rank_of_part(index);
  if (!rank) return side_file_ ? &side_file_->block_sums : nullptr;
  const auto found = opened_->rank_sums.find(*rank);
  return found == opened_->rank_sums.end() ? nullptr : found->second.get();
}

void FileSystemReader::prepare_slice_checks(const MetadataIndex& index) {
  const std::optional<int> rank = rank_of_part(index);
  if (!rank) return prepare_side_file();
  const auto [place, is_new] = opened_->rank_sums.try_emplace(*rank);
  if (!is_new) return;
  const std::string& save_id = metadata_files_.at(file_layout::rank_metadata_name(*rank)).save_id;
  std::optional<SideFile> side_file = unless_gone([&] { return read_side_file(save_id, rank); });
  if (!side_file) return;
  place->second = std::make_unique<const BlockSums>(std::move(side_file->block_sums));
  opened_->checks_slices = true;
}

void FileSystemReader::prepare_side_file() {
  if (std::exchange(opened_->has_looked_for_sums, true)) return;
  const auto& meta = metadata_->storage_meta;
  if (!side_file_ || !meta || meta->save_id != side_file_->save_id) {
    std::optional<SideFile> side_file = unless_gone([&] { return read_side_file(*metadata_); });
    side_file_ = side_file ? std::make_unique<SideFile>(*std::move(side_file)) : nullptr;
  }
  opened_->checks_slices = opened_->checks_slices || side_file_ != nullptr;
}

std::optional<ItemSums> FileSystemReader::sums_of(const ReadItem& item, const TensorItem& stored) const {
  if (!opened_->checks_slices || !may_check_slice(item, stored)) return std::nullopt;
  const BlockSums* const block_sums = block_sums_for(item.storage_index);
  const std::vector<std::uint32_t>* const sums = block_sums ? block_sums->items.find(item.storage_index) : nullptr;
  if (!sums) return std::nullopt;
  return ItemSums{block_sums->block_bytes, sums, options_.verify_slices == VerifySlices::kWholeBlocks};
}

std::vector<FileSystemReader::ReadTask> FileSystemReader::make_tasks(const LoadPlan& plan) const {
  std::vector<ReadTask> tasks;
  for (const auto& [info, item] : in_file_order(plan)) {
    if (item->type != ReadItemType::kTensor) continue;
    const StoredTensor* const known = opened_->tensors.find(item->storage_index);
    DCP_CHECK(known, kState, to_string(item->storage_index), " is read before it was checked");
    const StoredTensor& stored = *known;
    // Items that several destinations want lie side by side, and stay together.
    const auto goes_on = [&](const ReadTask& task) {
      const StoredTensor& last = *task.items.back().second;
      if (&last == &stored) return true;
      return last.info.relative_path == stored.info.relative_path &&
             (task.bytes < kTaskBytes || options_.thread_count == 1);
    };
    if (tasks.empty() || !goes_on(tasks.back())) tasks.emplace_back();
    tasks.back().items.emplace_back(item, &stored);
    tasks.back().bytes += stored.info.length;
  }
  return tasks;
}

std::size_t FileSystemReader::count_in_pass(const ReadTask& task, std::size_t first) const {
  // Otherwise each is read by itself, and no destination is had before its turn.
  if (options_.verify_slices != VerifySlices::kWholeBlocks) return 1;
  std::size_t count = 1;
  while (first + count < task.items.size() && task.items[first + count].second == task.items[first].second) ++count;
  return count;
}

void FileSystemReader::run_task(ReadTask& task, LoadPlanner& planner) {
  constexpr std::int64_t kFewestCopyBytes = std::int64_t{1} << 20;
  const auto thread_count = static_cast<std::int64_t>(std::max<std::size_t>(options_.thread_count, 1));
  RegionReadOptions options;
  options.verify_checksum = options_.verify_checksums;
  options.copy_bytes = std::max(kFewestCopyBytes, kReadCopyBytes / thread_count);
  options.max_hole_bytes = hole_bytes();
  std::shared_ptr<const RandomAccessFile> data;
  std::shared_ptr<const RandomAccessFile> merged;
  const StoredTensor* opened = nullptr;
  ItemBytes bytes;
  for (std::size_t first = 0, count = 1; first < task.items.size(); first += count) {
    if (context_.throw_if_cancelled) context_.throw_if_cancelled();
    const auto& [item, stored] = task.items[first];
    const StorageInfo& info = stored->info;
    count = count_in_pass(task, first);
    with_place([&] { return c10::str(file(info.relative_path), ": ", to_string(item->storage_index)); },
               [&] {
                 if (opened != stored) bytes = {};  // before the next one is held
                 if (!data) data = data_file(info);
                 if (!merged) merged = std::make_shared<const MergedFile>(data, task.small_ranges(), hole_bytes());
                 if (!bytes.file) {
                   bytes = open_chunk(ReadTask::is_small(info) ? merged : data, *metadata_, item->storage_index, info,
                                      transforms_);
                 }
                 opened = stored;
                 read_slices(task, first, count, bytes, planner, options);
               });
  }
}

void FileSystemReader::read_slices(ReadTask& task, std::size_t first, std::size_t count, const ItemBytes& bytes,
                                   LoadPlanner& planner, RegionReadOptions& options) {
  const TensorItem& stored = task.items[first].second->item;
  std::vector<WantedRegion> regions;
  options.sums.reset();
  for (std::size_t i = first; i < first + count; ++i) {
    const ReadItem& item = *task.items[i].first;
    regions.push_back({item.storage_offsets, item.lengths, planner.resolve_tensor(item)});
    if (!options.sums) options.sums = sums_of(item, stored);
  }
  const bool is_one_pass = count > 1 && options.sums;
  if (is_one_pass) {
    task.begun += count;
    read_tensor_regions(*bytes.file, bytes.offset, stored, regions, options);
  }
  for (std::size_t i = 0; i < count; ++i) {
    const WantedRegion& region = regions[i];
    if (!is_one_pass) {
      ++task.begun;
      read_tensor_region(*bytes.file, bytes.offset, stored, region.begin, region.lengths, region.destination, options);
    }
    planner.commit_tensor(*task.items[first + i].first, region.destination);
  }
}

void FileSystemReader::read_data(const LoadPlan& plan, LoadPlanner& planner) {
  std::vector<ReadTask> tasks = make_tasks(plan);
  const auto describe_changed = [&tasks] {
    std::set<std::string> changed;
    for (const ReadTask& task : tasks) {
      for (std::size_t i = 0; i < task.begun; ++i) changed.insert(to_string(task.items[i].first->dest_index));
    }
    return c10::str("destinations that have been changed already: ", changed.empty() ? "none" : join(changed));
  };
  try {
    try {
      run_parallel(options_.thread_count, tasks.size(), [&](std::size_t number) { run_task(tasks[number], planner); });
    } catch (const c10::Error&) {
      throw_if_failed_by_replacement();
      throw;
    }
    if (opened_->has_opened_again) throw_if_replaced("what was read of it may be the other's");
  } catch (c10::Error& error) {
    error.add_context(describe_changed());
    throw;
  } catch (...) {
    // A planner may throw anything.
    const RankFailure failure = current_failure(context_.rank);
    Error error(failure.kind, failure.message, DCP_WHERE);
    error.add_context(describe_changed());
    throw error;
  }
  opened_->files.clear();
}

}  // namespace dcp

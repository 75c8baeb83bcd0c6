// How a checkpoint is committed.
//
//   1. every rank        makes the directory; the coordinator lists what a commit will replace, and
//                        gives the new data files names that none of the old ones has
//   2. every rank        writes its data files: create, append, sync, close; then syncs the directory
//   3. coordinator       writes the side file the same way (without collectives each rank its own, if it has
//                        something to say)
//   4. coordinator       .metadata.tmp: create, append, sync, close
//   5. coordinator       renames it to .metadata         <- the only commit point
//   6. coordinator       syncs the directory
//   7. coordinator       removes what was replaced
//
// A crash before 5 leaves the old checkpoint and files that no metadata names; the next save
// removes them in its step 7. A crash between 5 and 6 leaves exactly the old or the new one,
// each with all its files.

#include "torch_dcp/storage/filesystem_writer.h"

#include <algorithm>
#include <optional>
#include <unordered_set>
#include <utility>

#include "torch_dcp/base/error.h"
#include "torch_dcp/base/thread_pool.h"
#include "torch_dcp/format/metadata_pickle.h"
#include "torch_dcp/format/side_file.h"
#include "torch_dcp/io/atomic_write.h"
#include "torch_dcp/io/local_file_system.h"
#include "torch_dcp/storage/block_sums_internal.h"
#include "torch_dcp/storage/file_layout_internal.h"
#include "torch_dcp/storage/gathering_file_internal.h"
#include "torch_dcp/storage/item_stream_internal.h"
#include "torch_dcp/storage/item_writer_internal.h"
#include "torch_dcp/storage/save_id_internal.h"

namespace dcp {
namespace {

using file_layout::kMetadataName;

/// Files of one rank that are written past the page cache at once.
constexpr std::size_t kMaxDirectFiles = 4;

bool is_metadata(const std::string& name) {
  return name == kMetadataName || file_layout::rank_of_metadata(name).has_value();
}

/// Every chunk and object of the metadata must have been written exactly once.
void check_every_item_is_written(const Metadata& metadata) {
  std::size_t expected = 0;
  for (const auto& [fqn, entry] : metadata.state_dict_metadata) {
    if (const auto* tensor = std::get_if<TensorStorageMetadata>(&entry)) {
      for (const Box& chunk : tensor->chunks) {
        DCP_CHECK(metadata.storage_data.contains({fqn, chunk.offsets, {}}), kInternal, fqn, ": chunk ",
                  to_string(chunk), " was planned but not written");
      }
      expected += tensor->chunks.size();
    } else {
      DCP_CHECK(metadata.storage_data.contains({fqn, {}, {}}), kInternal, fqn, " was planned but not written");
      ++expected;
    }
  }
  DCP_CHECK(metadata.storage_data.size() == expected, kInternal, metadata.storage_data.size(), " items were written, ",
            expected, " were planned");
}

}  // namespace

FileSystemWriter::FileSystemWriter(std::string path, FileSystemWriterOptions options)
    : path_(std::move(path)),
      options_(std::move(options)),
      files_(options_.file_system ? options_.file_system : local_file_system()) {
  DCP_CHECK(!path_.empty(), kInvalidArgument, "a checkpoint needs a path");
  DCP_CHECK(options_.thread_count > 0, kInvalidArgument, path_, ": thread_count must be at least 1");
  for (const auto& transform : options_.transforms) {
    DCP_CHECK(transform, kInvalidArgument, path_, ": a transform is null");
  }
  DCP_CHECK(options_.transforms.size() <= kMaxTransforms, kUnsupported, path_, ": ", options_.transforms.size(),
            " transforms; readers undo at most ", kMaxTransforms);
}

FileSystemWriter::~FileSystemWriter() = default;

void FileSystemWriter::set_up(const StorageWriterContext& context) {
  context_ = context;
  save_id_ = make_save_id();
  new_directories_.clear();
  written_.clear();
  replaced_.clear();
  kept_.clear();
  warnings_.clear();
  may_have_committed_ = false;
}

StorageMeta FileSystemWriter::storage_meta() const { return {path_, save_id_, std::nullopt}; }

std::string FileSystemWriter::metadata_name() const {
  return context_.use_collectives ? std::string(kMetadataName) : file_layout::rank_metadata_name(context_.rank);
}

SavePlan FileSystemWriter::prepare_local_plan(SavePlan plan) {
  new_directories_ = files_->create_directories(path_);
  if (!options_.overwrite) {
    for (const std::string& name : find_replaced()) {
      DCP_CHECK(!is_metadata(name), kAlreadyExists, path_, ": there is a checkpoint already (", name,
                "), and overwriting is off");
    }
  }
  // A loader looks for `.metadata` first, so a checkpoint of single ranks beside one would never be found.
  DCP_CHECK(context_.use_collectives || files_->file_type(file(kMetadataName)) == FileType::kNone, kAlreadyExists,
            path_, ": there is a checkpoint saved with collectives; one saved without them needs another directory");
  return plan;
}

std::vector<std::string> FileSystemWriter::find_replaced() {
  std::vector<std::string> names;
  const std::string mine = c10::str("__", context_.rank);
  for (std::string& name : files_->list_directory(path_)) {
    const bool is_mine = name.starts_with(mine + "_") || name.starts_with(mine + ".");
    if (file_layout::is_checkpoint_file(name) && (context_.use_collectives || is_mine))
      names.push_back(std::move(name));
  }
  return names;
}

void FileSystemWriter::revoke_replaced() {
  // Metadata first, durably: after that no loader can meet old metadata beside missing data. Of these `.metadata` goes
  // last: without it a loader would take what single ranks saved before it.
  const auto data = std::stable_partition(replaced_.begin(), replaced_.end(), is_metadata);
  std::stable_partition(replaced_.begin(), data, [](const std::string& name) { return name != kMetadataName; });
  for (auto name = replaced_.begin(); name != data; ++name) files_->remove_file(file(*name));
  if (options_.sync_files && data != replaced_.begin()) files_->sync_directory(path_);
  for (auto name = data; name != replaced_.end(); ++name) files_->remove_file(file(*name));
  replaced_.clear();
}

std::vector<SavePlan> FileSystemWriter::prepare_global_plan(std::vector<SavePlan> plans) {
  replaced_ = find_replaced();
  if (options_.overwrite_form == OverwriteForm::kRevokeFirst) revoke_replaced();
  // Where nothing can be in the way, files have the names that PyTorch gives them.
  const std::string tag = replaced_.empty() ? std::string() : save_id_.substr(0, 8);
  for (SavePlan& plan : plans) plan.storage_data = tag;
  return plans;
}

std::vector<WriteResult> FileSystemWriter::write_file(const SavePlan& plan, const SavePlanner& planner,
                                                      std::size_t number, const std::vector<std::size_t>& items) {
  const std::string name = file_layout::data_file_name(context_.rank, number, plan.storage_data);
  // Exclusive: whatever has this name already is not ours to overwrite.
  GatheringFile out(files_->create_file(file(name), /*exclusive=*/true));
  written_[number] = name;
  out.set_early_write_back(options_.sync_files);
  // Each such file has buffers of 8 MiB.
  out.set_direct_writes(options_.sync_files && options_.thread_count <= kMaxDirectFiles);
  constexpr std::int64_t kFewestCopyBytes = std::int64_t{1} << 20;
  const auto thread_count = static_cast<std::int64_t>(options_.thread_count);
  ItemWriter writer(planner, options_.checksums, std::max(kFewestCopyBytes, kWriteCopyBytes / thread_count));
  const std::vector<std::string> descriptors = descriptors_of(options_.transforms);
  std::vector<WriteResult> results;
  results.reserve(items.size());
  for (const std::size_t position : items) {
    if (context_.throw_if_cancelled) context_.throw_if_cancelled();
    const WriteItem& item = plan.items[position];
    const auto begin = static_cast<std::int64_t>(out.size());
    std::vector<std::uint32_t> block_sums;
    try {
      if (options_.transforms.empty()) {
        block_sums = writer.write(out, item);
      } else {
        TransformedItem transformed(out, options_.transforms);
        block_sums = writer.write(transformed, item);
        transformed.finish();
        const auto stored_bytes = static_cast<std::int64_t>(out.size()) - begin;
        DCP_CHECK(item.type != WriteItemType::kByteIo ||
                      static_cast<std::int64_t>(transformed.size()) <= most_object_bytes(stored_bytes),
                  kUnsupported, "an object of ", transformed.size(), " bytes becomes ", stored_bytes,
                  " by its transforms, which readers refuse as made to exhaust memory: save it without transforms");
      }
    } catch (c10::Error& error) {
      error.add_context(
          c10::str("while writing ", to_string(item.index), " (or smaller items before it) to ", file(name)));
      throw;
    }
    const std::int64_t length = static_cast<std::int64_t>(out.size()) - begin;
    results.push_back({item.index, length, {name, begin, length, descriptors}, std::move(block_sums)});
  }
  try {
    out.flush();
  } catch (c10::Error& error) {
    error.add_context(c10::str("while writing items up to ", to_string(results.back().index), " to ", file(name)));
    throw;
  }
  if (options_.sync_files) out.sync();
  out.close();
  return results;
}

std::vector<WriteResult> FileSystemWriter::write_data(const SavePlan& plan, const SavePlanner& planner) {
  std::vector<std::vector<std::size_t>> bins;
  if (options_.single_file_per_rank) {
    bins = file_layout::split_into_bins(plan, options_.thread_count);
    std::erase_if(bins, [](const auto& bin) { return bin.empty(); });
  } else {
    for (std::size_t i = 0; i < plan.items.size(); ++i) bins.push_back({i});
  }
  written_.assign(bins.size(), {});
  std::vector<std::vector<WriteResult>> results(bins.size());
  run_parallel(options_.thread_count, bins.size(),
               [&](std::size_t i) { results[i] = write_file(plan, planner, i, bins[i]); });
  if (options_.sync_files) {
    if (!bins.empty()) files_->sync_directory(path_);
    // The names of directories made for this checkpoint must outlive a power cut as well, also on a rank that
    // has nothing to write.
    for (auto made = new_directories_.rbegin(); made != new_directories_.rend(); ++made) files_->sync_directory(*made);
  }
  std::vector<WriteResult> all;
  all.reserve(plan.items.size());
  for (auto& part : results) std::move(part.begin(), part.end(), std::back_inserter(all));
  return all;
}

Metadata FileSystemWriter::finish(Metadata metadata, const std::vector<std::vector<WriteResult>>& results) {
  for (const std::vector<WriteResult>& rank_results : results) {
    for (const WriteResult& result : rank_results) {
      DCP_CHECK(metadata.storage_data.insert(result.index, result.storage), kInternal, to_string(result.index),
                " was written twice");
    }
  }
  metadata.storage_data.shrink_to_fit();
  check_every_item_is_written(metadata);

  kept_ = {metadata_name()};
  for (const auto& [index, info] : metadata.storage_data) {
    if (kept_.back() != info.relative_path) kept_.push_back(info.relative_path);
  }
  const Bytes bytes = encode_metadata(metadata);
  write_side_file(metadata, gather_block_sums(results, metadata));
  write_metadata(bytes);
  return metadata;
}

void FileSystemWriter::write_side_file(const Metadata& metadata, BlockSums block_sums) {
  constexpr std::size_t kMostBytes = ParseLimits().max_header_bytes;
  const std::optional<int> part = context_.use_collectives ? std::nullopt : std::optional(context_.rank);
  const std::string name = file_layout::side_file_name(save_id_, part);
  SideFile side_file = make_side_file(metadata);
  side_file.block_sums = std::move(block_sums);
  // One for each rank would be many files without a word in them.
  if (part && side_file.typed_paths.empty() && side_file.block_sums.items.empty()) return;
  Bytes bytes = encode_side_file(side_file);
  if (bytes.size() > kMostBytes) {
    side_file.block_sums = {};  // No load needs them.
    bytes = encode_side_file(side_file);
  }
  // No load would take it.
  DCP_CHECK(bytes.size() <= kMostBytes, kUnsupported, "paths with integer keys take ", bytes.size(),
            " bytes in the side file; the limit is ", kMostBytes);
  written_.push_back(name);
  atomic_write(*files_, path_, name, bytes, options_.sync_files);
  kept_.push_back(name);
}

void FileSystemWriter::write_metadata(ByteSpan bytes) {
  AtomicFile out(files_, file(metadata_name()), options_.sync_files);
  try {
    out.file().append(bytes);
    out.commit();
    may_have_committed_ = true;
  } catch (...) {
    may_have_committed_ = out.may_be_in_place();
    throw;
  }
}

void FileSystemWriter::committed() noexcept {
  may_have_committed_ = true;
  try {
    const std::unordered_set<std::string> kept(kept_.begin(), kept_.end());
    for (const std::string& name : replaced_) {
      if (kept.contains(name)) continue;
      try {
        files_->remove_file(file(name));
      } catch (...) {  // Whatever a file system of the program's throws.
        // The checkpoint is whole all the same; the next save removes the file.
        const RankFailure failure = current_failure(context_.rank);
        if (failure.kind != ErrorKind::kNotFound) warnings_.push_back(failure.message);
      }
    }
  } catch (const std::exception& error) {
    warnings_.emplace_back(error.what());
  }
}

void FileSystemWriter::abort() noexcept {
  if (may_have_committed_) return;
  for (const std::string& name : written_) {
    if (name.empty()) continue;
    try {
      files_->remove_file(file(name));
    } catch (...) {  // Whatever a file system of the program's throws.
      // No metadata names the file; the next save removes it.
      const RankFailure failure = current_failure(context_.rank);
      if (failure.kind != ErrorKind::kNotFound) warnings_.push_back(failure.message);
    }
  }
  written_.clear();
}

}  // namespace dcp

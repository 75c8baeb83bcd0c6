#include "torch_dcp/storage/safetensors_writer.h"

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <unordered_map>
#include <utility>

#include "torch_dcp/base/error.h"
#include "torch_dcp/base/fault_list.h"
#include "torch_dcp/base/thread_pool.h"
#include "torch_dcp/format/safetensors.h"
#include "torch_dcp/format/safetensors_index.h"
#include "torch_dcp/io/local_file_system.h"
#include "torch_dcp/plan/validate.h"
#include "torch_dcp/storage/consolidate.h"
#include "torch_dcp/storage/safetensors_commit_internal.h"
#include "torch_dcp/storage/safetensors_file_writer.h"
#include "torch_dcp/storage/safetensors_names_internal.h"
#include "torch_dcp/storage/safetensors_stamp_internal.h"
#include "torch_dcp/storage/save_id_internal.h"
#include "torch_dcp/tensor/dtype.h"

namespace dcp {
namespace {

constexpr std::int64_t kOnlyFile = 1;

/// What the ranks together are about to write of one tensor.
struct Planned {
  TensorStorageMetadata tensor;
  std::set<std::size_t> ranks;
};

std::map<std::string, Planned> planned_tensors(const std::vector<SavePlan>& plans, FaultList& faults) {
  std::map<std::string, Planned> tensors;
  for (std::size_t rank = 0; rank < plans.size(); ++rank) {
    for (const WriteItem& item : plans[rank].items) {
      Planned& planned = tensors[item.index.fqn];
      planned.tensor.size = item.size;
      planned.tensor.chunks.push_back(item.chunk);
      if (!planned.ranks.insert(rank).second) {
        faults.add(ErrorKind::kUnsupported, item.index.fqn,
                   c10::str("rank ", rank, " has several parts of it, and a safetensors file can hold one"));
      }
    }
  }
  return tensors;
}

/// A file of whole tensors is one rank's work.
void check_whole(const std::vector<SavePlan>& plans, const std::function<std::int64_t(const std::string&)>& file_of,
                 FaultList& faults) {
  std::map<std::int64_t, std::size_t> ranks;  // by file
  for (std::size_t rank = 0; rank < plans.size(); ++rank) {
    for (const WriteItem& item : plans[rank].items) {
      const std::string& key = item.index.fqn;
      if (item.chunk != whole_box(item.size)) {
        faults.add(ErrorKind::kInvalidArgument, key,
                   c10::str("rank ", rank, " holds ", to_string(item.chunk), " of ", to_string(item.size),
                            ": parts of tensors need save_distributed"));
      }
      const auto [place, is_new] = ranks.try_emplace(file_of(key), rank);
      if (!is_new && place->second != rank) {
        faults.add(ErrorKind::kInvalidArgument, key,
                   c10::str("ranks ", place->second, " and ", rank, " both have tensors for file ", place->first,
                            ": save on one rank, or with save_distributed (enable_consolidation makes whole files)"));
      }
    }
  }
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(std::string path, SafetensorsWriterOptions options)
    : path_(std::move(path)),
      options_(std::move(options)),
      files_(options_.file_system ? options_.file_system : local_file_system()) {
  DCP_CHECK(!path_.empty(), kInvalidArgument, "a checkpoint needs a path");
  DCP_CHECK(options_.thread_count > 0 && options_.thread_count_consolidation > 0, kInvalidArgument, path_,
            ": thread_count must be at least 1");
  DCP_CHECK(options_.save_distributed || !options_.enable_consolidation, kInvalidArgument, path_,
            ": enable_consolidation needs save_distributed");
  for (const auto& [key, number] : options_.fqn_to_index_mapping) {
    DCP_CHECK(number >= 1, kInvalidArgument, path_, ": '", key, "' is mapped to file ", number,
              ", and files count from 1");
  }
  directory_ = options_.enable_consolidation ? join_path(path_, safetensors_names::kShardedFolder) : path_;
}

SafetensorsWriter::~SafetensorsWriter() = default;

void SafetensorsWriter::set_up(const StorageWriterContext& context) {
  DCP_CHECK(context.use_collectives || !options_.save_distributed, kUnsupported, path_,
            ": save_distributed needs collectives");
  DCP_CHECK(context.use_collectives || context.rank == 0, kUnsupported, path_, ": without collectives rank ",
            context.rank, " would write the files that rank 0 writes too");
  context_ = context;
  save_id_ = make_save_id();
  file_count_ = 0;
  new_directories_.clear();
  written_.clear();
  warnings_.clear();
}

StorageMeta SafetensorsWriter::storage_meta() const { return {path_, save_id_, std::nullopt}; }

std::optional<std::int64_t> SafetensorsWriter::file_number(const std::string& key) const {
  if (options_.fqn_to_index_mapping.empty()) return kOnlyFile;
  const std::int64_t* number = options_.fqn_to_index_mapping.find(key);
  return number ? std::optional(*number) : std::nullopt;
}

std::int64_t SafetensorsWriter::largest_number() const {
  std::int64_t largest = kOnlyFile;
  for (const auto& [key, number] : options_.fqn_to_index_mapping) largest = std::max(largest, number);
  return largest;
}

std::string SafetensorsWriter::file_name(std::int64_t number) const {
  std::optional<std::int64_t> shard;
  if (options_.save_distributed) shard = context_.rank + 1;
  return safetensors_names::data_file_name(number, largest_number(), shard);
}

SavePlan SafetensorsWriter::prepare_local_plan(SavePlan plan) {
  FaultList faults;
  for (const WriteItem& item : plan.items) {
    const std::string& key = item.index.fqn;
    if (!item.is_tensor()) {
      faults.add(ErrorKind::kUnsupported, key, "an object; safetensors hold tensors only");
    } else if (!safetensors_dtype(item.properties.dtype)) {
      faults.add(ErrorKind::kUnsupported, key, "safetensors have no dtype " + dtype_name(item.properties.dtype));
    } else if (!file_number(key)) {
      faults.add(ErrorKind::kKey, key, "fqn_to_index_mapping does not name a file for it");
    }
  }
  faults.throw_if_any("cannot save to " + path_, DCP_WHERE);
  new_directories_ = files_->create_directories(directory_);
  folder(path_).check_directory();
  if (directory_ != path_) folder(directory_).check_directory();
  return plan;
}

SafetensorsCommit SafetensorsWriter::folder(const std::string& directory) const {
  // Shards that are going to be put together may always be replaced.
  return {*files_, directory, save_id_, options_.overwrite || directory != path_, options_.sync_files};
}

std::int64_t SafetensorsWriter::count_files(const std::vector<SavePlan>& plans) const {
  std::int64_t count = 0;
  for (const SavePlan& plan : plans) {
    std::set<std::int64_t> numbers;
    for (const WriteItem& item : plan.items) numbers.insert(*file_number(item.index.fqn));
    count += static_cast<std::int64_t>(numbers.size());
  }
  return std::max<std::int64_t>(1, count);  // without tensors, one that says so
}

std::vector<SavePlan> SafetensorsWriter::prepare_global_plan(std::vector<SavePlan> plans) {
  FaultList faults;
  if (options_.save_distributed) {
    for (const auto& [key, planned] : planned_tensors(plans, faults)) {
      const auto fault = find_chunk_fault(planned.tensor, /*must_cover=*/true);
      if (fault) faults.add(ErrorKind::kInvalidArgument, key, *fault);
    }
  } else {
    check_whole(plans, [this](const std::string& key) { return *file_number(key); }, faults);
  }
  faults.throw_if_any("cannot save to " + path_, DCP_WHERE);
  folder(directory_).remove_leftovers();
  if (directory_ != path_) folder(path_).remove_leftovers();
  const std::string stamp = encode_stamp({save_id_, count_files(plans)});
  for (SavePlan& plan : plans) plan.storage_data = stamp;
  return plans;
}

std::vector<WriteResult> SafetensorsWriter::write_file(const SavePlan& plan, const SavePlanner& planner,
                                                       const std::string& name, const std::vector<std::size_t>& items) {
  std::vector<SafetensorsSpec> specs;
  std::unordered_map<std::string, const WriteItem*> by_key;
  for (const std::size_t position : items) {
    const WriteItem& item = plan.items[position];
    specs.push_back({item.index.fqn, item.properties.dtype, item.chunk.sizes, item.chunk.offsets, item.size});
    by_key.emplace(item.index.fqn, &item);
  }
  const std::string path = folder(directory_).temporary_path(name);
  SafetensorsFileWriter out(*files_, path, std::move(specs), options_.sync_files,
                            stamp_metadata({save_id_, file_count_}));
  std::vector<WriteResult> results;
  for (std::size_t number = 0; number < out.order().size(); ++number) {
    if (context_.throw_if_cancelled) context_.throw_if_cancelled();
    const WriteItem& item = *by_key.at(out.order()[number].name);
    try {
      out.append(planner.resolve_tensor(item));
    } catch (c10::Error& error) {
      error.add_context(c10::str("while writing ", to_string(item.index), " to ", path));
      throw;
    }
    const std::int64_t length = out.position_of(number + 1) - out.position_of(number);
    results.push_back({item.index, length, {name, out.position_of(number), length, {}}});
  }
  out.close();
  return results;
}

std::vector<WriteResult> SafetensorsWriter::write_data(const SavePlan& plan, const SavePlanner& planner) {
  const SafetensorsStamp stamp = decode_stamp(plan.storage_data);
  save_id_ = stamp.save_id;
  file_count_ = stamp.file_count;
  std::map<std::int64_t, std::vector<std::size_t>> by_file;
  for (std::size_t i = 0; i < plan.items.size(); ++i) by_file[*file_number(plan.items[i].index.fqn)].push_back(i);
  std::vector<std::pair<std::string, const std::vector<std::size_t>*>> jobs;
  for (const auto& [number, items] : by_file) {
    jobs.emplace_back(file_name(number), &items);
    written_.push_back(jobs.back().first);
  }
  std::vector<std::vector<WriteResult>> results(jobs.size());
  run_parallel(options_.thread_count, jobs.size(),
               [&](std::size_t i) { results[i] = write_file(plan, planner, jobs[i].first, *jobs[i].second); });
  if (options_.sync_files) {
    if (!jobs.empty()) files_->sync_directory(directory_);
    for (auto made = new_directories_.rbegin(); made != new_directories_.rend(); ++made) files_->sync_directory(*made);
  }
  std::vector<WriteResult> all;
  for (auto& part : results) std::move(part.begin(), part.end(), std::back_inserter(all));
  return all;
}

Metadata SafetensorsWriter::finish(Metadata metadata, const std::vector<std::vector<WriteResult>>& results) {
  for (const std::vector<WriteResult>& rank_results : results) {
    for (const WriteResult& result : rank_results) {
      DCP_CHECK(metadata.storage_data.insert(result.index, result.storage), kInternal, to_string(result.index),
                " was written twice");
    }
  }
  metadata.storage_data.shrink_to_fit();
  for (const auto& [key, entry] : metadata.state_dict_metadata) {
    for (const Box& chunk : std::get<TensorStorageMetadata>(entry).chunks) {
      DCP_CHECK(metadata.storage_data.contains({key, chunk.offsets, {}}), kInternal, key, ": part ", to_string(chunk),
                " was planned but not written");
    }
  }
  commit(metadata);
  return metadata;
}

void SafetensorsWriter::commit(const Metadata& metadata) {
  std::set<std::string> names;
  SafetensorsIndex index;
  for (const auto& [item, info] : metadata.storage_data) {
    names.insert(info.relative_path);
    index.total_size += info.length;
  }
  for (const auto& [key, entry] : metadata.state_dict_metadata) {
    const Sizes offsets = std::get<TensorStorageMetadata>(entry).chunks.at(0).offsets;
    index.weight_map.insert(key, metadata.storage_data.find({key, offsets, {}})->relative_path);
  }
  if (names.empty() && options_.save_distributed) {
    // Something must say that this is a checkpoint, of no tensors.
    const std::string name = file_name(kOnlyFile);
    SafetensorsFileWriter(*files_, folder(directory_).temporary_path(name), {}, options_.sync_files,
                          stamp_metadata({save_id_, file_count_}))
        .close();
    if (options_.sync_files) files_->sync_directory(directory_);
    names.insert(name);
  }
  const bool has_index = !options_.save_distributed;
  folder(directory_)
      .run({names.begin(), names.end()}, has_index ? std::optional(encode_safetensors_index(index)) : std::nullopt);
  if (options_.enable_consolidation) consolidate();
}

void SafetensorsWriter::consolidate() const {
  ConsolidateOptions consolidation;
  consolidation.fqn_to_index_mapping = options_.fqn_to_index_mapping;
  consolidation.thread_count = options_.thread_count_consolidation;
  consolidation.overwrite = options_.overwrite;
  consolidation.sync_files = options_.sync_files;
  consolidation.save_id = save_id_;
  consolidation.file_system = files_;
  try {
    consolidate_safetensors(directory_, path_, consolidation);
  } catch (c10::Error& error) {
    error.add_context(c10::str("while putting the shards in ", directory_, ", which are a whole checkpoint, together"));
    throw;
  }
}

void SafetensorsWriter::abort() noexcept {
  for (const std::string& name : written_) {
    if (auto warning = folder(directory_).drop(name)) warnings_.push_back(*std::move(warning));
  }
  written_.clear();
}

}  // namespace dcp

#include "torch_dcp/plan/merge_metadata.h"

#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "torch_dcp/base/error.h"
#include "torch_dcp/base/fault_list.h"
#include "torch_dcp/plan/validate.h"
#include "torch_dcp/tensor/dtype.h"

namespace dcp {
namespace {

std::string describe(const StorageMetadata& entry) {
  const auto* tensor = std::get_if<TensorStorageMetadata>(&entry);
  if (!tensor) return "an object";
  return c10::str("a ", dtype_name(tensor->properties), " tensor of size ", to_string(c10::IntArrayRef(tensor->size)));
}

bool is_alike(const StorageMetadata& a, const StorageMetadata& b) {
  const auto* tensor = std::get_if<TensorStorageMetadata>(&a);
  const auto* other = std::get_if<TensorStorageMetadata>(&b);
  if (!tensor || !other) return !tensor && !other;
  return tensor->size == other->size && tensor->properties.dtype == other->properties.dtype &&
         tensor->properties.newer_dtype == other->properties.newer_dtype;
}

class Merge {
 public:
  void add(const Metadata& part, std::size_t rank) {
    for (const auto& [fqn, entry] : part.state_dict_metadata) {
      const auto [first, is_new] = first_ranks_.try_emplace(fqn, rank);
      if (is_new) add_empty(fqn, entry);
      StorageMetadata& merged = *merged_.state_dict_metadata.find(fqn);
      if (!is_alike(merged, entry)) {
        fault(fqn, c10::str("it is ", describe(merged), " on rank ", first->second, " and ", describe(entry),
                            " on rank ", rank));
        continue;
      }
      if (const auto* tensor = std::get_if<TensorStorageMetadata>(&entry)) {
        add_chunks(fqn, *tensor, part, rank, std::get<TensorStorageMetadata>(merged));
      } else if (is_new) {
        add_storage({fqn, {}, {}}, part);
      }
    }
    if (part.planner_data) add_paths(*part.planner_data, rank);
  }

  Metadata finish() && {
    for (const auto& [fqn, entry] : merged_.state_dict_metadata) {
      const auto* tensor = std::get_if<TensorStorageMetadata>(&entry);
      if (!tensor || has_fault_.contains(fqn)) continue;
      const auto chunk_fault = find_chunk_fault(*tensor, /*must_cover=*/true);
      if (chunk_fault) fault(fqn, "of all ranks together, " + *chunk_fault + "; is a rank's metadata missing?");
    }
    for (auto& entry : merged_.state_dict_metadata) {
      if (auto* tensor = std::get_if<TensorStorageMetadata>(&entry.second)) tensor->chunks.shrink_to_fit();
    }
    merged_.storage_data.shrink_to_fit();
    faults_.throw_if_any("the metadata that ranks saved without collectives make no whole", DCP_WHERE);
    return std::move(merged_);
  }

 private:
  struct Place {
    std::size_t chunk = 0;  ///< its number in the merged tensor
    std::size_t rank = 0;
  };

  void fault(const std::string& fqn, const std::string& what) {
    if (has_fault_.insert(fqn).second) faults_.add(ErrorKind::kCorruptData, fqn, what);
  }

  void add_empty(const std::string& fqn, const StorageMetadata& entry) {
    StorageMetadata empty = entry;
    if (auto* tensor = std::get_if<TensorStorageMetadata>(&empty)) tensor->chunks.clear();
    merged_.state_dict_metadata.insert(fqn, std::move(empty));
  }

  void add_storage(const MetadataIndex& index, const Metadata& part) {
    const std::optional<StorageInfo> info = part.storage_data.find(index);
    if (info) merged_.storage_data.insert_or_assign(index, *info);
  }

  void add_chunks(const std::string& fqn, const TensorStorageMetadata& from, const Metadata& part, std::size_t rank,
                  TensorStorageMetadata& to) {
    for (const Box& chunk : from.chunks) {
      MetadataIndex index{fqn, chunk.offsets, static_cast<std::int64_t>(to.chunks.size())};
      const auto [place, is_new] = places_.try_emplace(index, Place{to.chunks.size(), rank});
      if (is_new) {
        to.chunks.push_back(chunk);
        add_storage(index, part);
        continue;
      }
      const Box other = to.chunks[place->second.chunk];
      if (chunk.sizes == other.sizes || chunk.empty()) continue;
      if (other.empty()) {
        to.chunks.replace(place->second.chunk, chunk);
        index.index = static_cast<std::int64_t>(place->second.chunk);
        add_storage(index, part);
        continue;
      }
      fault(fqn, c10::str("rank ", place->second.rank, " has the chunk ", to_string(other), ", rank ", rank, " ",
                          to_string(chunk)));
    }
  }

  void add_paths(const OrderedMap<std::string, Path>& paths, std::size_t rank) {
    if (!merged_.planner_data) merged_.planner_data.emplace();
    for (const auto& [fqn, path] : paths) {
      if (merged_.planner_data->insert(fqn, path) || *merged_.planner_data->find(fqn) == path) continue;
      fault(fqn, c10::str("it has another path in the state dict on rank ", rank, " than on a lower one"));
    }
  }

  Metadata merged_;
  FaultList faults_;
  std::unordered_set<std::string> has_fault_;
  std::unordered_map<std::string, std::size_t> first_ranks_;  ///< of each key
  std::unordered_map<MetadataIndex, Place, MetadataIndexHash> places_;
};

}  // namespace

Metadata merge_rank_metadata(const std::vector<Metadata>& by_rank) {
  DCP_CHECK(!by_rank.empty(), kInvalidArgument, "there is no metadata to merge");
  Merge merge;
  for (std::size_t rank = 0; rank < by_rank.size(); ++rank) merge.add(by_rank[rank], rank);
  Metadata merged = std::move(merge).finish();
  merged.version = by_rank[0].version;
  merged.storage_meta = by_rank[0].storage_meta;
  // An id tells one save from another, and each rank's was one.
  if (merged.storage_meta) merged.storage_meta->save_id.reset();
  return merged;
}

void prefer_rank_metadata(Metadata& merged, const Metadata& own) {
  for (const auto& [index, info] : own.storage_data) {
    if (!merged.storage_data.contains(index)) continue;
    const std::optional<Box> box = find_chunk(merged, index);
    const std::optional<Box> own_box = find_chunk(own, index);
    // An empty chunk may begin where another rank's begins.
    const bool is_same = box.has_value() == own_box.has_value() && (!box || box->sizes == own_box->sizes);
    if (is_same) merged.storage_data.insert_or_assign(index, info);
  }
}

}  // namespace dcp

#include "tools/dcp/dump.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <iomanip>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tools/dcp/printable.h"
#include "tools/dcp/tensor_json.h"
#include "torch_dcp/base/error.h"
#include "torch_dcp/checkpoint/by_checkpoint_id.h"
#include "torch_dcp/format/object_json.h"
#include "torch_dcp/io/local_file_system.h"
#include "torch_dcp/plan/default_load_planner.h"
#include "torch_dcp/plan/validate.h"
#include "torch_dcp/storage/filesystem_reader.h"
#include "torch_dcp/tensor/dtype.h"

namespace dcp::tool {
namespace {

using Json = nlohmann::ordered_json;

/// The metadata that a folder has: `.metadata`, or that of each rank.
struct Part {
  Metadata metadata;
  int rank = -1;  ///< -1: of all ranks
};

std::vector<Part> read_parts(const std::string& path, FileSystemReader& reader) {
  std::vector<Part> parts;
  if (std::optional<Metadata> metadata = reader.read_metadata()) {
    parts.push_back({*std::move(metadata), -1});
    return parts;
  }
  const auto files = local_file_system();
  for (int rank = 0; files->file_type(join_path(path, c10::str("__", rank, ".metadata"))) == FileType::kFile; ++rank) {
    parts.push_back({reader.read_rank_metadata(rank), rank});
  }
  DCP_CHECK(!parts.empty(), kNotFound, "incomplete checkpoint: ", path, " has no metadata of rank 0");
  return parts;
}

/// What the ranks' parts make together. If they contradict each other, `why_not` tells.
std::optional<Part> merge_parts(FileSystemReader& reader, std::string& why_not) {
  try {
    return Part{reader.read_merged_metadata().value(), -1};
  } catch (const Error& error) {
    // A program that loads rank by rank can use such a folder, so that it is shown rank by rank.
    if (error.kind() != ErrorKind::kCorruptData) throw;
    why_not = error.what_without_backtrace();
    return std::nullopt;
  }
}

Json path_json(const Path& path) {
  Json json = Json::array();
  for (const PathItem& item : path) {
    if (item.step == PathStep::kListIndex) {
      json.push_back(item.index);
    } else {
      json.push_back(to_string(item));
    }
  }
  return json;
}

Json stored_json(const std::string& fqn, const Box* chunk, std::size_t number, const Metadata& metadata) {
  Json json;
  MetadataIndex index{fqn, {}, {}};
  if (chunk) index.offset = chunk->offsets;
  const std::optional<StorageInfo> info = metadata.storage_data.find(index);
  DCP_CHECK(info, kCorruptData, to_string(index), ": the metadata does not say where it is stored");
  json["file"] = info->relative_path;
  json["offset"] = info->offset;
  json["length"] = info->length;
  if (chunk) {
    json["offsets"] = std::vector<std::int64_t>(chunk->offsets.begin(), chunk->offsets.end());
    json["sizes"] = std::vector<std::int64_t>(chunk->sizes.begin(), chunk->sizes.end());
    json["index"] = number;
  }
  if (!info->transform_descriptors.empty()) json["transform_descriptors"] = info->transform_descriptors;
  return json;
}

Json object_entry(const std::string& fqn, const Metadata& metadata, FileSystemReader& reader, bool with_values) {
  Json json;
  json["kind"] = "bytes";
  if (with_values) {
    const std::optional<StorageInfo> info = metadata.storage_data.find({fqn, {}, {}});
    DCP_CHECK(info, kCorruptData, fqn, ": the metadata does not say where it is stored");
    try {
      json["value"] = object_item_to_json(reader.read_item(*info));
    } catch (Error& error) {
      error.add_context("in " + join_path(reader.path(), info->relative_path));
      throw;
    }
  }
  return json;
}

Json entry_json(const std::string& fqn, const StorageMetadata& entry, const Part& part, FileSystemReader& reader,
                const StateDict& tensors, bool with_values) {
  Json json;
  const auto* tensor = std::get_if<TensorStorageMetadata>(&entry);
  if (tensor) {
    json["kind"] = "tensor";
    json["dtype"] = dtype_name(tensor->properties);
    json["shape"] = std::vector<std::int64_t>(tensor->size.begin(), tensor->size.end());
    if (with_values) add_elements(json, tensors.at(fqn).as_tensor());
    json["requires_grad"] = tensor->properties.requires_grad;
  } else {
    json = object_entry(fqn, part.metadata, reader, with_values);
  }
  const Path* path = part.metadata.planner_data ? part.metadata.planner_data->find(fqn) : nullptr;
  if (path) json["path"] = path_json(*path);
  Json stored = Json::array();
  if (tensor) {
    for (std::size_t i = 0; i < tensor->chunks.size(); ++i) {
      const Box chunk = tensor->chunks[i];
      stored.push_back(stored_json(fqn, &chunk, i, part.metadata));
    }
  } else {
    stored.push_back(stored_json(fqn, nullptr, 0, part.metadata));
  }
  json["stored"] = std::move(stored);
  return json;
}

/// Hands a reader of one rank's metadata to `load`.
class PartReader : public FileSystemReader {
 public:
  PartReader(const std::string& path, int rank) : FileSystemReader(path), rank_(rank) {}
  std::optional<Metadata> read_metadata() override {
    return rank_ < 0 ? FileSystemReader::read_metadata() : read_rank_metadata(rank_);
  }

 private:
  int rank_;
};

/// All tensors of a part by flat key, loaded as any program would load them.
StateDict load_tensors(const std::string& path, const Part& part) {
  StateDict state;
  for (const auto& [fqn, entry] : part.metadata.state_dict_metadata) {
    const auto* tensor = std::get_if<TensorStorageMetadata>(&entry);
    if (!tensor) continue;
    // One rank's metadata may lack the chunks of others: what it does not cover is shown as zeros.
    const auto fault = find_chunk_fault(*tensor, part.rank < 0);
    DCP_CHECK(!fault, kCorruptData, path, ": ", fqn, ": ", *fault);
    state.insert_or_assign(fqn, part.rank < 0 ? empty_tensor(tensor->size, tensor->properties.dtype)
                                              : zero_tensor(tensor->size, tensor->properties.dtype));
  }
  PartReader reader(path, part.rank);
  LoadOptions options;
  LoadPlannerOptions planner_options;
  planner_options.flatten = FlattenRule::kTopLevel;
  planner_options.allow_uncovered = part.rank >= 0;
  planner_options.missing_dtypes_as_bits = true;
  options.use_collectives = part.rank < 0;
  options.planner = std::make_shared<DefaultLoadPlanner>(planner_options);
  load(state, reader, options);
  return state;
}

Json part_entries(const std::string& path, const Part& part, FileSystemReader& reader, bool with_values) {
  const StateDict tensors = with_values ? load_tensors(path, part) : StateDict();
  Json entries = Json::object();
  for (const auto& [fqn, entry] : part.metadata.state_dict_metadata) {
    try {
      entries[fqn] = entry_json(fqn, entry, part, reader, tensors, with_values);
    } catch (Error& error) {
      error.add_context(c10::str("in ", path, ", key ", fqn));
      throw;
    }
  }
  return entries;
}

std::int64_t stored_bytes(const std::string& fqn, const StorageMetadata& entry, const Metadata& metadata) {
  std::int64_t bytes = 0;
  const auto add = [&](const MetadataIndex& index) {
    if (const std::optional<StorageInfo> info = metadata.storage_data.find(index)) bytes += info->length;
  };
  if (const auto* tensor = std::get_if<TensorStorageMetadata>(&entry)) {
    for (const Box& chunk : tensor->chunks) add({fqn, chunk.offsets, {}});
  } else {
    add({fqn, {}, {}});
  }
  return bytes;
}

}  // namespace

Json dump_checkpoint(const std::string& path, bool with_values) {
  FileSystemReader reader(path);
  const std::vector<Part> parts = read_parts(path, reader);
  Json json;
  json["form"] = "torch_dcp-expected-1";
  json["kind"] = "dcp";
  Json files = Json::object();
  const auto system = local_file_system();
  for (const std::string& name : system->list_directory(path)) {
    if (const auto size = system->file_size(join_path(path, name))) files[name] = *size;
  }
  json["files"] = std::move(files);
  const Metadata& first = parts.front().metadata;
  json["version"] = first.version ? Json(*first.version) : Json(nullptr);
  json["has_planner_data"] = first.planner_data.has_value();
  if (parts.front().rank < 0) {
    json["entries"] = part_entries(path, parts.front(), reader, with_values);
    return json;
  }
  for (const Part& part : parts) {
    json["ranks"][std::to_string(part.rank)]["entries"] = part_entries(path, part, reader, with_values);
  }
  std::string why_not;
  if (const std::optional<Part> merged = merge_parts(reader, why_not)) {
    json["entries"] = part_entries(path, *merged, reader, with_values);
  } else {
    json["no_entries"] = why_not;
  }
  return json;
}

std::string list_checkpoint(const std::string& path) {
  FileSystemReader reader(path);
  std::ostringstream out;
  std::vector<Part> parts = read_parts(path, reader);
  if (parts.front().rank >= 0) {
    std::string why_not;
    if (std::optional<Part> merged = merge_parts(reader, why_not)) {
      out << "saved without collectives on " << parts.size() << " ranks or more, seen together:\n";
      parts = {*std::move(merged)};
    } else {
      out << printable(why_not) << "\n";
    }
  }
  for (const Part& part : parts) {
    if (part.rank >= 0) out << "rank " << part.rank << ":\n";
    std::size_t width = 3;
    for (const auto& [fqn, entry] : part.metadata.state_dict_metadata)
      width = std::max(width, std::min<std::size_t>(printable(fqn).size(), 60));
    const auto row = [&](const std::string& key, const std::string& dtype, const std::string& shape,
                         const std::string& chunks, const std::string& bytes) {
      out << std::left << std::setw(static_cast<int>(width)) << key << "  " << std::setw(10) << dtype << "  "
          << std::setw(18) << shape << std::right << std::setw(7) << chunks << std::setw(14) << bytes << '\n';
    };
    row("key", "dtype", "shape", "chunks", "bytes");
    std::int64_t total = 0;
    for (const auto& [fqn, entry] : part.metadata.state_dict_metadata) {
      const std::int64_t bytes = stored_bytes(fqn, entry, part.metadata);
      total += bytes;
      const auto* tensor = std::get_if<TensorStorageMetadata>(&entry);
      row(printable(fqn), tensor ? dtype_name(tensor->properties) : "object", tensor ? to_string(tensor->size) : "",
          tensor ? std::to_string(tensor->chunks.size()) : "", std::to_string(bytes));
    }
    out << part.metadata.state_dict_metadata.size() << " keys, " << total << " bytes\n";
  }
  return out.str();
}

}  // namespace dcp::tool

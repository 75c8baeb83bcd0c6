#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

// Names of the files in a folder of safetensors.

namespace dcp::safetensors_names {

inline constexpr std::string_view kSuffix = ".safetensors";
inline constexpr std::string_view kIndex = "model.safetensors.index.json";
/// Where a save with consolidation puts its shards.
inline constexpr std::string_view kShardedFolder = "sharded";
/// Is there while a save replaces the files of a folder; see safetensors_marker_internal.h.
inline constexpr std::string_view kUnfinished = "model-save-unfinished.safetensors";

/// `model-00001-of-00003.safetensors`; with a shard, counted from 1, `shard-00002-model-00001-of-00003.safetensors`.
std::string data_file_name(std::int64_t number, std::int64_t largest, std::optional<std::int64_t> shard = {});

/// Whether the name is one that `data_file_name` makes: such files belong to saves, and only such are ever removed.
bool is_data_file(std::string_view name);

/// Whether the name ends as files of tensors do.
bool is_safetensors_file(std::string_view name);

/// What a data file is called until the save `save_id` has given it its name: `NAME.ID.tmp`. With the id in it no later
/// save overwrites it, and a reader that knows the id finds it.
std::string temporary_name(std::string_view name, std::string_view save_id);

/// The name that the data file with this temporary name is going to have; nothing for any other name.
std::optional<std::string> final_name(std::string_view temporary);

/// Whether a save makes such a file on its way to one of a folder's files.
bool is_temporary(std::string_view name);

}  // namespace dcp::safetensors_names

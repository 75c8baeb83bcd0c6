#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "torch_dcp/plan/plan.h"

// Names of the files in a checkpoint's directory, and which item goes into which file.

namespace dcp::file_layout {

inline constexpr std::string_view kMetadataName = ".metadata";

/// `__<rank>.metadata`: what a rank saved without collectives.
std::string rank_metadata_name(int rank);

/// `.torch_dcp-<save id>.json`: bound to the `.metadata` of the same save, so that the rename of `.metadata`
/// switches both; `__<rank>.torch_dcp-<save id>.json` beside the metadata of a rank that saved without collectives.
std::string side_file_name(std::string_view save_id, std::optional<int> rank = {});

/// `__<rank>_<n>.distcp`, or `__<rank>_<n>-<tag>.distcp` where older files must stay untouched; a tag is the first
/// eight digits of a save id.
std::string data_file_name(int rank, std::size_t number, std::string_view tag);

/// The rank whose metadata has this name, or nothing.
std::optional<int> rank_of_metadata(std::string_view name);

/// The rank whose data file has this name, or nothing.
std::optional<int> rank_of_data_file(std::string_view name);

/// Whether a name is one that a save of this library or of PyTorch makes; only such files are
/// ever removed.
bool is_checkpoint_file(std::string_view name);

/// Splits a plan's items (by their position) over the files of one rank, as PyTorch does: with one
/// bin in plan order; else objects round robin, tensors largest first, each into the bin with the fewest
/// bytes. Within a bin, objects come first.
std::vector<std::vector<std::size_t>> split_into_bins(const SavePlan& plan, std::size_t bin_count);

}  // namespace dcp::file_layout

#pragma once

#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "torch_dcp/base/limits.h"
#include "torch_dcp/format/json_visitor_internal.h"
#include "torch_dcp/format/safetensors.h"

// What reading and writing of safetensors headers have in common.

namespace dcp::safetensors_form {

inline constexpr std::string_view kMetadataField = "__metadata__";
inline constexpr std::string_view kShardingField = "DCP_SHARDING_INFO";
/// Bytes of the header's length at the begin of a file.
inline constexpr std::size_t kLengthBytes = 8;
/// name -> field -> list, and one level more in fields that are skipped.
inline constexpr std::size_t kMaxJsonDepth = 16;

/// The dtype's place in the package's table, by which files are laid out from the last to the first; -1: it has none.
int dtype_rank(c10::ScalarType dtype);

/// Adds a number to the list at `path`: tensor, field.
///
/// \throws dcp::Error kCorruptData for a negative one and for more than `max_count`.
void add_number(std::vector<std::int64_t>& numbers, std::int64_t value, const JsonVisitor::Path& path,
                std::size_t max_count);

std::string number_list(c10::IntArrayRef numbers, const char* separator);

/// Moves what `DCP_SHARDING_INFO` says from the header's metadata to its tensors. \throws dcp::Error kCorruptData.
void read_sharding(SafetensorsHeader& header, const ParseLimits& limits);

/// The text of that field.
std::string sharding_text(const std::vector<SafetensorsTensor>& tensors);

}  // namespace dcp::safetensors_form

#pragma once

#include <optional>
#include <string>
#include <vector>

#include "torch_dcp/plan/metadata.h"

namespace dcp {

/// Says what is wrong with the chunks of one tensor: a chunk of another ndim, with a negative number, out
/// of bounds, overlapping another (both are named), or elements that no chunk covers (expected and found
/// volume, and a box that is missing if one is found). Nothing if the chunks tile the tensor exactly.
///
/// \param must_cover  Whether uncovered elements are a fault.
/// Sizes may come from a file: all arithmetic is checked.
/// Complexity: O(n log n) for chunks that cut one or two dimensions.
DCP_API std::optional<std::string> find_chunk_fault(const TensorStorageMetadata& tensor, bool must_cover);

/// Checks every tensor of the metadata; one error names every faulty key.
///
/// \throws dcp::Error kInvalidArgument.
DCP_API void validate_global_plan(const Metadata& metadata, bool must_cover);

}  // namespace dcp

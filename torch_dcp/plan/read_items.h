#pragma once

#include <vector>

#include "torch_dcp/plan/plan.h"

namespace dcp {

/// Plans which stored chunks fill the wanted boxes of one tensor.
///
/// \param stored  Chunks in range of `stored.size`.
/// \param wanted  Boxes in global coordinates; may be empty; must not overlap each other.
/// \returns One item per overlapping pair, by wanted box, then by stored chunk. Empty chunks and
///          boxes make none; a tensor of 0 dimensions makes one.
/// \throws dcp::Error kInvalidArgument if a box has another ndim than `stored.size`.
///
/// Collective: no. Thread safety: pure. Complexity: O((s + w) log(s + w) + overlaps of the first
/// swept dimension).
/// Source: torch/distributed/checkpoint/planner_helpers.py, create_read_items_for_chunk_list (2.14.1).
DCP_API std::vector<ReadItem> create_read_items(const std::string& fqn, const TensorStorageMetadata& stored,
                                                const std::vector<Box>& wanted);

}  // namespace dcp

#pragma once

#include <cstdint>
#include <vector>

#include "torch_dcp/plan/plan.h"

namespace dcp {

/// Keeps one writer for each item that several plans have, comparing fqn and chunk box: an empty
/// chunk at the offset of a real one is dropped, never the reverse.
///
/// Items with the fewest holders are placed first, each with the holder that has the fewest
/// bytes so far (the lowest rank on ties). The lowest holder writes objects, and everything if `to_lowest_rank`.
/// Each plan keeps its order. The result does not depend on hash order.
///
/// \param split_bytes  A tensor chunk of more bytes that several ranks hold is cut into blocks of rows, so that its
///                     holders write equally much; 0: none is. Has no effect with `to_lowest_rank`. Quantized tensors
///                     are not cut.
/// \throws dcp::Error kInvalidArgument, naming key and ranks, if two ranks offer the same key with
///         other kinds, global sizes or dtypes.
/// Collective: no. Thread safety: pure.
DCP_API std::vector<SavePlan> dedup_save_plans(std::vector<SavePlan> plans, bool to_lowest_rank,
                                               std::int64_t split_bytes = 0);

}  // namespace dcp

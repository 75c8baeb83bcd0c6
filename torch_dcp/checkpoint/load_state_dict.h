#pragma once

#include <memory>

#include "torch_dcp/base/export.h"
#include "torch_dcp/comm/group_ref.h"
#include "torch_dcp/fwd.h"
#include "torch_dcp/state_dict/load_report.h"
#include "torch_dcp/state_dict/value.h"

namespace dcp {

/// PyTorch's older form of loading, for programs that are carried over; `load` has all options.
///
/// As `load`, which see, but that it takes states alone: a Stateful is refused instead of being given its state.
/// Whatever an earlier load left in the reader is forgotten.
///
/// \param process_group     The ranks that load together; none: this process alone.
/// \param coordinator_rank  The rank, within the group, that reads the metadata and plans for all.
/// \param no_dist           Leaves the group out: this process loads alone, as rank 0.
/// \param planner           A DefaultLoadPlanner if null.
/// \throws As `load`; kType, from the step "plan", for a Stateful, naming its key; kInvalidArgument on this rank alone
///         for a coordinator that the group lacks.
/// Collective: yes, all ranks of the group (but with `no_dist`).
/// Source: torch/distributed/checkpoint/state_dict_loader.py, load_state_dict (2.14.1).
DCP_API LoadReport load_state_dict(StateDict& state, StorageReader& reader, const GroupRef& process_group = {},
                                   int coordinator_rank = 0, bool no_dist = false,
                                   std::shared_ptr<LoadPlanner> planner = nullptr);

}  // namespace dcp

#pragma once

#include <memory>

#include "torch_dcp/base/export.h"
#include "torch_dcp/comm/group_ref.h"
#include "torch_dcp/fwd.h"
#include "torch_dcp/plan/metadata.h"
#include "torch_dcp/state_dict/value.h"

namespace dcp {

/// PyTorch's older form of saving, for programs that are carried over; `save` has all options.
///
/// As `save`, which see, but that it takes states alone: a Stateful is refused instead of being asked for its state.
/// Whatever an earlier save left in the writer is forgotten.
///
/// \param process_group     The ranks that save together; none: this process alone.
/// \param coordinator_rank  The rank, within the group, that plans for all and commits.
/// \param no_dist           Leaves the group out: this process saves alone, as rank 0, a checkpoint that is complete.
/// \param planner           A DefaultSavePlanner if null.
/// \throws As `save`; kType, from the step "plan", for a Stateful, naming its key; kInvalidArgument on this rank alone
///         for a coordinator that the group lacks.
/// Collective: yes, all ranks of the group (but with `no_dist`).
/// Source: torch/distributed/checkpoint/state_dict_saver.py, save_state_dict (2.14.1).
DCP_API Metadata save_state_dict(const StateDict& state, StorageWriter& writer, const GroupRef& process_group = {},
                                 int coordinator_rank = 0, bool no_dist = false,
                                 std::shared_ptr<SavePlanner> planner = nullptr);

}  // namespace dcp

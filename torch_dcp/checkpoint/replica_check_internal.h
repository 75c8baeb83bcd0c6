#pragma once

#include <functional>

#include "torch_dcp/comm/communicator.h"
#include "torch_dcp/plan/plan.h"
#include "torch_dcp/plan/planner.h"

namespace dcp {

/// Compares what several ranks offer alike: every chunk with elements and every object that more than one rank has.
/// Each rank reads its values once; what is compared are digests of 64 bits.
///
/// Two steps, both before anything is written.
///
/// \param make_plan  This rank's local plan; called once, in the first step. The plan outlives the call of this.
/// \param planner    Resolves its items.
/// \throws dcp::CheckpointError kInvalidArgument, of the coordinator, naming every key whose values differ, and which
///         ranks have the same.
/// Collective: yes.
void check_replicas(Communicator& comm, const std::function<const SavePlan&()>& make_plan, const SavePlanner& planner);

}  // namespace dcp

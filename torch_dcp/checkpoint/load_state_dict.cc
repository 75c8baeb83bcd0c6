#include "torch_dcp/checkpoint/load_state_dict.h"

#include <utility>

#include "torch_dcp/checkpoint/group_internal.h"
#include "torch_dcp/checkpoint/open_internal.h"

namespace dcp {

LoadReport load_state_dict(StateDict& state, StorageReader& reader, const GroupRef& process_group, int coordinator_rank,
                           bool no_dist, std::shared_ptr<LoadPlanner> planner) {
  LoadOptions options;
  set_group(options, process_group, coordinator_rank, no_dist);
  options.planner = std::move(planner);
  // A reader's `read_metadata` and `set_up` are what PyTorch calls its reset.
  return internal::load(state, [&]() -> StorageReader& { return reader; }, options, internal::StatefulRule::kRefuse);
}

}  // namespace dcp

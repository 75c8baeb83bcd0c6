#include "torch_dcp/checkpoint/save_state_dict.h"

#include <utility>

#include "torch_dcp/checkpoint/group_internal.h"
#include "torch_dcp/checkpoint/open_internal.h"

namespace dcp {

Metadata save_state_dict(const StateDict& state, StorageWriter& writer, const GroupRef& process_group,
                         int coordinator_rank, bool no_dist, std::shared_ptr<SavePlanner> planner) {
  SaveOptions options;
  set_group(options, process_group, coordinator_rank, no_dist);
  options.planner = std::move(planner);
  // `set_up` of the writer is what PyTorch calls its reset.
  return internal::save(state, [&]() -> StorageWriter& { return writer; }, options, internal::StatefulRule::kRefuse);
}

}  // namespace dcp

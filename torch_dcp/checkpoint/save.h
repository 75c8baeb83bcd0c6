#pragma once

#include <memory>

#include "torch_dcp/base/export.h"
#include "torch_dcp/comm/communicator.h"
#include "torch_dcp/comm/group_ref.h"
#include "torch_dcp/fwd.h"
#include "torch_dcp/plan/metadata.h"
#include "torch_dcp/state_dict/value.h"

namespace dcp {

/// How to save; the same on every rank but for the planner's state.
struct SaveOptions {
  /// The ranks that save together; null: this process alone. The library makes a group of its own
  /// from the same store and never waits on this one.
  GroupRef process_group = {};
  /// Coordinator, deadlines, store and group factory, for what is made from `process_group`. Steps that can have a
  /// deadline of their own (`deadlines`): "plan", "write", "commit"; with `check_replicas` first "list replicas" and
  /// "compare replicas"; after a commit that failed "clear" (30 s at most unless set). The ranks differ most in
  /// "write": it must allow for the slowest one's disk.
  CommunicatorOptions communicator_options = {};
  /// Used instead of `process_group` if given: spares making a group for every save.
  std::shared_ptr<Communicator> communicator = nullptr;
  /// Off: every rank commits its own part (`__<rank>.metadata`) without talking to the others; such a checkpoint loads
  /// on the same ranks only.
  bool use_collectives = true;
  /// A DefaultSavePlanner if null.
  std::shared_ptr<SavePlanner> planner = nullptr;
  /// Remembers plans between saves, so that only what has changed is exchanged and planned; off if null. One of its own
  /// for each rank; a rank without one sends its plan each time.
  std::shared_ptr<SavePlanCache> plan_cache = nullptr;
  /// Compares, before anything is written, what several ranks hold alike (chunks of tensors, objects), and fails naming
  /// every key whose values differ and the ranks that have the same. Each rank reads once what others hold too, at
  /// about half the speed of memory, and there are two more exchanges. The same on every rank.
  bool check_replicas = false;
};

/// Saves a state dict through a storage writer.
///
/// Every rank gives what it holds: tensors of any kind are written from where they lie, what several ranks
/// hold alike is written once, and a top-level `Stateful` is asked for its state. The checkpoint exists when
/// this returns; until then a load finds what was there before.
///
/// \param state  Not changed. Must not be changed by others until this returns.
/// \returns The checkpoint's metadata, alike on every rank.
/// \throws dcp::CheckpointError, alike on every rank: the ranks that failed, and why. A failure before the commit
///         leaves the earlier checkpoint. Where a rank was lost or late while it was being committed, or the storage
///         failed in that moment or after it, the new one may be there, as the error says: `is_complete` and the
///         metadata's save id tell.
/// \throws dcp::Error kInvalidArgument, kComm or kDeadline on this rank alone if no communicator can be made.
///
/// Values that ranks hold alike but that differ: of an object the lowest rank's is saved, of a tensor that of one rank,
/// the same each time, chosen to balance the bytes (`dedup_save_to_lowest_rank`: the lowest one's);
/// `split_replicated_bytes` puts a large one together from several. `check_replicas` makes it an error.
///
/// Collective: yes, all ranks of the group (but with `use_collectives` off). Thread safety: one call at a time for
/// a writer, planner or communicator.
/// Source: torch/distributed/checkpoint/state_dict_saver.py, save (2.14.1).
DCP_API Metadata save(const StateDict& state, StorageWriter& writer, const SaveOptions& options = {});

}  // namespace dcp

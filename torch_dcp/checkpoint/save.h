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
  /// Coordinator, deadlines, store and group factory, for what is made from `process_group`.
  CommunicatorOptions communicator_options = {};
  /// Used instead of `process_group` if given: spares making a group for every save.
  std::shared_ptr<Communicator> communicator = nullptr;
  /// Off: every rank commits its own part (`__<rank>.metadata`) without talking to the others; such a checkpoint loads
  /// on the same ranks only.
  bool use_collectives = true;
  /// A DefaultSavePlanner if null.
  std::shared_ptr<SavePlanner> planner = nullptr;
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
///         leaves the earlier checkpoint.
/// \throws dcp::Error kInvalidArgument, kComm or kDeadline on this rank alone if no communicator can be made.
///
/// Values that ranks hold alike but that differ: of an object the lowest rank's is saved, of a tensor that of one rank,
/// the same each time, chosen to balance the bytes (`dedup_save_to_lowest_rank`: the lowest one's).
///
/// Collective: yes, all ranks of the group (but with `use_collectives` off). Thread safety: one call at a time for
/// a writer, planner or communicator.
/// Source: torch/distributed/checkpoint/state_dict_saver.py, save (2.14.1).
DCP_API Metadata save(const StateDict& state, StorageWriter& writer, const SaveOptions& options = {});

}  // namespace dcp

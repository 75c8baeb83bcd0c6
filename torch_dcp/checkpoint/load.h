#pragma once

#include <memory>
#include <set>
#include <string>

#include "torch_dcp/base/export.h"
#include "torch_dcp/comm/communicator.h"
#include "torch_dcp/comm/group_ref.h"
#include "torch_dcp/fwd.h"
#include "torch_dcp/state_dict/dtype_policy.h"
#include "torch_dcp/state_dict/load_report.h"
#include "torch_dcp/state_dict/value.h"

namespace dcp {

/// How to load; the same on every rank but for the planner's state.
struct LoadOptions {
  /// As in SaveOptions; the steps are "metadata", "plan", "check", "copy" (with `rollback`), "read" and "apply".
  GroupRef process_group = {};
  CommunicatorOptions communicator_options = {};
  std::shared_ptr<Communicator> communicator = nullptr;
  /// Off: this rank reads alone and talks to nobody. Of a checkpoint that was saved without collectives it then reads
  /// its own part; on, the parts of all ranks are united (`merge_rank_metadata`), for any number of ranks;
  /// of what several ranks have saved, each takes its own, and a rank that has not saved takes the lowest one's.
  bool use_collectives = true;

  /// Keys that are asked for but not stored stay as they are and are reported, instead of an error.
  bool partial = false;
  DtypePolicy dtype_policy = DtypePolicy::kLossless;
  /// As in LoadPlannerOptions: what becomes of dtypes that this LibTorch lacks.
  bool missing_dtypes_as_bits = false;
  /// Keeps a copy of the destinations, and puts it back on every rank if the load fails on any while it reads. Costs
  /// the memory of the copy; without it the error lists what was changed. What a Stateful has taken over stays.
  bool rollback = false;
  /// A DefaultLoadPlanner with the three above if null. A planner given here has its own options.
  std::shared_ptr<LoadPlanner> planner = nullptr;
};

/// Loads a checkpoint into a state dict: tensors in place, whatever their layout now and when they were saved,
/// plain values replaced, and a top-level `Stateful` through its `load_state_dict`.
///
/// Names, kinds, sizes, dtypes, coverage, files and items are checked on all ranks before the first destination is
/// changed.
///
/// Beside a save that replaces the checkpoint a load gives the old one, the new one, or an error, never a mixture. If
/// the old one is replaced before all ranks have checked, they begin anew with the new one, once (and ask each Stateful
/// for its state once more); after that, or in a checkpoint with more files than a rank keeps open (256), the error is
/// kState, says that the checkpoint was replaced, and to load again. (For storages that can tell:
/// `StorageReader::is_still_there`. For saves of this library: PyTorch's changes data files in place. And not for ranks
/// that save without collectives, each of which replaces its own part: what they saved is loaded when all have.)
///
/// \param state  The destinations. Keys that it lacks are not loaded, and reported as unexpected.
/// \throws dcp::CheckpointError, alike on every rank. From the steps "metadata", "plan" and "check" nothing was
///         changed; from "read" and "apply" the message says what was (see `rollback`).
/// \throws dcp::Error kInvalidArgument, kComm or kDeadline on this rank alone if no communicator can be made.
///
/// Collective: yes, all ranks of the group (but with `use_collectives` off).
/// Source: torch/distributed/checkpoint/state_dict_loader.py, load (2.14.1).
DCP_API LoadReport load(StateDict& state, StorageReader& reader, const LoadOptions& options = {});

/// Rebuilds the nested state dict of a checkpoint, whole tensors on CPU, without knowing what is in it.
///
/// \param keys  Flat keys, or dotted prefixes of them; empty for all. In a name `*` stands for any characters, dots
/// too,
///              and `?` for one: `*.weight`. One that matches nothing is kKey.
///
/// Collective: no; this process reads alone.
/// Source: torch/distributed/checkpoint/state_dict_loader.py, _load_state_dict_from_keys (2.14.1).
DCP_API StateDict load_keys(StorageReader& reader, std::set<std::string> keys = {});

}  // namespace dcp

#pragma once

#include <utility>
#include <vector>

#include "torch_dcp/base/export.h"
#include "torch_dcp/fwd.h"
#include "torch_dcp/model_state/state_dict_options.h"
#include "torch_dcp/state_dict/load_report.h"
#include "torch_dcp/state_dict/value.h"

namespace dcp {

/// Gives a module's state dict with Python's names in Python's order, as `state_dict` does, hooks and extra state
/// included; wrappers leave no trace in the names.
///
/// The values are the live tensors themselves, not copies, but for `full_state_dict` and `cpu_offload`: loading into
/// the dict loads into the module. A tensor that has several names appears under each.
///
/// \param submodules  If given, only what is in them.
/// \throws dcp::Error kInvalidArgument for illegal options (`verify_options`); kKey for a name that two entries would
///         have, a submodule that is none, and a name in `non_persistent_buffers` that no buffer has; kState if there
///         is a flat parameter whose names are not known, and if a strict call for all of the module finds nothing;
///         what hooks throw.
/// Collective: with `full_state_dict`, all ranks of the group. Otherwise no.
/// Source: torch/distributed/checkpoint/state_dict.py, get_model_state_dict (2.14.1).
DCP_API Dict get_model_state_dict(const torch::nn::Module& module, const StateDictOptions& options = {},
                                  const Submodules& submodules = {});

/// Loads a state dict into a module as `load_state_dict` does: copies into its tensors, in place: who holds a tensor of
/// the module sees the new values. Where the given tensor is the module's own nothing is copied. A tensor on the meta
/// device gets memory. Gradients and `requires_grad` stay, and the given dict is never changed.
///
/// Everything is checked before the first element changes, on all ranks if there is a group, and one error names all
/// that is wrong: missing and unexpected names (strict), values that are no tensors, sizes, dtypes, layouts, and names
/// of one tensor whose values differ. What hooks and setters throw leaves everything, gradients too, as it was.
///
/// With `full_state_dict` each rank takes its part of whole tensors, which with `broadcast_from_rank0` come from rank
/// 0: the others may give an empty dict. Elements are written straight into the module's tensors, so that beside them
/// only memory for a bucket is needed, unless load hooks or extra state could still fail; then for this rank's part of
/// the model once more, and so for tensors whose dtype is converted or that have several names. If the connection
/// breaks while elements are being written, the error says how many tensors have new values.
///
/// An empty dict is refused if strict, and otherwise loads nothing.
///
/// \param submodules  If given, the dict has only what is in them; the rest stays.
/// \throws dcp::Error of the first fault's kind: kKey, kType, kShape, kInvalidArgument; kState for an empty dict. With
/// a
///         group of several ranks it is a CheckpointError, alike on each.
/// Collective: if there is a group, all its ranks. Otherwise no.
/// Source: torch/distributed/checkpoint/state_dict.py, set_model_state_dict (2.14.1).
DCP_API LoadReport set_model_state_dict(torch::nn::Module& module, const Dict& state,
                                        const StateDictOptions& options = {}, const Submodules& submodules = {});

/// States of modules in a tree, each with names as in that module's own state.
class DCP_API ModuleStates {
 public:
  ModuleStates(const torch::nn::Module* module, Dict state) { add(module, std::move(state)); }

  ModuleStates& add(const torch::nn::Module* module, Dict state) {
    entries_.emplace_back(module, std::move(state));
    return *this;
  }

  const std::vector<std::pair<const torch::nn::Module*, Dict>>& entries() const { return entries_; }

 private:
  std::vector<std::pair<const torch::nn::Module*, Dict>> entries_;
};

/// Loads states of modules in the tree of `module`; together they are the whole.
///
/// \throws dcp::Error kKey for a module that is not in the tree, and for a name that two states have; and as the call
///         with one dict.
/// Collective: as the call with one dict.
DCP_API LoadReport set_model_state_dict(torch::nn::Module& module, const ModuleStates& states,
                                        const StateDictOptions& options = {});

}  // namespace dcp

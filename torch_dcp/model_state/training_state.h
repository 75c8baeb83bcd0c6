#pragma once

#include <utility>

#include "torch_dcp/base/export.h"
#include "torch_dcp/fwd.h"
#include "torch_dcp/model_state/state_dict_options.h"
#include "torch_dcp/state_dict/load_report.h"
#include "torch_dcp/state_dict/value.h"

namespace dcp {

/// What `get_optimizer_state_dict` gives.
using OptimizerState = Dict;

/// Gives the states of a module and of its optimizers, if any: `get_model_state_dict` and `get_optimizer_state_dict` in
/// one call.
///
/// \returns The module's and the optimizers'; the latter is empty without optimizers.
/// \throws dcp::Error as those two.
/// Collective: with `full_state_dict`, all ranks of the group. Otherwise no.
/// Source: torch/distributed/checkpoint/state_dict.py, get_state_dict (2.14.1).
DCP_API std::pair<Dict, OptimizerState> get_state_dict(const torch::nn::Module& module,
                                                       const ConstOptimizerRefs& optimizers,
                                                       const StateDictOptions& options = {},
                                                       const Submodules& submodules = {});

/// Loads states into a module and its optimizers, all or nothing: both are checked, on all ranks if there is a group,
/// before the first of them changes, and what hooks, setters or adapters throw leaves both as they were. With an empty
/// model dict (with `broadcast_from_rank0`: rank 0's) the call is for the optimizers alone; without optimizers it is
/// for the module alone.
///
/// \returns What `set_model_state_dict` and `set_optimizer_state_dict` report, in this order.
/// \throws dcp::Error as those two, naming the faults of both.
/// Collective: if there is a group, all its ranks. Otherwise no.
/// Source: torch/distributed/checkpoint/state_dict.py, set_state_dict (2.14.1).
DCP_API LoadReport set_state_dict(torch::nn::Module& module, const OptimizerRefs& optimizers, const Dict& model_state,
                                  const OptimizerState& optimizer_state, const StateDictOptions& options = {},
                                  const Submodules& submodules = {});

}  // namespace dcp

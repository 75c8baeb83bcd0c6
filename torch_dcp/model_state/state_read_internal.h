#pragma once

#include "torch_dcp/model_state/state_dict_options.h"
#include "torch_dcp/model_state/state_names_internal.h"
#include "torch_dcp/state_dict/value.h"

namespace dcp {

/// The module's state as a call names it: live tensors.
Dict read_model(const torch::nn::Module& module, const StateNames& names, const StateDictOptions& options);

/// The optimizers' states, likewise, in one dict.
Dict read_optimizers(const ConstOptimizerRefs& optimizers, const StateNames& names, const StateDictOptions& options);

/// Gathers and offloads as the options say. Collective with `full_state_dict`.
/// \param communicator  Null: this process alone.
Dict materialize(Dict state, const StateDictOptions& options, Communicator* communicator);

}  // namespace dcp

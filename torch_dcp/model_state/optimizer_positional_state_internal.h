#pragma once

#include <string>
#include <vector>

#include "torch_dcp/model_state/hook_registry_internal.h"
#include "torch_dcp/model_state/optimizer_positional_state.h"
#include "torch_dcp/model_state/optimizer_state_dict.h"

namespace dcp {

// `state_dict` and `load_state_dict` of the optimizer itself, also where an `OptimizerPatch` took their place.
Dict own_state_dict(const torch::optim::Optimizer& optimizer, const OptimizerStateDictArgs& args = {});
LoadReport own_load_state_dict(torch::optim::Optimizer& optimizer, const Dict& state,
                               const LoadOptimizerStateDictOptions& options = {});

/// Whether an optimizer's state has numbers for parameters, as Python's `Optimizer.state_dict()`.
bool is_positional(const Dict& state);

/// Such a state, in which the numbers of an optimizer's parameters, spelled, stand for their names.
struct NamedByPosition {
  std::vector<OptimizerParameter> parameters;
  Dict state;
  std::vector<std::string> unexpected;  ///< entries of the state that no group lists
};

/// \throws dcp::Error as `load_state_dict`, for groups that are not those of the optimizer.
NamedByPosition name_by_position(const torch::optim::Optimizer& optimizer, const Dict& state, const HookTable& hooks);

}  // namespace dcp

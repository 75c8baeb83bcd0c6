#include "torch_dcp/model_state/training_state.h"

#include <torch/nn/module.h>

#include "torch_dcp/model_state/call_group_internal.h"
#include "torch_dcp/model_state/optimizer_state_dict.h"
#include "torch_dcp/model_state/state_load_internal.h"
#include "torch_dcp/model_state/state_read_internal.h"

namespace dcp {

Dict get_optimizer_state_dict(const torch::nn::Module& module, const ConstOptimizerRefs& optimizers,
                              const StateDictOptions& options, const Submodules& submodules) {
  verify_options(module, options, {.has_model = false, .optimizers = optimizers});
  const StateNames names(module, options, submodules);
  Dict state = read_optimizers(optimizers, names, options);
  const auto group = options.full_state_dict ? communicator_of(options) : nullptr;
  return materialize(std::move(state), options, group.get());
}

LoadReport set_optimizer_state_dict(const torch::nn::Module& module, const OptimizerRefs& optimizers, const Dict& state,
                                    const StateDictOptions& options, const Submodules& submodules) {
  return StateLoad(module, nullptr, optimizers, options, submodules).run({.optimizers = &state});
}

std::pair<Dict, OptimizerState> get_state_dict(const torch::nn::Module& module, const ConstOptimizerRefs& optimizers,
                                               const StateDictOptions& options, const Submodules& submodules) {
  verify_options(module, options, {.optimizers = optimizers});
  const StateNames names(module, options, submodules);
  Dict model = read_model(module, names, options);
  Dict of_optimizers;
  if (!optimizers.pointers().empty()) of_optimizers = read_optimizers(optimizers, names, options);
  const auto group = options.full_state_dict ? communicator_of(options) : nullptr;
  model = materialize(std::move(model), options, group.get());
  of_optimizers = materialize(std::move(of_optimizers), options, group.get());
  return {std::move(model), std::move(of_optimizers)};
}

LoadReport set_state_dict(torch::nn::Module& module, const OptimizerRefs& optimizers, const Dict& model_state,
                          const OptimizerState& optimizer_state, const StateDictOptions& options,
                          const Submodules& submodules) {
  GivenStates given = {.model = &model_state};
  if (!optimizers.pointers().empty()) {
    given.optimizers = &optimizer_state;
    given.is_model_optional = true;
  }
  return StateLoad(module, &module, optimizers, options, submodules).run(given);
}

}  // namespace dcp

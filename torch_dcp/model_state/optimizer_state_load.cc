#include <torch/optim/optimizer.h>

#include "torch_dcp/base/fault_list.h"
#include "torch_dcp/model_state/optimizer_load_internal.h"
#include "torch_dcp/model_state/optimizer_state_dict.h"
#include "torch_dcp/model_state/optimizer_state_internal.h"

namespace dcp {

LoadReport write_optimizer_state(const std::vector<OptimizerParameter>& parameters, torch::optim::Optimizer& optimizer,
                                 const Dict& state, const OptimizerLoadArgs& args, const HookTable& hooks) {
  OptimizerLoad load(parameters, optimizer, args, hooks);
  FaultList faults;
  load.check(state, faults);
  faults.throw_if_any(OptimizerLoad::kHeading, DCP_WHERE);
  apply_parts({&load}, {.subject = "the optimizer", .keeps_elements = load.runs_code_last()});
  return load.report();
}

std::optional<Dict> run_load_pre_hooks(const torch::optim::Optimizer& optimizer, const HookTable& hooks,
                                       const Dict& given) {
  const auto pre_hooks = hooks.of<OptimizerLoadPre>(&optimizer);
  if (pre_hooks.empty()) return std::nullopt;
  Dict state = given;
  for (const OptimizerLoadPre* hook : pre_hooks) hook->call(state);
  return state;
}

LoadReport set_optimizer_state_dict(const std::vector<OptimizerParameter>& parameters,
                                    torch::optim::Optimizer& optimizer, const Dict& state,
                                    const OptimizerStateOptions& options) {
  const HookTable hooks = current_hooks();
  const std::optional<Dict> changed = run_load_pre_hooks(optimizer, hooks, state);
  return write_optimizer_state(parameters, optimizer, changed ? *changed : state, {.options = options}, hooks);
}

}  // namespace dcp

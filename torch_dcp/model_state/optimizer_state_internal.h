#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "torch_dcp/model_state/hook_registry_internal.h"
#include "torch_dcp/model_state/live_parameters_internal.h"
#include "torch_dcp/model_state/optimizer_state_dict.h"

namespace dcp {

/// What stands in a state for a parameter that the optimizer has never stepped.
enum class NeverStepped : std::uint8_t {
  kHasInitialState,  ///< the state with which it would go on the same; a strict load needs it
  kHasNoState,       ///< nothing, as in Python's `Optimizer.state_dict()`
};

/// What a load of an optimizer may be told beside its options.
struct OptimizerLoadArgs {
  OptimizerStateOptions options = {};
  NeverStepped never_stepped = NeverStepped::kHasInitialState;
  /// Parameters whose state stays as it is, by identity; their groups may change with others of them.
  TensorSet left_alone = {};
  /// Names of parameters of other optimizers that load from the same dict.
  std::unordered_set<std::string> foreign = {};
  /// Where the optimizer's first group is among those of all optimizers that load from the dict; if given, and not
  /// strict, a group that is not listed takes the options of the stored one at its position.
  std::optional<std::size_t> position = std::nullopt;
  /// Its first empty group among the empty ones.
  std::size_t empty_position = 0;
};

/// `get_optimizer_state_dict` without hooks; nothing of parameters that are left out.
Dict read_optimizer_state(const std::vector<OptimizerParameter>& parameters, const torch::optim::Optimizer& optimizer,
                          const OptimizerStateOptions& options, NeverStepped never_stepped,
                          const TensorSet& left_out = {});

/// `set_optimizer_state_dict` without load pre hooks. Runs the load post hooks in `hooks`; what they or adapters throw
/// leaves options and state as they were.
LoadReport write_optimizer_state(const std::vector<OptimizerParameter>& parameters, torch::optim::Optimizer& optimizer,
                                 const Dict& state, const OptimizerLoadArgs& args, const HookTable& hooks);

/// A value of the parameter's shape is spread as the parameter is.
Value spread_like(const OptimizerParameter& parameter, Value value);

// The hooks of an optimizer, at the moments of a call.
void run_save_pre_hooks(const torch::optim::Optimizer& optimizer, const HookTable& hooks);
void run_save_post_hooks(const torch::optim::Optimizer& optimizer, const HookTable& hooks, Dict& state);
/// The copy of `given` that the hooks have changed; nothing if there are none.
std::optional<Dict> run_load_pre_hooks(const torch::optim::Optimizer& optimizer, const HookTable& hooks,
                                       const Dict& given);

}  // namespace dcp

#include "torch_dcp/model_state/optimizer_state_dict.h"

#include <torch/optim/optimizer.h>

#include <utility>

#include "torch_dcp/model_state/live_parameters_internal.h"
#include "torch_dcp/model_state/optimizer_adapter.h"
#include "torch_dcp/model_state/optimizer_state_internal.h"

namespace dcp {
namespace {

using Group = std::vector<const OptimizerParameter*>;

/// Reads states of parameters by their names.
class StateReader {
 public:
  StateReader(const torch::optim::Optimizer& optimizer, const OptimizerAdapter& adapter, NeverStepped never_stepped)
      : optimizer_(optimizer), adapter_(adapter), never_stepped_(never_stepped) {}

  void add(const Group& group, const torch::optim::OptimizerOptions& options, Dict& out) const {
    if (!adapter_.has_one_state_per_group()) {
      for (const OptimizerParameter* parameter : group) {
        Dict values = state_of(*parameter, parameter->tensor.requires_grad(), options);
        for (auto& [name, value] : values) value = spread_like(*parameter, std::move(value));
        if (!values.empty()) out.insert_or_assign(parameter->fqn, std::move(values));
      }
    } else if (!group.empty()) {
      Dict values = state_of(*group.front(), has_trainable(group), options);
      if (!values.empty()) out.insert_or_assign(group.front()->fqn, std::move(values));
    }
  }

 private:
  /// Empty for a parameter without state.
  Dict state_of(const OptimizerParameter& parameter, bool is_trainable,
                const torch::optim::OptimizerOptions& options) const {
    const auto it = optimizer_.state().find(parameter.tensor.unsafeGetTensorImpl());
    if (it != optimizer_.state().end() && it->second != nullptr) return adapter_.read_state(*it->second);
    const bool has_initial = is_trainable && never_stepped_ == NeverStepped::kHasInitialState;
    return has_initial ? adapter_.initial_state(parameter.tensor, options) : Dict();
  }

  const torch::optim::Optimizer& optimizer_;
  const OptimizerAdapter& adapter_;
  NeverStepped never_stepped_;
};

void append_flattened(const std::string& prefix, Dict values, Dict& out) {
  for (auto& [name, value] : values) out.insert_or_assign(prefix + "." + to_string(name), std::move(value));
}

struct NestedState {
  Dict state;
  List groups;
};

Group without(const TensorSet& left_out, const Group& group) {
  Group kept;
  for (const OptimizerParameter* parameter : group) {
    if (!left_out.contains(parameter->tensor.unsafeGetTensorImpl())) kept.push_back(parameter);
  }
  return kept;
}

/// A group all of whose parameters are left out is left out too.
NestedState nested_state(const LiveGroups& live, const torch::optim::Optimizer& optimizer,
                         const OptimizerAdapter& adapter, NeverStepped never_stepped, const TensorSet& left_out) {
  const StateReader reader(optimizer, adapter, never_stepped);
  NestedState result;
  for (std::size_t g = 0; g < live.size(); ++g) {
    const torch::optim::OptimizerOptions& options = optimizer.param_groups()[g].options();
    const Group group_of_call = without(left_out, live[g]);
    if (group_of_call.empty() && !live[g].empty()) continue;
    reader.add(group_of_call, options, result.state);
    List params;
    for (const OptimizerParameter* parameter : group_of_call) params.push_back(parameter->fqn);
    Dict group = adapter.read_options(options);
    group.insert_or_assign("params", std::move(params));
    result.groups.push_back(std::move(group));
  }
  return result;
}

/// The names of a group stay where its state is one of them all, in their order.
Dict flattened(NestedState nested, bool keeps_params) {
  Dict flat;
  for (auto& [fqn, values] : nested.state) append_flattened("state." + to_string(fqn), values.as_dict(), flat);
  for (Value& value : nested.groups) {
    Dict& group = value.as_dict();
    const List params = group.at("params").as_list();
    if (!keeps_params) group.erase("params");
    for (const Value& fqn : params) append_flattened("param_groups." + fqn.as_string(), group, flat);
  }
  return flat;
}

}  // namespace

Value spread_like(const OptimizerParameter& parameter, Value value) {
  if (!parameter.layout || !value.is_tensor()) return value;
  const at::Tensor& tensor = value.as_tensor();
  if (tensor.dim() == 0 || tensor.sizes() != parameter.tensor.sizes()) return value;
  const DTensorLayout& layout = *parameter.layout;
  return DTensor(tensor, layout.mesh, layout.placements, layout.global_sizes);
}

Dict read_optimizer_state(const std::vector<OptimizerParameter>& parameters, const torch::optim::Optimizer& optimizer,
                          const OptimizerStateOptions& options, NeverStepped never_stepped, const TensorSet& left_out) {
  const std::shared_ptr<const OptimizerAdapter> adapter = find_adapter(optimizer, options.adapters);
  const LiveGroups live = find_live_groups(parameters, optimizer);
  check_state_can_be_named(live, *adapter);
  check_state_can_be_divided(live, *adapter, left_out);
  NestedState nested = nested_state(live, optimizer, *adapter, never_stepped, left_out);
  if (options.flatten) return flattened(std::move(nested), adapter->has_one_state_per_group());
  return Dict{{"state", std::move(nested.state)}, {"param_groups", std::move(nested.groups)}};
}

void run_save_pre_hooks(const torch::optim::Optimizer& optimizer, const HookTable& hooks) {
  for (const OptimizerSavePre* hook : hooks.of<OptimizerSavePre>(&optimizer)) hook->call();
}

void run_save_post_hooks(const torch::optim::Optimizer& optimizer, const HookTable& hooks, Dict& state) {
  for (const OptimizerSavePost* hook : hooks.of<OptimizerSavePost>(&optimizer)) hook->call(state);
}

Dict get_optimizer_state_dict(const std::vector<OptimizerParameter>& parameters,
                              const torch::optim::Optimizer& optimizer, const OptimizerStateOptions& options) {
  const HookTable hooks = current_hooks();
  run_save_pre_hooks(optimizer, hooks);
  Dict state = read_optimizer_state(parameters, optimizer, options, NeverStepped::kHasInitialState);
  run_save_post_hooks(optimizer, hooks, state);
  return state;
}

}  // namespace dcp

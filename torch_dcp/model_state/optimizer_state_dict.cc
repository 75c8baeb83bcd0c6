#include "torch_dcp/model_state/optimizer_state_dict.h"

#include <torch/optim/optimizer.h>

#include <utility>

#include "torch_dcp/model_state/live_parameters_internal.h"
#include "torch_dcp/model_state/optimizer_adapter.h"

namespace dcp {
namespace {

/// A value of the parameter's shape is spread as the parameter is.
Value spread_like(const OptimizerParameter& parameter, Value value) {
  if (!parameter.layout || !value.is_tensor()) return value;
  const at::Tensor& tensor = value.as_tensor();
  if (tensor.dim() == 0 || tensor.sizes() != parameter.tensor.sizes()) return value;
  const DTensorLayout& layout = *parameter.layout;
  return DTensor(tensor, layout.mesh, layout.placements, layout.global_sizes);
}

/// Empty for a parameter without state.
Dict state_of(const OptimizerParameter& parameter, bool is_trainable, const torch::optim::Optimizer& optimizer,
              const torch::optim::OptimizerOptions& options, const OptimizerAdapter& adapter) {
  const auto it = optimizer.state().find(parameter.tensor.unsafeGetTensorImpl());
  if (it != optimizer.state().end() && it->second != nullptr) return adapter.read_state(*it->second);
  return is_trainable ? adapter.initial_state(parameter.tensor, options) : Dict();
}

using Group = std::vector<const OptimizerParameter*>;

void add_state_of_each(const Group& group, const torch::optim::Optimizer& optimizer,
                       const torch::optim::OptimizerOptions& options, const OptimizerAdapter& adapter, Dict& out) {
  for (const OptimizerParameter* parameter : group) {
    Dict values = state_of(*parameter, parameter->tensor.requires_grad(), optimizer, options, adapter);
    for (auto& [name, value] : values) value = spread_like(*parameter, std::move(value));
    if (!values.empty()) out.insert_or_assign(parameter->fqn, std::move(values));
  }
}

void add_state_of_all(const Group& group, const torch::optim::Optimizer& optimizer,
                      const torch::optim::OptimizerOptions& options, const OptimizerAdapter& adapter, Dict& out) {
  if (group.empty()) return;
  Dict values = state_of(*group.front(), has_trainable(group), optimizer, options, adapter);
  if (!values.empty()) out.insert_or_assign(group.front()->fqn, std::move(values));
}

void append_flattened(const std::string& prefix, Dict values, Dict& out) {
  for (auto& [name, value] : values) out.insert_or_assign(prefix + "." + to_string(name), std::move(value));
}

struct NestedState {
  Dict state;
  List groups;
};

NestedState nested_state(const LiveGroups& live, const torch::optim::Optimizer& optimizer,
                         const OptimizerAdapter& adapter) {
  NestedState result;
  for (std::size_t g = 0; g < live.size(); ++g) {
    const torch::optim::OptimizerOptions& options = optimizer.param_groups()[g].options();
    const auto add_state = adapter.has_one_state_per_group() ? add_state_of_all : add_state_of_each;
    add_state(live[g], optimizer, options, adapter, result.state);
    List params;
    for (const OptimizerParameter* parameter : live[g]) params.push_back(parameter->fqn);
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

Dict get_optimizer_state_dict(const std::vector<OptimizerParameter>& parameters,
                              const torch::optim::Optimizer& optimizer, const OptimizerStateOptions& options) {
  const std::shared_ptr<const OptimizerAdapter> adapter = find_adapter(optimizer, options.adapters);
  const LiveGroups live = find_live_groups(parameters, optimizer);
  check_state_can_be_named(live, *adapter);
  NestedState nested = nested_state(live, optimizer, *adapter);
  if (options.flatten) return flattened(std::move(nested), adapter->has_one_state_per_group());
  return Dict{{"state", std::move(nested.state)}, {"param_groups", std::move(nested.groups)}};
}

Dict get_optimizer_state_dict(const torch::nn::Module& module, const torch::optim::Optimizer& optimizer,
                              const OptimizerStateOptions& options) {
  return get_optimizer_state_dict(optimizer_parameters(module), optimizer, options);
}

}  // namespace dcp

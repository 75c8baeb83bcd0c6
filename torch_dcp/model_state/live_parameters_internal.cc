#include "torch_dcp/model_state/live_parameters_internal.h"

#include <c10/util/Type.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <typeinfo>
#include <unordered_map>
#include <utility>

#include "torch_dcp/base/fault_list.h"
#include "torch_dcp/model_state/layout_internal.h"

namespace dcp {
namespace {

/// LibTorch keys the state of a parameter by this address.
const void* identity(const at::Tensor& tensor) { return tensor.unsafeGetTensorImpl(); }

using Index = std::unordered_map<const void*, const OptimizerParameter*>;

/// The first entry of a tensor counts.
Index index_of(const std::vector<OptimizerParameter>& parameters, FaultList& faults) {
  Index index;
  std::unordered_map<std::string, const void*> names;
  for (const OptimizerParameter& parameter : parameters) {
    index.try_emplace(identity(parameter.tensor), &parameter);
    const auto [it, is_new] = names.try_emplace(parameter.fqn, identity(parameter.tensor));
    if (!is_new && it->second != identity(parameter.tensor)) {
      faults.add(ErrorKind::kKey, parameter.fqn, "names two parameters");
    }
  }
  return index;
}

}  // namespace

bool has_trainable(const std::vector<const OptimizerParameter*>& group) {
  return std::any_of(group.begin(), group.end(),
                     [](const OptimizerParameter* parameter) { return parameter->tensor.requires_grad(); });
}

LiveGroups find_live_groups(const std::vector<OptimizerParameter>& parameters,
                            const torch::optim::Optimizer& optimizer) {
  FaultList faults;
  const Index index = index_of(parameters, faults);
  LiveGroups groups;
  for (const auto& group : optimizer.param_groups()) {
    std::vector<const OptimizerParameter*>& named = groups.emplace_back();
    for (const at::Tensor& tensor : group.params()) {
      const auto it = index.find(identity(tensor));
      if (it != index.end()) {
        named.push_back(it->second);
      } else {
        faults.add(
            ErrorKind::kKey, c10::str("param_groups.", groups.size() - 1),
            c10::str("parameter ", named.size(), ", of shape ", tensor.sizes(), ", is none of those that have a name"));
        named.push_back(nullptr);
      }
    }
  }
  faults.throw_if_any("cannot name the parameters of the optimizer", DCP_WHERE);
  return groups;
}

void check_state_can_be_named(const LiveGroups& groups, const OptimizerAdapter& adapter) {
  if (!adapter.has_one_state_per_group()) return;
  FaultList faults;
  for (const auto& group : groups) {
    for (const OptimizerParameter* parameter : group) {
      if (parameter->layout && !is_replicated(parameter->layout->placements)) {
        faults.add(ErrorKind::kUnsupported, parameter->fqn,
                   "is a part of a parameter, and this optimizer has one state of all elements of its parameters, "
                   "which belongs to no part of the whole");
      }
    }
  }
  faults.throw_if_any("cannot name the state of the optimizer", DCP_WHERE);
}

void check_state_can_be_divided(const LiveGroups& groups, const OptimizerAdapter& adapter,
                                const TensorSet& left_alone) {
  if (!adapter.has_one_state_per_group() || left_alone.empty()) return;
  FaultList faults;
  for (const auto& group : groups) {
    const auto is_outside = [&](const OptimizerParameter* parameter) {
      return left_alone.contains(identity(parameter->tensor));
    };
    if (std::all_of(group.begin(), group.end(), is_outside)) continue;
    for (const OptimizerParameter* parameter : group) {
      if (!is_outside(parameter)) continue;
      faults.add(ErrorKind::kUnsupported, parameter->fqn,
                 "shares its state with parameters in the submodules, since this optimizer has one state of them all");
    }
  }
  faults.throw_if_any("cannot divide the state of the optimizer", DCP_WHERE);
}

std::shared_ptr<const OptimizerAdapter> find_adapter(const torch::optim::Optimizer& optimizer,
                                                     const OptimizerAdapters& adapters) {
  for (const OptimizerAdapters& list : {adapters, built_in_optimizer_adapters()}) {
    for (const auto& adapter : list) {
      if (adapter->handles(optimizer)) return adapter;
    }
  }
  DCP_THROW(kType, "no adapter knows the optimizer ", c10::demangle(typeid(optimizer).name()),
            ": give one in OptimizerStateOptions::adapters");
}

}  // namespace dcp

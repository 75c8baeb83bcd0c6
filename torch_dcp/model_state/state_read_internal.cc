#include "torch_dcp/model_state/state_read_internal.h"

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <utility>

#include "torch_dcp/base/fault_list.h"
#include "torch_dcp/model_state/module_state_dict_internal.h"
#include "torch_dcp/model_state/naming_internal.h"
#include "torch_dcp/model_state/optimizer_state_internal.h"
#include "torch_dcp/transform/gather.h"
#include "torch_dcp/transform/offload.h"

namespace dcp {
namespace {

/// A flat parameter is known by the names in it where the wrapper that made it is the root, which hooks see to.
void refuse_flat_parameters(const Dict& state) {
  for (const auto& [key, value] : state) {
    const std::string name = to_string(key);
    DCP_CHECK(name != kFlatParameter && !name.ends_with(std::string(".") + kFlatParameter), kState, "'", name,
              "' is a flat parameter: the module is not the root of what shards it");
  }
}

Dict with_shown_names(Dict own, const StateNames& names) {
  if (names.is_plain()) return own;
  Dict shown;
  FaultList faults;
  for (auto& [key, value] : own) {
    const std::string* name = std::get_if<std::string>(&key);
    if (name != nullptr && !names.needs(*name)) continue;
    const Key shown_key = name == nullptr ? key : Key(names.shown(*name));
    if (shown.contains(shown_key))
      faults.add(ErrorKind::kKey, to_string(shown_key), "would be the name of two entries");
    shown.insert_or_assign(shown_key, std::move(value));
  }
  faults.throw_if_any("names in the state of the module", DCP_WHERE);
  return shown;
}

/// Puts one optimizer's state into that of all.
class OptimizerMerge {
 public:
  explicit OptimizerMerge(bool is_flat) : is_flat_(is_flat) {}

  void add(Dict state) {
    if (is_flat_) {
      for (auto& [key, value] : state) add_entry(to_string(key), merged_, key, std::move(value));
      return;
    }
    for (auto& [key, value] : state) {
      if (key == Key("state") && value.is_dict()) {
        Dict& states = sub_dict(merged_, key);
        for (auto& [name, values] : value.as_dict()) {
          add_entry("state." + to_string(name), states, name, std::move(values));
        }
      } else if (key == Key("param_groups") && value.is_list()) {
        if (!merged_.contains(key)) merged_.insert_or_assign(key, List());
        List& groups = merged_.at(key).as_list();
        for (Value& group : value.as_list()) groups.push_back(std::move(group));
      } else {
        add_entry(to_string(key), merged_, key, std::move(value));  // A hook's.
      }
    }
  }

  Dict take() {
    faults_.throw_if_any("states of several optimizers", DCP_WHERE);
    return std::move(merged_);
  }

 private:
  static Dict& sub_dict(Dict& dict, const Key& key) {
    if (!dict.contains(key)) dict.insert_or_assign(key, Dict());
    return dict.at(key).as_dict();
  }

  void add_entry(const std::string& text, Dict& into, const Key& key, Value value) {
    if (into.contains(key)) faults_.add(ErrorKind::kKey, text, "is in the states of two optimizers");
    into.insert_or_assign(key, std::move(value));
  }

  bool is_flat_;
  Dict merged_;
  FaultList faults_;
};

void refuse_shared_parameters(const ConstOptimizerRefs& optimizers, const StateNames& names) {
  if (optimizers.pointers().size() < 2) return;
  std::unordered_map<const void*, const torch::optim::Optimizer*> first;
  std::unordered_set<const void*> shared;
  for (const torch::optim::Optimizer* optimizer : optimizers.pointers()) {
    for (const auto& group : optimizer->param_groups()) {
      for (const at::Tensor& tensor : group.params()) {
        const auto [it, is_new] = first.try_emplace(tensor.unsafeGetTensorImpl(), optimizer);
        if (!is_new && it->second != optimizer) shared.insert(tensor.unsafeGetTensorImpl());
      }
    }
  }
  FaultList faults;
  for (const NamedParameter& named : names.parameters()) {
    if (shared.contains(named.parameter.tensor.unsafeGetTensorImpl())) {
      faults.add(ErrorKind::kKey, named.parameter.fqn, "is a parameter of two optimizers");
    }
  }
  faults.throw_if_any("states of several optimizers", DCP_WHERE);
}

}  // namespace

Dict read_model(const torch::nn::Module& module, const StateNames& names, const StateDictOptions& options) {
  std::set<std::string> left_out;
  for (const std::string& name : options.non_persistent_buffers) left_out.insert(names.own(name).value_or(name));
  Dict state = with_shown_names(own_state_dict(module, "", left_out), names);
  refuse_flat_parameters(state);
  const bool may_be_empty = !options.strict || names.is_limited() || options.ignore_frozen_params;
  DCP_CHECK(!state.empty() || may_be_empty, kState, "the state of the module is empty");
  return state;
}

Dict read_optimizers(const ConstOptimizerRefs& optimizers, const StateNames& names, const StateDictOptions& options) {
  refuse_shared_parameters(optimizers, names);
  std::vector<OptimizerParameter> parameters;
  TensorSet left_out;
  for (const NamedParameter& named : names.parameters()) {
    OptimizerParameter& parameter = parameters.emplace_back(named.parameter);
    if (named.is_selected) continue;
    parameter.fqn += " (outside of the submodules)";
    left_out.insert(parameter.tensor.unsafeGetTensorImpl());
  }
  const OptimizerStateOptions state_options = {.flatten = options.flatten_optimizer_state_dict,
                                               .adapters = options.adapters};
  const HookTable hooks = current_hooks();
  OptimizerMerge merge(options.flatten_optimizer_state_dict);
  for (const torch::optim::Optimizer* optimizer : optimizers.pointers()) {
    run_save_pre_hooks(*optimizer, hooks);
    Dict state = read_optimizer_state(parameters, *optimizer, state_options, NeverStepped::kHasInitialState, left_out);
    run_save_post_hooks(*optimizer, hooks, state);
    merge.add(std::move(state));
  }
  return merge.take();
}

Dict materialize(Dict state, const StateDictOptions& options, Communicator* communicator) {
  if (options.full_state_dict) {
    GatherOptions gathering = {.cpu_offload = options.cpu_offload, .bucket_bytes = options.bucket_bytes};
    if (options.cpu_offload) gathering.ranks = {0};
    if (communicator != nullptr) return gather(state, *communicator, gathering);
    Communicator alone = Communicator::single();
    return gather(state, alone, gathering);
  }
  return options.cpu_offload ? offload(state) : std::move(state);
}

}  // namespace dcp

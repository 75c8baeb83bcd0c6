#include "torch_dcp/model_state/model_state_dict.h"

#include <torch/nn/module.h>

#include <unordered_map>

#include "torch_dcp/base/fault_list.h"
#include "torch_dcp/model_state/call_group_internal.h"
#include "torch_dcp/model_state/naming_internal.h"
#include "torch_dcp/model_state/state_load_internal.h"
#include "torch_dcp/model_state/state_read_internal.h"

namespace dcp {

Dict get_model_state_dict(const torch::nn::Module& module, const StateDictOptions& options,
                          const Submodules& submodules) {
  verify_options(module, options, {});
  const StateNames names(module, options, submodules);
  Dict state = read_model(module, names, options);
  const auto group = options.full_state_dict ? communicator_of(options) : nullptr;
  return materialize(std::move(state), options, group.get());
}

LoadReport set_model_state_dict(torch::nn::Module& module, const Dict& state, const StateDictOptions& options,
                                const Submodules& submodules) {
  return StateLoad(module, &module, {}, options, submodules).run({.model = &state});
}

LoadReport set_model_state_dict(torch::nn::Module& module, const ModuleStates& states,
                                const StateDictOptions& options) {
  std::unordered_map<const torch::nn::Module*, std::string> prefixes;
  visit_places(module, Naming(naming_of(options)),
               [&](const ModulePlace& place) { prefixes.try_emplace(&place.module, place.clean_prefix); });
  Dict all;
  FaultList faults;
  for (std::size_t i = 0; i < states.entries().size(); ++i) {
    const auto& [part, state] = states.entries()[i];
    const auto prefix = prefixes.find(part);
    if (prefix == prefixes.end()) {
      faults.add(ErrorKind::kKey, c10::str("states[", i, "]"), "is the state of a module that is not in the module");
      continue;
    }
    for (const auto& [key, value] : state) {
      const std::string name = prefix->second + to_string(key);
      if (all.contains(name)) faults.add(ErrorKind::kKey, name, "is in the states of two modules");
      all.insert_or_assign(name, value);
    }
  }
  faults.throw_if_any("states of several modules", DCP_WHERE);
  return set_model_state_dict(module, all, options);
}

}  // namespace dcp

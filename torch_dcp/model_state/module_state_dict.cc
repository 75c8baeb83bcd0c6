#include "torch_dcp/model_state/module_state_dict.h"

#include <torch/nn/module.h>

#include <optional>
#include <utility>

#include "torch_dcp/base/fault_list.h"
#include "torch_dcp/model_state/module_load_internal.h"
#include "torch_dcp/model_state/module_parts_internal.h"
#include "torch_dcp/model_state/module_state_dict_internal.h"

namespace dcp {
namespace {

using torch::nn::Module;

/// Builds a state, module by module.
class ModuleSave {
 public:
  ModuleSave(const HookTable& hooks, const std::set<std::string>& left_out) : hooks_(hooks), parts_(hooks, left_out) {}

  Dict run(const Module& module, const std::string& prefix) {
    visit(module, prefix);
    parts_.check_names();
    return std::move(state_);
  }

 private:
  void visit(const Module& module, const std::string& prefix) {
    for (const ModuleSavePre* hook : hooks_.of<ModuleSavePre>(&module)) hook->call(prefix);
    for (ModuleTensor& entry : parts_.tensors(module, prefix)) {
      state_.insert_or_assign(entry.fqn, std::move(entry.tensor));
    }
    if (std::optional<Value> extra = parts_.extra_state(module)) {
      state_.insert_or_assign(extra_state_key(prefix), *std::move(extra));
    }
    for (const auto& child : module.named_children()) {
      if (child.value()) visit(*child.value(), prefix + child.key() + ".");
    }
    for (const ModuleSavePost* hook : hooks_.of<ModuleSavePost>(&module)) hook->call(state_, prefix);
  }

  const HookTable& hooks_;
  ModuleParts parts_;
  Dict state_;
};

LoadReport load(Module& module, const Dict& state, const LoadStateDictOptions& options, const HookTable& hooks) {
  const ModuleLoadArgs args = {.options = options};
  ModuleLoad part(module, hooks, args);
  FaultList faults;
  part.check(state, faults);
  faults.throw_if_any(ModuleLoad::kHeading, DCP_WHERE);
  apply_parts({&part}, {.subject = "the module", .keeps_elements = part.runs_code_last()});
  return part.report();
}

}  // namespace

Dict own_state_dict(const Module& module, const std::string& prefix, const std::set<std::string>& left_out) {
  const HookTable hooks = current_hooks();
  return ModuleSave(hooks, left_out).run(module, prefix);
}

Dict state_dict(const Module& module, const StateDictArgs& args) {
  const HookTable hooks = current_hooks();
  if (const ModulePatch* patch = hooks.first_of<ModulePatch>(&module)) return patch->get(module);
  return ModuleSave(hooks, {}).run(module, args.prefix);
}

LoadReport load_state_dict(Module& module, const Dict& state, const LoadStateDictOptions& options) {
  const HookTable hooks = current_hooks();
  if (const ModulePatch* patch = hooks.first_of<ModulePatch>(&module)) return patch->set(module, state);
  return load(module, state, options, hooks);
}

}  // namespace dcp

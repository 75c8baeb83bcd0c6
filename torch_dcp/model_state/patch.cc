#include "torch_dcp/model_state/patch.h"

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include "torch_dcp/base/error.h"
#include "torch_dcp/model_state/hook_registry_internal.h"
#include "torch_dcp/model_state/model_state_dict.h"
#include "torch_dcp/model_state/optimizer_state_dict.h"

namespace dcp {
namespace {

/// Nothing is sent to others by asking.
StateDictOptions options_of_getter(StateDictOptions options) {
  options.broadcast_from_rank0 = false;
  return options;
}

void verify_both_ways(const torch::nn::Module& module, const StateDictOptions& options, bool has_model,
                      const OptimizerRefs& optimizers) {
  verify_options(module, options_of_getter(options),
                 {.is_getter = true, .has_model = has_model, .optimizers = optimizers});
  verify_options(module, options, {.is_getter = false, .has_model = has_model, .optimizers = optimizers});
}

}  // namespace

HookHandle patch_model_state_dict(torch::nn::Module& module, const StateDictOptions& options) {
  verify_both_ways(module, options, /*has_model=*/true, {});
  ModulePatch patch;
  patch.get = [options = options_of_getter(options)](const torch::nn::Module& patched) {
    return get_model_state_dict(patched, options);
  };
  patch.set = [options](torch::nn::Module& patched, const Dict& state) {
    return set_model_state_dict(patched, state, options);
  };
  return attach(module, std::move(patch), "the module's state_dict and load_state_dict are patched already");
}

HookHandle patch_optimizer_state_dict(torch::nn::Module& module, const OptimizerRefs& optimizers,
                                      const StateDictOptions& options) {
  verify_both_ways(module, options, /*has_model=*/false, optimizers);
  const auto check_alive = [guard = SubjectGuard(module)] {
    DCP_CHECK(guard.is_alive(), kState, "the module that names the parameters of a patched optimizer is gone");
  };
  OptimizerPatch patch;
  patch.get = [&module, optimizers, check_alive, options = options_of_getter(options)](const torch::optim::Optimizer&) {
    check_alive();
    return get_optimizer_state_dict(module, optimizers, options);
  };
  patch.set = [&module, optimizers, check_alive, options](torch::optim::Optimizer&, const Dict& state) {
    check_alive();
    return set_optimizer_state_dict(module, optimizers, state, options);
  };
  HookHandle handle;
  for (torch::optim::Optimizer* optimizer : optimizers.pointers()) {
    handle.add(attach(*optimizer, patch, "the optimizer's state_dict and load_state_dict are patched already"));
  }
  return handle;
}

}  // namespace dcp

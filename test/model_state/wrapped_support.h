#pragma once

#include <torch/torch.h>

#include <memory>
#include <string>

#include "torch_dcp/model_state/wrappers.h"

/// Wrappers of modules as programs have them, for tests of names.
namespace dcp::test {

namespace nn = torch::nn;

/// Known by its class.
struct DistributedDataParallelImpl : nn::Module {
  explicit DistributedDataParallelImpl(std::shared_ptr<nn::Module> inner) {
    register_module("module", std::move(inner));
  }
};
TORCH_MODULE(DistributedDataParallel);

struct OptimizedModuleImpl : nn::Module {
  explicit OptimizedModuleImpl(std::shared_ptr<nn::Module> inner) { register_module("_orig_mod", std::move(inner)); }
};
TORCH_MODULE(OptimizedModule);

/// Known by the name of its child.
struct RecomputedImpl : nn::Module {
  explicit RecomputedImpl(std::shared_ptr<nn::Module> inner) {
    register_module("_checkpoint_wrapped_module", std::move(inner));
  }
};
TORCH_MODULE(Recomputed);

/// A module of the user's own that calls a child `module`: no wrapper.
struct HolderImpl : nn::Module {
  explicit HolderImpl(std::shared_ptr<nn::Module> inner) { register_module("module", std::move(inner)); }
};
TORCH_MODULE(Holder);

/// Says by itself that it wraps.
struct AdapterImpl : nn::Module, HasInnerModule {
  explicit AdapterImpl(std::shared_ptr<nn::Module> inner) { register_module("base", std::move(inner)); }
  std::string inner_module_name() const override { return "base"; }
};
TORCH_MODULE(Adapter);

/// A child under any name.
struct BoxImpl : nn::Module {
  BoxImpl(const std::string& name, std::shared_ptr<nn::Module> inner) { register_module(name, std::move(inner)); }
  at::Tensor forward(const at::Tensor& input) { return input; }
};
TORCH_MODULE(Box);

}  // namespace dcp::test

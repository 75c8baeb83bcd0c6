#include <torch/optim/rmsprop.h>

#include "torch_dcp/model_state/optimizers/adapters_internal.h"
#include "torch_dcp/model_state/optimizers/table_adapter_internal.h"

// Source: torch/optim/rmsprop.py (2.14.1); torch/csrc/api/src/optim/rmsprop.cpp.

namespace dcp {
namespace {

using torch::optim::RMSpropOptions;
using Adapter = TableAdapter<torch::optim::RMSprop, RMSpropOptions, torch::optim::RMSpropParamState>;

std::vector<Adapter::Option> options() {
  return {
      Adapter::option("lr", [](auto& o) -> auto& { return o.lr(); }),
      Adapter::option("momentum", [](auto& o) -> auto& { return o.momentum(); }),
      Adapter::option("alpha", [](auto& o) -> auto& { return o.alpha(); }),
      Adapter::option("eps", [](auto& o) -> auto& { return o.eps(); }),
      Adapter::option("centered", [](auto& o) -> auto& { return o.centered(); }),
      Adapter::option("weight_decay", [](auto& o) -> auto& { return o.weight_decay(); }),
      Adapter::capturable(),
      Adapter::foreach (),
      Adapter::maximize(),
      Adapter::differentiable(),
  };
}

std::vector<Adapter::Field> fields() {
  return {
      Adapter::counter("step", [](auto& s) -> auto& { return s.step(); }),
      Adapter::tensor("square_avg", [](auto& s) -> auto& { return s.square_avg(); }),
      Adapter::tensor(
          "momentum_buffer", [](auto& s) -> auto& { return s.momentum_buffer(); },
          [](const RMSpropOptions& o) { return o.momentum() > 0; }),
      Adapter::tensor(
          "grad_avg", [](auto& s) -> auto& { return s.grad_avg(); },
          [](const RMSpropOptions& o) { return o.centered(); }),
  };
}

}  // namespace

std::shared_ptr<const OptimizerAdapter> make_rmsprop_adapter() {
  return std::make_shared<Adapter>(options(), fields());
}

}  // namespace dcp

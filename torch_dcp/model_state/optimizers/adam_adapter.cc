#include <torch/optim/adam.h>

#include "torch_dcp/model_state/optimizers/adapters_internal.h"
#include "torch_dcp/model_state/optimizers/table_adapter_internal.h"

// Source: torch/optim/adam.py (2.14.1); torch/csrc/api/src/optim/adam.cpp.

namespace dcp {
namespace {

using torch::optim::AdamOptions;
using Adapter = TableAdapter<torch::optim::Adam, AdamOptions, torch::optim::AdamParamState>;

std::vector<Adapter::Option> options() {
  return {
      Adapter::option("lr", [](auto& o) -> auto& { return o.lr(); }),
      Adapter::option("betas", [](auto& o) -> auto& { return o.betas(); }),
      Adapter::option("eps", [](auto& o) -> auto& { return o.eps(); }),
      Adapter::option("weight_decay", [](auto& o) -> auto& { return o.weight_decay(); }),
      Adapter::option("amsgrad", [](auto& o) -> auto& { return o.amsgrad(); }),
      Adapter::fixed_option("maximize", false),
      Adapter::ignored_option("foreach", None()),
      Adapter::ignored_option("capturable", false),
      Adapter::fixed_option("differentiable", false),
      Adapter::ignored_option("fused", None()),
      Adapter::fixed_option("decoupled_weight_decay", false),
  };
}

std::vector<Adapter::Field> fields() {
  const auto always = [](const AdamOptions&) { return true; };
  return {
      Adapter::counter("step", [](auto& s) -> auto& { return s.step(); }),
      Adapter::tensor(
          "exp_avg", [](auto& s) -> auto& { return s.exp_avg(); }, always),
      Adapter::tensor(
          "exp_avg_sq", [](auto& s) -> auto& { return s.exp_avg_sq(); }, always),
      Adapter::tensor(
          "max_exp_avg_sq", [](auto& s) -> auto& { return s.max_exp_avg_sq(); },
          [](const AdamOptions& o) { return o.amsgrad(); }),
  };
}

}  // namespace

std::shared_ptr<const OptimizerAdapter> make_adam_adapter() { return std::make_shared<Adapter>(options(), fields()); }

}  // namespace dcp

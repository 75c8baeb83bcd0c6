#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>

#include "torch_dcp/model_state/optimizers/adapters_internal.h"
#include "torch_dcp/model_state/optimizers/table_adapter_internal.h"

// Adam and AdamW: the same options and state, and in Python one optimizer.
// Source: torch/optim/adam.py, adamw.py (2.14.1); torch/csrc/api/src/optim/adam.cpp, adamw.cpp.

namespace dcp {
namespace {

template <typename Optimizer, typename Options, typename State>
std::shared_ptr<const OptimizerAdapter> make_adapter(bool decoupled_weight_decay) {
  using Adapter = TableAdapter<Optimizer, Options, State>;
  std::vector<typename Adapter::Option> options = {
      Adapter::option("lr", [](auto& o) -> auto& { return o.lr(); }),
      Adapter::option("betas", [](auto& o) -> auto& { return o.betas(); }),
      Adapter::option("eps", [](auto& o) -> auto& { return o.eps(); }),
      Adapter::option("weight_decay", [](auto& o) -> auto& { return o.weight_decay(); }),
      Adapter::option("amsgrad", [](auto& o) -> auto& { return o.amsgrad(); }),
      Adapter::maximize(),
      Adapter::foreach (),
      Adapter::capturable(),
      Adapter::differentiable(),
      Adapter::fused(),
      Adapter::fixed_option("decoupled_weight_decay", decoupled_weight_decay),
  };
  std::vector<typename Adapter::Field> fields = {
      Adapter::counter("step", [](auto& s) -> auto& { return s.step(); }),
      Adapter::tensor("exp_avg", [](auto& s) -> auto& { return s.exp_avg(); }),
      Adapter::tensor("exp_avg_sq", [](auto& s) -> auto& { return s.exp_avg_sq(); }),
      Adapter::tensor(
          "max_exp_avg_sq", [](auto& s) -> auto& { return s.max_exp_avg_sq(); },
          [](const Options& o) { return o.amsgrad(); }),
  };
  return std::make_shared<Adapter>(std::move(options), std::move(fields));
}

}  // namespace

std::shared_ptr<const OptimizerAdapter> make_adam_adapter() {
  return make_adapter<torch::optim::Adam, torch::optim::AdamOptions, torch::optim::AdamParamState>(false);
}

std::shared_ptr<const OptimizerAdapter> make_adamw_adapter() {
  return make_adapter<torch::optim::AdamW, torch::optim::AdamWOptions, torch::optim::AdamWParamState>(true);
}

}  // namespace dcp

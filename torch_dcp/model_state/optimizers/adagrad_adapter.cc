#include <ATen/ops/full_like.h>
#include <torch/optim/adagrad.h>

#include "torch_dcp/model_state/optimizers/adapters_internal.h"
#include "torch_dcp/model_state/optimizers/table_adapter_internal.h"

// Adagrad makes the state of all its parameters, frozen ones too, when it is constructed, and its step fails for a
// parameter that has none: one that was added later, until a state is set.
// Source: torch/optim/adagrad.py (2.14.1); torch/optim/adagrad.h, torch/csrc/api/src/optim/adagrad.cpp.

namespace dcp {
namespace {

using torch::optim::AdagradOptions;
using Table = TableAdapter<torch::optim::Adagrad, AdagradOptions, torch::optim::AdagradParamState>;

constexpr const char* kSum = "sum";

std::vector<Table::Option> options() {
  return {
      Table::option("lr", [](auto& o) -> auto& { return o.lr(); }),
      Table::option("lr_decay", [](auto& o) -> auto& { return o.lr_decay(); }),
      Table::option("eps", [](auto& o) -> auto& { return o.eps(); }),
      Table::option("weight_decay", [](auto& o) -> auto& { return o.weight_decay(); }),
      Table::option("initial_accumulator_value", [](auto& o) -> auto& { return o.initial_accumulator_value(); }),
      Table::foreach (),
      Table::maximize(),
      Table::differentiable(),
      Table::fused(),
  };
}

std::vector<Table::Field> fields() {
  return {
      Table::counter("step", [](auto& s) -> auto& { return s.step(); }),
      Table::tensor(kSum, [](auto& s) -> auto& { return s.sum(); }),
  };
}

class AdagradAdapter : public Table {
 public:
  AdagradAdapter() : Table(options(), fields()) {}

  bool needs_state_to_step() const override { return true; }

  Dict initial_state(const at::Tensor& parameter, const torch::optim::OptimizerOptions& options) const override {
    Dict values = Table::initial_state(parameter, options);
    values[kSum] = at::full_like(parameter.detach(), as<const AdagradOptions>(options).initial_accumulator_value());
    return values;
  }
};

}  // namespace

std::shared_ptr<const OptimizerAdapter> make_adagrad_adapter() { return std::make_shared<AdagradAdapter>(); }

}  // namespace dcp

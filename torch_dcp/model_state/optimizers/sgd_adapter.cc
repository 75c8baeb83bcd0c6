#include <ATen/ops/full_like.h>
#include <torch/optim/sgd.h>

#include "torch_dcp/model_state/optimizers/adapters_internal.h"
#include "torch_dcp/model_state/optimizers/table_adapter_internal.h"

// Source: torch/optim/sgd.py (2.14.1); torch/csrc/api/src/optim/sgd.cpp.
//
// The first step of SGD with momentum does not add to a buffer of zeros, it makes the buffer a copy of the gradient:
// the dampening does not act on it. A parameter that was never stepped therefore has no state that a step would
// continue alike. It is saved as a buffer of negative zeros, so that each trainable parameter has its buffer in a
// checkpoint, and a load has a place for it. To Python these are zeros, as it has them itself; here they stand for no
// state. A real buffer has no other content than negative zeros only if every gradient was -0.0; with dampening 0 the
// next step is the same even then, since -0.0 added to a number leaves its bits.

namespace dcp {
namespace {

using torch::optim::SGDOptions;
using Table = TableAdapter<torch::optim::SGD, SGDOptions, torch::optim::SGDParamState>;

constexpr const char* kBuffer = "momentum_buffer";

std::vector<Table::Option> options() {
  return {
      Table::option("lr", [](auto& o) -> auto& { return o.lr(); }),
      Table::option("momentum", [](auto& o) -> auto& { return o.momentum(); }),
      Table::option("dampening", [](auto& o) -> auto& { return o.dampening(); }),
      Table::option("weight_decay", [](auto& o) -> auto& { return o.weight_decay(); }),
      Table::option("nesterov", [](auto& o) -> auto& { return o.nesterov(); }),
      Table::maximize(),
      Table::foreach (),
      Table::differentiable(),
      Table::fused(),
  };
}

std::vector<Table::Field> fields() {
  return {Table::tensor(
      kBuffer, [](auto& s) -> auto& { return s.momentum_buffer(); },
      [](const SGDOptions& o) { return o.momentum() != 0; })};
}

bool is_all_negative_zero(const at::Tensor& tensor) {
  const at::Tensor reals = tensor.is_complex() ? at::view_as_real(tensor.detach().resolve_conj()) : tensor.detach();
  return reals.eq(0).logical_and(reals.signbit()).all().item<bool>();
}

class SgdAdapter : public Table {
 public:
  SgdAdapter() : Table(options(), fields()) {}

  Dict initial_state(const at::Tensor& parameter, const torch::optim::OptimizerOptions& options) const override {
    Dict values = Table::initial_state(parameter, options);
    for (auto& [name, value] : values) value = at::full_like(parameter.detach(), -0.0);
    return values;
  }

  bool means_no_state(const Dict& values) const override {
    const Value* buffer = values.find(kBuffer);
    return buffer == nullptr || is_all_negative_zero(buffer->as_tensor());
  }
};

}  // namespace

std::shared_ptr<const OptimizerAdapter> make_sgd_adapter() { return std::make_shared<SgdAdapter>(); }

}  // namespace dcp

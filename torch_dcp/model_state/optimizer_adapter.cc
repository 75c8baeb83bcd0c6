#include "torch_dcp/model_state/optimizer_adapter.h"

#include "torch_dcp/model_state/optimizers/adapters_internal.h"

namespace dcp {

OptimizerAdapter::~OptimizerAdapter() = default;

bool OptimizerAdapter::has_one_state_per_group() const { return false; }

bool OptimizerAdapter::needs_state_to_step() const { return false; }

bool OptimizerAdapter::means_no_state(const Dict&) const { return false; }

std::vector<FieldFault> OptimizerAdapter::check_state(const Dict&, const torch::optim::OptimizerOptions&) const {
  return {};
}

OptimizerAdapters built_in_optimizer_adapters() {
  return {
      make_sgd_adapter(),     make_adam_adapter(),    make_adamw_adapter(),
      make_rmsprop_adapter(), make_adagrad_adapter(), make_lbfgs_adapter(),
  };
}

}  // namespace dcp

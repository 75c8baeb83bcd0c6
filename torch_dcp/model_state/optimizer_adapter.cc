#include "torch_dcp/model_state/optimizer_adapter.h"

#include "torch_dcp/model_state/optimizers/adapters_internal.h"

namespace dcp {

OptimizerAdapter::~OptimizerAdapter() = default;

bool OptimizerAdapter::means_no_state(const Dict&) const { return false; }

OptimizerAdapters built_in_optimizer_adapters() {
  return {
      make_sgd_adapter(),
      make_adam_adapter(),
      make_adamw_adapter(),
  };
}

}  // namespace dcp

#pragma once

#include <memory>

#include "torch_dcp/model_state/optimizer_adapter.h"

namespace dcp {

std::shared_ptr<const OptimizerAdapter> make_sgd_adapter();
std::shared_ptr<const OptimizerAdapter> make_adam_adapter();
std::shared_ptr<const OptimizerAdapter> make_adamw_adapter();
std::shared_ptr<const OptimizerAdapter> make_rmsprop_adapter();
std::shared_ptr<const OptimizerAdapter> make_adagrad_adapter();
std::shared_ptr<const OptimizerAdapter> make_lbfgs_adapter();

}  // namespace dcp

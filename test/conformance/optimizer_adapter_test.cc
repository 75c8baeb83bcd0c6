#include <gtest/gtest.h>

#include "test/conformance/optimizer_adapter_suite.h"

namespace dcp::test {
namespace {

namespace optim = torch::optim;

std::shared_ptr<const OptimizerAdapter> adapter_of(const optim::Optimizer& optimizer) {
  for (const auto& adapter : built_in_optimizer_adapters()) {
    if (adapter->handles(optimizer)) return adapter;
  }
  DCP_THROW(kInternal, "no built-in adapter");
}

template <typename Optimizer, typename Options>
OptimizerAdapterCase of(std::string name, const Options& options, bool has_state = true) {
  const auto make = [options](const OptimizerGroups& groups, double lr) -> std::unique_ptr<optim::Optimizer> {
    Options with_rate = options;
    with_rate.lr(lr);
    return std::make_unique<Optimizer>(groups, with_rate);
  };
  const OptimizerGroups one = {optim::OptimizerParamGroup(std::vector<at::Tensor>{at::ones({})})};
  return {std::move(name), adapter_of(*make(one, 1)), make, has_state};
}

INSTANTIATE_TEST_SUITE_P(
    All, OptimizerAdapterSuite,
    ::testing::Values(
        of<optim::SGD>("SGD", optim::SGDOptions(1).weight_decay(0.1), false),
        of<optim::SGD>("SGD_dampening", optim::SGDOptions(1).momentum(0.9).dampening(0.4).weight_decay(0.1)),
        of<optim::SGD>("SGD_nesterov", optim::SGDOptions(1).momentum(0.9).nesterov(true)),
        of<optim::Adam>("Adam", optim::AdamOptions()),
        of<optim::Adam>("Adam_amsgrad", optim::AdamOptions().amsgrad(true).weight_decay(0.1).betas({0.8, 0.9})),
        of<optim::AdamW>("AdamW", optim::AdamWOptions().weight_decay(0.05)),
        of<optim::AdamW>("AdamW_amsgrad", optim::AdamWOptions().amsgrad(true).eps(1e-4)),
        of<optim::RMSprop>("RMSprop", optim::RMSpropOptions().alpha(0.9)),
        of<optim::RMSprop>("RMSprop_momentum", optim::RMSpropOptions().momentum(0.5).weight_decay(0.1)),
        of<optim::RMSprop>("RMSprop_centered", optim::RMSpropOptions().momentum(0.5).centered(true).eps(1e-3)),
        of<optim::Adagrad>("Adagrad", optim::AdagradOptions()),
        of<optim::Adagrad>("Adagrad_decay",
                           optim::AdagradOptions().lr_decay(0.1).initial_accumulator_value(0.5).weight_decay(0.1)),
        of<optim::LBFGS>("LBFGS", optim::LBFGSOptions()),
        of<optim::LBFGS>("LBFGS_short_history", optim::LBFGSOptions().history_size(3).max_iter(4)),
        of<optim::LBFGS>("LBFGS_one_iteration", optim::LBFGSOptions().history_size(2).max_iter(1)),
        of<optim::LBFGS>("LBFGS_line_search", optim::LBFGSOptions().max_iter(5).line_search_fn("strong_wolfe"))),
    case_name);

}  // namespace
}  // namespace dcp::test

// Trains a small model, so that Python can go on from what this saved and this from what Python saved:
//
//   trainer OPTIMIZER FORM GRADIENTS COMMAND...
//
// FORM is of the optimizer's state: "nested" or "flat". GRADIENTS is a checkpoint with a gradient for every step and
// parameter, `{"step0": {"0.weight": ...}, ...}`, or "-": then they are computed, of the loss that python_test.py has.
// Commands run one after the other:
//
//   load=PATH         takes model and optimizer; if it is the first one, options are others before
//   train=FIRST:LAST  makes the steps from FIRST to before LAST
//   save=PATH
//
// The model, its first values, its batch and its optimizers are those of python_test.py.

#include <torch/torch.h>

#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "torch_dcp/dcp.h"

namespace {

torch::nn::Sequential make_model() {
  torch::nn::Sequential model(torch::nn::Linear(4, 8), torch::nn::Tanh(), torch::nn::Linear(8, 2));
  const torch::NoGradGuard no_grad;
  for (torch::Tensor& parameter : model->parameters()) {
    parameter.copy_(torch::arange(parameter.numel(), torch::kFloat32).reshape(parameter.sizes()).sub_(5).div_(16));
  }
  return model;
}

using OptimizerPtr = std::unique_ptr<torch::optim::Optimizer>;

/// \param shift  Of the rate: one that is loaded must not be there already.
OptimizerPtr make_optimizer(const std::string& name, const std::vector<torch::Tensor>& parameters, double shift) {
  using namespace torch::optim;  // NOLINT: options of six kinds
  const auto rate = [&](double lr) { return lr + shift; };
  if (name == "sgd") return std::make_unique<SGD>(parameters, SGDOptions(rate(0.07)));
  if (name == "sgd_momentum") {
    return std::make_unique<SGD>(parameters, SGDOptions(rate(0.07)).momentum(0.6).dampening(0.3).weight_decay(0.1));
  }
  if (name == "sgd_nesterov") {
    return std::make_unique<SGD>(parameters, SGDOptions(rate(0.07)).momentum(0.9).nesterov(true));
  }
  if (name == "rmsprop") {
    return std::make_unique<RMSprop>(parameters, RMSpropOptions(rate(0.03)).alpha(0.7).weight_decay(0.1));
  }
  if (name == "rmsprop_momentum") {
    return std::make_unique<RMSprop>(parameters, RMSpropOptions(rate(0.03)).alpha(0.7).momentum(0.6).eps(1e-3));
  }
  if (name == "rmsprop_centered") {
    return std::make_unique<RMSprop>(parameters,
                                     RMSpropOptions(rate(0.03)).alpha(0.7).momentum(0.6).centered(true).eps(1e-3));
  }
  if (name == "adagrad") {
    return std::make_unique<Adagrad>(
        parameters, AdagradOptions(rate(0.1)).lr_decay(0.3).weight_decay(0.1).initial_accumulator_value(0.6));
  }
  if (name == "adam") return std::make_unique<Adam>(parameters, AdamOptions(rate(0.1)).betas({0.7, 0.9}));
  if (name == "adam_amsgrad") {
    return std::make_unique<Adam>(parameters, AdamOptions(rate(0.1)).amsgrad(true).weight_decay(0.1));
  }
  if (name == "adamw") return std::make_unique<AdamW>(parameters, AdamWOptions(rate(0.1)).weight_decay(0.2));
  if (name == "lbfgs") return std::make_unique<LBFGS>(parameters, LBFGSOptions(rate(0.5)).max_iter(2).history_size(4));
  throw std::invalid_argument("unknown optimizer " + name);
}

dcp::StateDict read_all(const std::string& path) {
  dcp::FileSystemReader reader(path);
  return dcp::load_keys(reader);
}

class Trainer {
 public:
  Trainer(const std::string& optimizer, bool is_flat, const std::string& gradients, double shift)
      : model_(make_model()),
        optimizer_(make_optimizer(optimizer, model_->parameters(), shift)),
        options_{.flatten_optimizer_state_dict = is_flat} {
    if (gradients != "-") gradients_ = read_all(gradients);
  }

  void load(const std::string& path) {
    dcp::StateDict state;
    if (dynamic_cast<const torch::optim::LBFGS*>(optimizer_.get()) != nullptr) {
      // Its history has no place in what an optimizer gives that was never stepped.
      state = read_all(path);
    } else {
      state = state_now();
      dcp::load(state, path);
    }
    dcp::set_model_state_dict(*model_, state["model"].as_dict());
    dcp::set_optimizer_state_dict(*model_, *optimizer_, state["optim"].as_dict(), options_);
  }

  void train(int first, int last) {
    for (int step = first; step < last; ++step) {
      if (gradients_.empty()) {
        optimizer_->step([&] { return backward(); });
      } else {
        take_gradients(gradients_.at("step" + std::to_string(step)).as_dict());
        optimizer_->step();
      }
    }
  }

  void save(const std::string& path) const { dcp::save(state_now(), path); }

 private:
  dcp::StateDict state_now() const {
    return {{"model", dcp::get_model_state_dict(*model_)},
            {"optim", dcp::get_optimizer_state_dict(*model_, *optimizer_, options_)}};
  }

  torch::Tensor backward() {
    const torch::Tensor batch = torch::arange(12, torch::kFloat32).reshape({3, 4}).sub_(6).div_(8);
    optimizer_->zero_grad();
    torch::Tensor sum = model_->forward(batch).square().sum();
    sum.backward();
    return sum;
  }

  void take_gradients(const dcp::StateDict& gradients) {
    for (const auto& item : model_->named_parameters()) {
      torch::Tensor parameter = item.value();
      parameter.mutable_grad() = gradients.at(item.key()).as_tensor().clone();
    }
  }

  torch::nn::Sequential model_;
  OptimizerPtr optimizer_;
  dcp::StateDictOptions options_;
  dcp::StateDict gradients_;
};

void run(const std::string& optimizer, const std::string& form, const std::string& gradients,
         const std::vector<std::string>& commands) {
  const bool is_load_first = !commands.empty() && commands.front().starts_with("load=");
  Trainer trainer(optimizer, form == "flat", gradients, is_load_first ? 1 : 0);
  for (const std::string& command : commands) {
    const std::string argument = command.substr(command.find('=') + 1);
    if (command.starts_with("load=")) {
      trainer.load(argument);
    } else if (command.starts_with("save=")) {
      trainer.save(argument);
    } else if (command.starts_with("train=")) {
      trainer.train(std::stoi(argument), std::stoi(argument.substr(argument.find(':') + 1)));
    } else {
      throw std::invalid_argument("unknown command " + command);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::cerr << "usage: trainer OPTIMIZER nested|flat GRADIENTS [load=PATH | train=FIRST:LAST | save=PATH]...\n";
    return 2;
  }
  try {
    run(argv[1], argv[2], argv[3], {argv + 4, argv + argc});
    return 0;
  } catch (const c10::Error& error) {
    std::cerr << error.what_without_backtrace() << '\n';
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
  }
  return 1;
}

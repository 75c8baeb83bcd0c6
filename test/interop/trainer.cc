// Trains a small model, so that Python can go on from what this saved and this from what Python saved:
//
//   trainer OPTIMIZER STEPS LOAD SAVE
//
// LOAD or SAVE may be "-". The model, its first values and its batch are those of python_test.py.

#include <torch/torch.h>

#include <iostream>
#include <memory>
#include <string>

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

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const std::string& name, torch::nn::Sequential& model) {
  using namespace torch::optim;  // NOLINT: options of six kinds
  if (name == "adam") return std::make_unique<Adam>(model->parameters(), AdamOptions(0.125).betas({0.75, 0.875}));
  if (name == "adamw") return std::make_unique<AdamW>(model->parameters(), AdamWOptions(0.125).weight_decay(0.25));
  if (name == "sgd") return std::make_unique<SGD>(model->parameters(), SGDOptions(0.0625).momentum(0.5));
  if (name == "rmsprop") {
    return std::make_unique<RMSprop>(model->parameters(),
                                     RMSpropOptions(0.0625).alpha(0.75).momentum(0.5).centered(true).eps(0.125));
  }
  if (name == "adagrad") {
    return std::make_unique<Adagrad>(model->parameters(),
                                     AdagradOptions(0.125).lr_decay(0.25).initial_accumulator_value(0.5));
  }
  if (name == "lbfgs") {
    return std::make_unique<LBFGS>(model->parameters(), LBFGSOptions(0.5).max_iter(2).history_size(4));
  }
  return nullptr;
}

void train(torch::nn::Sequential& model, torch::optim::Optimizer& optimizer, int steps) {
  const torch::Tensor batch = torch::arange(12, torch::kFloat32).reshape({3, 4}).sub_(6).div_(8);
  const auto loss = [&] {
    optimizer.zero_grad();
    torch::Tensor sum = model->forward(batch).square().sum();
    sum.backward();
    return sum;
  };
  for (int step = 0; step < steps; ++step) optimizer.step(loss);
}

dcp::StateDict state_of(torch::nn::Sequential& model, const torch::optim::Optimizer& optimizer) {
  return {{"model", dcp::get_model_state_dict(*model)}, {"optim", dcp::get_optimizer_state_dict(*model, optimizer)}};
}

dcp::StateDict load(torch::nn::Sequential& model, const torch::optim::Optimizer& optimizer, const std::string& from) {
  if (dynamic_cast<const torch::optim::LBFGS*>(&optimizer) != nullptr) {
    // Its history has no place in what an optimizer gives that was never stepped.
    dcp::FileSystemReader reader(from);
    return dcp::load_keys(reader);
  }
  dcp::StateDict state = state_of(model, optimizer);
  dcp::load(state, from);
  return state;
}

int run(const std::string& optimizer_name, int steps, const std::string& from, const std::string& to) {
  torch::nn::Sequential model = make_model();
  const auto optimizer = make_optimizer(optimizer_name, model);
  if (!optimizer) {
    std::cerr << "unknown optimizer " << optimizer_name << '\n';
    return 2;
  }
  if (from != "-") {
    dcp::StateDict state = load(model, *optimizer, from);
    dcp::set_model_state_dict(*model, state["model"].as_dict());
    dcp::set_optimizer_state_dict(*model, *optimizer, state["optim"].as_dict());
  }
  train(model, *optimizer, steps);
  if (to != "-") dcp::save(state_of(model, *optimizer), to);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::cerr << "usage: trainer OPTIMIZER STEPS LOAD SAVE\n";
    return 2;
  }
  try {
    return run(argv[1], std::stoi(argv[2]), argv[3], argv[4]);
  } catch (const c10::Error& error) {
    std::cerr << error.what_without_backtrace() << '\n';
    return 1;
  }
}

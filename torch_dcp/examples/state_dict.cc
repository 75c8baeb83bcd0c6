// Fine-tuning: takes the part of a checkpoint that fits another model, freezes it, trains the rest, saves only what
// changed, and comes back from both.
//
//   tools/bazel run //torch_dcp/examples:state_dict -- --pretrained CHECKPOINT --output FOLDER
//
// CHECKPOINT is one that Python wrote with `dcp.save({"model": ..., "optim": ...}, checkpoint_id=CHECKPOINT)`; its
// model has the parts conv, norm and body of the one below, and a last layer of its own.

#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <string>
#include <vector>

#include "torch_dcp/dcp.h"

namespace {

struct NetImpl : torch::nn::Module {
  NetImpl() {
    conv = register_module("conv", torch::nn::Conv1d(1, 2, 2));
    norm = register_module("norm", torch::nn::BatchNorm1d(2));
    body = register_module("body", torch::nn::Sequential(torch::nn::Linear(4, 4), torch::nn::ReLU()));
    head = register_module("head", torch::nn::Linear(4, 3));
  }

  torch::Tensor forward(const torch::Tensor& x) { return head(body->forward(norm(conv(x)).flatten(1))); }

  torch::nn::Conv1d conv{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  torch::nn::Sequential body{nullptr};
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(Net);

void print_names(const char* what, const std::vector<std::string>& names) {
  std::cout << "  " << what << ":";
  for (const std::string& name : names) std::cout << " " << name;
  std::cout << (names.empty() ? " none\n" : "\n");
}

/// Loads what fits; the rest is reported instead of refused.
void take_pretrained(Net& net, const std::string& path) {
  dcp::StateDict stored = dcp::load_keys(path, {"model"});
  const dcp::LoadReport report = dcp::set_model_state_dict(*net, stored["model"].as_dict(), {.strict = false});
  std::cout << "took the shared part of " << path << "\n";
  print_names("not in the checkpoint", report.missing);
  print_names("not in the model", report.unexpected);
}

void freeze_all_but_head(Net& net) {
  for (const auto& parameter : net->named_parameters()) {
    if (!parameter.key().starts_with("head.")) parameter.value().requires_grad_(false);
  }
  net->norm->eval();  // its running averages stay, too
}

torch::optim::SGD make_optimizer(Net& net) {
  return torch::optim::SGD(net->head->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
}

void train(Net& net, torch::optim::SGD& optimizer, int steps) {
  torch::manual_seed(1);
  const torch::Tensor input = torch::randn({16, 1, 3});
  const torch::Tensor wanted = torch::randint(3, {16});
  for (int step = 1; step <= steps; ++step) {
    optimizer.zero_grad();
    const torch::Tensor loss = torch::nn::functional::cross_entropy(net->forward(input), wanted);
    loss.backward();
    optimizer.step();
    if (step == 1 || step == steps) std::cout << "step " << step << ", loss " << loss.item<float>() << "\n";
  }
}

/// Of the model the trainable parameters and the buffers.
dcp::StateDict changed_state(Net& net, torch::optim::SGD& optimizer) {
  return {{"model", dcp::get_model_state_dict(*net, {.ignore_frozen_params = true})},
          {"optim", dcp::get_optimizer_state_dict(*net, optimizer)}};
}

bool have_equal_bits(Net& a, Net& b) {
  return dcp::bit_equal(dcp::get_model_state_dict(*a), dcp::get_model_state_dict(*b));
}

int run(const std::string& pretrained, const std::string& output, int steps) {
  torch::manual_seed(0);
  Net net;
  take_pretrained(net, pretrained);
  freeze_all_but_head(net);
  torch::optim::SGD optimizer = make_optimizer(net);
  train(net, optimizer, steps);

  const dcp::StateDict changed = changed_state(net, optimizer);
  std::cout << "saving " << changed.at("model").as_dict().size() << " of " << dcp::get_model_state_dict(*net).size()
            << " entries of the model to " << output << "\n";
  dcp::save(changed, output);

  Net again;
  take_pretrained(again, pretrained);
  freeze_all_but_head(again);
  torch::optim::SGD optimizer_again = make_optimizer(again);
  dcp::StateDict loaded = changed_state(again, optimizer_again);
  dcp::load(loaded, output);  // into the tensors of `again`
  dcp::set_optimizer_state_dict(*again, optimizer_again, loaded["optim"].as_dict());
  train(net, optimizer, 1);
  train(again, optimizer_again, 1);
  const bool is_same = have_equal_bits(net, again);
  std::cout << (is_same ? "after one more step both models are the same, bit for bit\n" : "the models differ\n");
  return is_same ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Fine-tunes with a part of a checkpoint, and saves only what changed."};
  std::string pretrained;
  std::string output = "fine_tuned";
  int steps = 20;
  app.add_option("--pretrained", pretrained, "checkpoint to take the shared part from")->required();
  app.add_option("--output", output, "folder for what changed");
  app.add_option("--steps", steps)->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  try {
    return run(pretrained, output, steps);
  } catch (const std::exception& error) {
    std::cerr << "state_dict: " << error.what() << "\n";
    return 1;
  }
}

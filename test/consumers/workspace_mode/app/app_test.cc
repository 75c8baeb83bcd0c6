// What a program outside torch_dcp's own workspace sees: one header, one target, and the LibTorch that it found.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdlib>
#include <string>

#include "torch_dcp/dcp.h"

namespace {

struct Net : torch::nn::Module {
  Net() {
    register_module("hidden", hidden);
    register_module("norm", norm);
    register_module("out", out);
  }
  torch::Tensor forward(const torch::Tensor& batch) { return out(torch::tanh(norm(hidden(batch)))); }

  torch::nn::Linear hidden{4, 6};
  torch::nn::BatchNorm1d norm{6};
  torch::nn::Linear out{6, 2};
};

struct Training {
  void train(int steps) {
    const torch::Tensor batch = torch::arange(20, torch::kFloat).reshape({5, 4}).sin();
    for (; steps > 0; --steps) {
      optimizer.zero_grad();
      model.forward(batch).square().sum().backward();
      optimizer.step();
    }
  }

  dcp::StateDict state_dict() const {
    return {{"model", dcp::get_model_state_dict(model)}, {"optim", dcp::get_optimizer_state_dict(model, optimizer)}};
  }

  Net model;
  torch::optim::Adam optimizer{model.parameters(), torch::optim::AdamOptions(0.125)};
};

std::string path(const std::string& name) { return std::string(std::getenv("TEST_TMPDIR")) + "/" + name; }

TEST(App, GoesOnFromASave) {
  torch::manual_seed(1);
  Training straight;
  straight.train(3);
  dcp::save(straight.state_dict(), path("checkpoint"));

  torch::manual_seed(2);
  Training resumed;
  resumed.train(1);
  ASSERT_NE(dcp::first_difference(resumed.state_dict(), straight.state_dict()), "");
  dcp::StateDict state = resumed.state_dict();
  dcp::load(state, path("checkpoint"));
  dcp::set_model_state_dict(resumed.model, state["model"].as_dict());
  dcp::set_optimizer_state_dict(resumed.model, resumed.optimizer, state["optim"].as_dict());
  EXPECT_EQ(dcp::first_difference(resumed.state_dict(), straight.state_dict()), "");

  straight.train(2);
  resumed.train(2);
  EXPECT_EQ(dcp::first_difference(resumed.state_dict(), straight.state_dict()), "");
}

TEST(App, IsToldWhatIsWrong) {
  dcp::StateDict state{{"weight", torch::zeros({2})}};
  try {
    dcp::load(state, path("nowhere"));
    FAIL() << "nothing was thrown";
  } catch (const dcp::CheckpointError& error) {
    EXPECT_EQ(error.kind(), dcp::ErrorKind::kNotFound);
    EXPECT_NE(std::string(error.what()).find(path("nowhere")), std::string::npos) << error.what();
  }
}

}  // namespace

// Compiles README's save and load as they stand there, and runs them.

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <iostream>

#include "test/readme/readme_block.inc"  // NOLINT: README.md's C++
#include "test/support/rank_runner.h"

namespace {

/// A linear model whose every parameter is `value`, and its optimizer after one step.
struct Training {
  explicit Training(double value) : optimizer(model->parameters(), torch::optim::AdamOptions(0.125)) {
    const torch::NoGradGuard no_grad;
    for (torch::Tensor& parameter : model->parameters()) parameter.fill_(value);
  }
  void train() {
    optimizer.zero_grad();
    model->forward(torch::ones({2, 3})).sum().backward();
    optimizer.step();
  }

  torch::nn::Linear model{3, 4};
  torch::optim::Adam optimizer;
};

TEST(ReadmeTest, ASaveAndALoad) {
  std::filesystem::current_path(std::getenv("TEST_TMPDIR"));
  Training straight(1);
  straight.train();
  dcp::testing::run_ranks(3, [](dcp::testing::RankContext& ranks) {
    Training training(1);
    training.train();
    save_step(*training.model, training.optimizer, 7, ranks.group());
  });
  straight.train();
  dcp::testing::run_ranks(2, [&](dcp::testing::RankContext& ranks) {
    Training training(5);
    EXPECT_EQ(resume(*training.model, training.optimizer, ranks.group()), 7);
    training.train();
    EXPECT_EQ(
        dcp::first_difference(dcp::get_model_state_dict(*training.model), dcp::get_model_state_dict(*straight.model)),
        "");
  });
}

TEST(ReadmeTest, OnlyWhatChangedIsSaved) {
  std::filesystem::current_path(std::getenv("TEST_TMPDIR"));
  const auto make = [] { return torch::nn::Sequential(torch::nn::Linear(3, 4), torch::nn::Linear(4, 2)); };
  auto model = make();
  dcp::save({{"model", dcp::get_model_state_dict(*model)}}, "pretrained");
  for (torch::Tensor& parameter : model[0]->parameters()) parameter.requires_grad_(false);
  {
    const torch::NoGradGuard no_grad;
    for (torch::Tensor& parameter : model[1]->parameters()) parameter.add_(1);
  }
  save_changes(*model, "pretrained");
  EXPECT_EQ(dcp::load_keys("changes").at("model").as_dict().size(), 2u);
  auto again = make();
  load_both(*again);
  EXPECT_EQ(dcp::first_difference(dcp::get_model_state_dict(*again), dcp::get_model_state_dict(*model)), "");
}

TEST(ReadmeTest, AnOldNameIsAccepted) {
  torch::nn::Sequential model;
  model->push_back("head", torch::nn::Linear(3, 4));
  const dcp::Dict old = {{"decoder.weight", torch::rand({4, 3})}, {"head.bias", torch::rand({4})}};
  EXPECT_THROW(dcp::load_state_dict(*model, old), dcp::Error);
  const dcp::HookHandle handle = accept_old_name(*model);
  dcp::load_state_dict(*model, old);
  EXPECT_TRUE(dcp::state_dict(*model).at("head.weight").as_tensor().equal(old.at("decoder.weight").as_tensor()));
}

}  // namespace

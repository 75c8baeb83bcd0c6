// Compiles README's save and load as they stand there, and runs them.

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "test/memory/running_server.h"
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

TEST(ReadmeTest, TrainingGoesOnFromMemory) {
  std::filesystem::current_path(std::getenv("TEST_TMPDIR"));
  std::filesystem::remove_all("checkpoints");
  Training straight(1);
  for (int step = 0; step < 7; ++step) straight.train();
  std::vector<std::unique_ptr<dcp::test::RunningServer>> machines;
  for (int rank = 0; rank < 3; ++rank) machines.push_back(std::make_unique<dcp::test::RunningServer>());
  const auto train = [&](int ranks, std::int64_t last_step, double start, int expected_steps) {
    dcp::testing::run_ranks(ranks, [&](dcp::testing::RankContext& context) {
      Training training(start);
      int steps = 0;
      const auto step = [&] {
        training.train();
        ++steps;
      };
      train_to(last_step, *training.model, training.optimizer, step, machines[context.rank()]->id(), context.group());
      EXPECT_EQ(steps, expected_steps);
      if (last_step < 7) return;
      EXPECT_EQ(
          dcp::first_difference(dcp::get_model_state_dict(*training.model), dcp::get_model_state_dict(*straight.model)),
          "");
    });
  };
  train(3, 4, 1, 4);
  machines.erase(machines.begin() + 1);
  train(2, 7, 5, 3);
  EXPECT_FALSE(std::filesystem::exists("checkpoints")) << "no step was due for files";
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

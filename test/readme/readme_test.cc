// Compiles README's save and load as they stand there, and runs them.

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

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

}  // namespace

#include "torch_dcp/examples/trainer.h"

#include <ATen/Parallel.h>
#include <torch/utils.h>

#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

#include "torch_dcp/examples/char_transformer.h"
#include "torch_dcp/examples/gradient_sum.h"
#include "torch_dcp/examples/sharded_adamw.h"
#include "torch_dcp/examples/text_data.h"
#include "torch_dcp/model_state/fqn.h"
#include "torch_dcp/model_state/model_state_dict.h"
#include "torch_dcp/model_state/random_state.h"

namespace dcp::examples {
namespace {

constexpr double kLearningRate = 2e-3;

/// Draws a seed for each sequence's dropout from the default generator, which every rank has in the same state.
std::vector<std::uint64_t> draw_seeds(std::int64_t count) {
  const at::Tensor drawn = at::randint(std::numeric_limits<std::int64_t>::max(), {count}, at::kLong);
  const auto* numbers = drawn.const_data_ptr<std::int64_t>();
  return {numbers, numbers + count};
}

List to_list(const std::vector<double>& numbers) {
  List list;
  for (const double number : numbers) list.emplace_back(number);
  return list;
}

}  // namespace

Trainer::Trainer(const TextData& text, const TransformerSizes& sizes, std::int64_t sequences, std::uint64_t seed,
                 const RankGroup& group)
    : text_(text), sequences_(sequences) {
  at::set_num_threads(1);
  torch::manual_seed(seed);
  model_ = std::make_unique<CharTransformer>(text.vocabulary_size(), sizes);
  parameters_ = model_->parameters();
  optimizer_ = std::make_unique<ShardedAdamW>(unique_parameters(*model_), group, kLearningRate);
  gradients_ = std::make_unique<GradientSum>(group, sequences, parameter_count() + 1);
  order_ = std::make_unique<DataOrder>(text.window_count(), seed);
}

Trainer::~Trainer() = default;

double Trainer::step() {
  const std::vector<std::int64_t> windows = order_->next(sequences_);
  const std::vector<std::uint64_t> seeds = draw_seeds(sequences_);
  // A rank leaves the default generator as it was before its sequences, of which every rank has others.
  const at::Tensor random_state = get_random_state();
  const IndexRun mine = gradients_->mine();
  for (std::int64_t i = 0; i < mine.length; ++i) {
    const std::int64_t sequence = mine.offset + i;
    contribute(text_.window(windows[sequence]), seeds[sequence], gradients_->slot(i));
  }
  set_random_state(random_state);

  const std::int64_t elements = parameter_count();
  const at::Tensor mean = GradientSum::mean(gradients_->gather());
  optimizer_->step(mean.narrow(0, 0, elements));
  losses_.push_back(mean[elements].item<double>());
  return losses_.back();
}

void Trainer::contribute(const at::Tensor& window, std::uint64_t dropout_seed, at::Tensor slot) {
  torch::manual_seed(dropout_seed);
  model_->zero_grad();
  const at::Tensor loss = model_->loss(window);
  loss.backward();
  std::int64_t offset = 0;
  for (const at::Tensor& parameter : parameters_) {
    slot.narrow(0, offset, parameter.numel()).copy_(parameter.grad().flatten());
    offset += parameter.numel();
  }
  slot[offset].copy_(loss.detach());
}

std::int64_t Trainer::parameter_count() const {
  std::int64_t count = 0;
  for (const at::Tensor& parameter : parameters_) count += parameter.numel();
  return count;
}

StateDict Trainer::state() const {
  return {{"model", get_model_state_dict(*model_)},
          {"optim", optimizer_->state()},
          {"trainer", Dict{{"step", steps_done()},
                           {"losses", to_list(losses_)},
                           {"data", order_->state()},
                           {"rng", get_random_state()}}}};
}

void Trainer::restore(const StateDict& state) {
  const Dict& trainer = state.at("trainer").as_dict();
  std::vector<double> losses;
  for (const Value& loss : trainer.at("losses").as_list()) losses.push_back(loss.as_double());
  if (trainer.at("step").as_int() != static_cast<std::int64_t>(losses.size())) {
    throw std::runtime_error("the checkpoint is of step " + std::to_string(trainer.at("step").as_int()) + " and has " +
                             std::to_string(losses.size()) + " losses");
  }
  set_model_state_dict(*model_, state.at("model").as_dict());
  optimizer_->restore(state.at("optim").as_dict());
  order_->restore(trainer.at("data").as_dict());
  set_random_state(trainer.at("rng").as_tensor());
  losses_ = std::move(losses);
}

}  // namespace dcp::examples

#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "torch_dcp/examples/rank_group.h"
#include "torch_dcp/examples/transformer_sizes.h"
#include "torch_dcp/state_dict/value.h"

namespace dcp::examples {

class CharTransformer;
class DataOrder;
class GradientSum;
class ShardedAdamW;
class TextData;

/// One rank's part in the training of a CharTransformer, and all that a checkpoint of it holds.
///
/// Data-parallel: the sequences of each batch are spread over the ranks. Losses, parameters, moments and random numbers
/// are the same to the last bit for every number of ranks.
class Trainer {
 public:
  /// \param sequences  In each batch, of all ranks together; may be fewer than ranks.
  /// Alike on every rank but for `group`; all three outlive the trainer. Sets the seed of LibTorch's CPU generator.
  Trainer(const TextData& text, const TransformerSizes& sizes, std::int64_t sequences, std::uint64_t seed,
          const RankGroup& group);
  ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  /// Trains one step. \returns The batch's mean loss, before the step.
  /// Collective: yes, all ranks.
  double step();

  /// Losses of all steps so far.
  const std::vector<double>& losses() const { return losses_; }
  std::int64_t steps_done() const { return static_cast<std::int64_t>(losses_.size()); }
  std::int64_t parameter_count() const;

  /// Parameters and moments are the live ones; the rest is copied. To be saved, or loaded into and given to `restore`.
  StateDict state() const;
  /// Goes on from a state of any number of ranks.
  /// \throws std::runtime_error if it is of another text; dcp::Error if it is of another model.
  void restore(const StateDict& state);

 private:
  /// Computes the gradient of one sequence, and puts it and then the loss into `slot`.
  void contribute(const at::Tensor& window, std::uint64_t dropout_seed, at::Tensor slot);

  const TextData& text_;
  std::int64_t sequences_;
  std::unique_ptr<CharTransformer> model_;
  std::vector<at::Tensor> parameters_;
  std::unique_ptr<ShardedAdamW> optimizer_;
  std::unique_ptr<GradientSum> gradients_;
  std::unique_ptr<DataOrder> order_;
  std::vector<double> losses_;
};

}  // namespace dcp::examples

#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>

#include <cstdint>

#include "torch_dcp/examples/transformer_sizes.h"

namespace dcp::examples {

/// Attention to the characters before, and a layer for each character by itself; both added to what came in.
class BlockImpl : public torch::nn::Module {
 public:
  explicit BlockImpl(const TransformerSizes& sizes);

  /// [batch, characters, width] to the same.
  at::Tensor forward(at::Tensor x);

 private:
  at::Tensor attend(const at::Tensor& x);

  std::int64_t heads_;
  torch::nn::LayerNorm attention_norm_;
  torch::nn::Linear query_key_value_;
  torch::nn::Linear attention_out_;
  torch::nn::LayerNorm mlp_norm_;
  torch::nn::Linear mlp_in_;
  torch::nn::Linear mlp_out_;
  torch::nn::Dropout dropout_;
};
TORCH_MODULE(Block);

/// A language model over characters: pre-norm transformer blocks.
class CharTransformer : public torch::nn::Module {
 public:
  CharTransformer(std::int64_t vocabulary_size, const TransformerSizes& sizes);

  /// \param characters  int64 [batch, n], n at most `context`.
  /// \returns Logits of the next character, [batch, n, vocabulary].
  at::Tensor forward(const at::Tensor& characters);

  /// The mean cross entropy of predicting each character of `window` from those before it.
  /// \param window  int64 [n + 1].
  at::Tensor loss(const at::Tensor& window);

 private:
  torch::nn::Embedding token_embedding_;
  torch::nn::Embedding position_embedding_;
  torch::nn::Dropout dropout_;
  torch::nn::ModuleList blocks_;
  torch::nn::LayerNorm final_norm_;
  torch::nn::Linear head_;
};

}  // namespace dcp::examples

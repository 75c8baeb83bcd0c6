#include "torch_dcp/examples/char_transformer.h"

#include <torch/nn/functional/loss.h>

#include <cmath>
#include <limits>
#include <vector>

namespace dcp::examples {
namespace {

constexpr std::int64_t kMlpFactor = 4;  // inner features of a block's layer, of `width`

torch::nn::LayerNorm make_norm(std::int64_t width) { return torch::nn::LayerNorm(std::vector<std::int64_t>{width}); }

}  // namespace

BlockImpl::BlockImpl(const TransformerSizes& sizes)
    : heads_(sizes.heads),
      attention_norm_(register_module("attention_norm", make_norm(sizes.width))),
      query_key_value_(register_module("query_key_value", torch::nn::Linear(sizes.width, 3 * sizes.width))),
      attention_out_(register_module("attention_out", torch::nn::Linear(sizes.width, sizes.width))),
      mlp_norm_(register_module("mlp_norm", make_norm(sizes.width))),
      mlp_in_(register_module("mlp_in", torch::nn::Linear(sizes.width, kMlpFactor * sizes.width))),
      mlp_out_(register_module("mlp_out", torch::nn::Linear(kMlpFactor * sizes.width, sizes.width))),
      dropout_(register_module("dropout", torch::nn::Dropout(sizes.dropout))) {}

at::Tensor BlockImpl::forward(at::Tensor x) {
  x = x + dropout_(attend(attention_norm_(x)));
  return x + dropout_(mlp_out_(at::gelu(mlp_in_(mlp_norm_(x)))));
}

at::Tensor BlockImpl::attend(const at::Tensor& x) {
  const std::int64_t batch = x.size(0), count = x.size(1), width = x.size(2);
  // [3, batch, heads, characters, width / heads]
  const at::Tensor parts = query_key_value_(x).view({batch, count, 3, heads_, width / heads_}).permute({2, 0, 3, 1, 4});
  const at::Tensor scores =
      parts[0].matmul(parts[1].transpose(-2, -1)) / std::sqrt(static_cast<double>(width / heads_));
  const at::Tensor later = at::ones({count, count}, at::kBool).triu(1);
  const at::Tensor weights = at::softmax(scores.masked_fill(later, -std::numeric_limits<double>::infinity()), -1);
  const at::Tensor mixed = dropout_(weights).matmul(parts[2]);
  return attention_out_(mixed.transpose(1, 2).reshape({batch, count, width}));
}

CharTransformer::CharTransformer(std::int64_t vocabulary_size, const TransformerSizes& sizes)
    : token_embedding_(register_module("token_embedding", torch::nn::Embedding(vocabulary_size, sizes.width))),
      position_embedding_(register_module("position_embedding", torch::nn::Embedding(sizes.context, sizes.width))),
      dropout_(register_module("dropout", torch::nn::Dropout(sizes.dropout))),
      blocks_(register_module("blocks", torch::nn::ModuleList())),
      final_norm_(register_module("final_norm", make_norm(sizes.width))),
      head_(register_module("head", torch::nn::Linear(sizes.width, vocabulary_size))) {
  for (std::int64_t i = 0; i < sizes.layers; ++i) blocks_->push_back(Block(sizes));
}

at::Tensor CharTransformer::forward(const at::Tensor& characters) {
  at::Tensor x = token_embedding_(characters) + position_embedding_(at::arange(characters.size(1), at::kLong));
  x = dropout_(x);
  for (const auto& block : *blocks_) x = block->as<Block>()->forward(x);
  return head_(final_norm_(x));
}

at::Tensor CharTransformer::loss(const at::Tensor& window) {
  const std::int64_t count = window.size(0) - 1;
  const at::Tensor logits = forward(window.narrow(0, 0, count).unsqueeze(0));
  return torch::nn::functional::cross_entropy(logits.squeeze(0), window.narrow(0, 1, count));
}

}  // namespace dcp::examples

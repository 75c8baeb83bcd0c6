#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>

#include "torch_dcp/tensor/box.h"

namespace dcp {

/// Why a tensor's elements cannot be read or written, such as "a sparse tensor"; empty if they can.
std::string why_without_elements(const at::Tensor& tensor);

/// The part of a tensor at `offsets` with `sizes`; a view.
at::Tensor part_of(at::Tensor tensor, const Sizes& offsets, const Sizes& sizes);

/// The tensor, detached, with the integers of a quantized one in its place; a view.
at::Tensor elements_of(const at::Tensor& tensor);

/// Writes the elements row-major to `out`, which has room for them. \pre No dtype is quantized (`elements_of`).
void write_elements(const at::Tensor& from, std::uint8_t* out);

/// The reverse, for a part: `bytes` are the elements of a tensor of `sizes`, row-major and aligned to 16, of which
/// those from `offsets` on go into `into`.
void copy_elements(const std::uint8_t* bytes, const Sizes& sizes, const Sizes& offsets, const at::Tensor& into);

/// Where each piece of a bucket begins.
constexpr std::int64_t kPieceAlignment = 16;
constexpr std::int64_t aligned(std::int64_t bytes) {
  return (bytes + kPieceAlignment - 1) / kPieceAlignment * kPieceAlignment;
}

/// The one quantizer of a whole tensor; distributed and sent tensors have no other kind.
struct TensorQuantizer {
  double scale = 1;
  std::int64_t zero_point = 0;
};

/// Why a tensor has no quantizer of that kind, such as "a quantized tensor with scheme per_channel_affine"; empty if it
/// has one, or is not quantized. \pre It has elements.
std::string why_without_tensor_quantizer(const at::Tensor& tensor);

/// Nothing for a tensor that is not quantized. \throws dcp::Error kUnsupported for a quantizer for each channel;
/// what `quantizer_of` throws.
std::optional<TensorQuantizer> tensor_quantizer_of(const at::Tensor& tensor);
void set_tensor_quantizer(const at::Tensor& tensor, const std::optional<TensorQuantizer>& quantizer);

}  // namespace dcp

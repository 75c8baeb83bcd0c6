#include "torch_dcp/tensor/quantized.h"

#include <ATen/ops/empty.h>
#include <ATen/quantized/Quantizer.h>

#include "torch_dcp/base/error.h"
#include "torch_dcp/tensor/dtype.h"

namespace dcp {
namespace {

/// The one kind of quantizer that cannot be asked anything.
bool is_unknown(const at::QuantizerPtr& quantizer) {
  return dynamic_cast<const at::UnknownQuantizer*>(quantizer.get()) != nullptr;
}

void check_channels(const at::Tensor& quantized, const Quantizer& quantizer) {
  DCP_CHECK(quantizer.axis >= 0 && quantizer.axis < quantized.dim(), kInvalidArgument, "quantized along dimension ",
            quantizer.axis, " of ", quantized.dim());
  const std::int64_t count = quantized.size(quantizer.axis);
  const at::Tensor& zero_points = quantizer.zero_points;
  DCP_CHECK(quantizer.scales.dim() == 1 && quantizer.scales.numel() == count && zero_points.defined() &&
                zero_points.dim() == 1 && zero_points.numel() == count,
            kInvalidArgument, "scales and zero points of a tensor with ", count, " channels must be as many");
}

}  // namespace

bool is_quantized_dtype(at::ScalarType dtype) {
  return dtype == at::kQInt8 || dtype == at::kQUInt8 || dtype == at::kQInt32;
}

std::string quantization_scheme(const at::Tensor& quantized) {
  return is_unknown(quantized.quantizer()) ? "none" : at::toString(quantized.qscheme());
}

Quantizer quantizer_of(const at::Tensor& quantized) {
  DCP_CHECK(!is_unknown(quantized.quantizer()), kInvalidArgument, "a tensor of ", dtype_name(quantized.scalar_type()),
            " without a quantizer");
  Quantizer quantizer;
  const at::QScheme scheme = quantized.qscheme();
  if (scheme == at::kPerTensorAffine) {
    quantizer.scale = quantized.q_scale();
    quantizer.zero_point = quantized.q_zero_point();
    return quantizer;
  }
  DCP_CHECK(scheme == at::kPerChannelAffine || scheme == at::kPerChannelAffineFloatQParams, kUnsupported,
            "a tensor that is quantized by the scheme ", at::toString(scheme));
  quantizer.scales = quantized.q_per_channel_scales().cpu();
  quantizer.zero_points = quantized.q_per_channel_zero_points().cpu();
  quantizer.axis = quantized.q_per_channel_axis();
  return quantizer;
}

void set_quantizer(const at::Tensor& quantized, const Quantizer& quantizer) {
  const at::ScalarType dtype = quantized.scalar_type();
  if (!quantizer.is_per_channel()) {
    at::set_quantizer_(quantized, at::make_per_tensor_affine_quantizer(quantizer.scale, quantizer.zero_point, dtype));
    return;
  }
  check_channels(quantized, quantizer);
  const auto device = quantized.device();
  at::set_quantizer_(
      quantized, at::make_per_channel_affine_quantizer(quantizer.scales.to(device), quantizer.zero_points.to(device),
                                                       quantizer.axis, dtype));
}

at::Tensor integers_of(const at::Tensor& quantized) {
  at::Tensor integers =
      at::empty({0}, at::TensorOptions(c10::toUnderlying(quantized.scalar_type())).device(quantized.device()));
  integers.set_(quantized.storage(), quantized.storage_offset(), quantized.sizes(), quantized.strides());
  return integers;
}

}  // namespace dcp

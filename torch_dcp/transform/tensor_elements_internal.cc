#include "torch_dcp/transform/tensor_elements_internal.h"

#include <ATen/ops/from_blob.h>
#include <c10/core/GradMode.h>

#include "torch_dcp/base/error.h"
#include "torch_dcp/tensor/quantized.h"

namespace dcp {

std::string why_without_elements(const at::Tensor& tensor) {
  if (!tensor.defined()) return "an undefined tensor";
  if (tensor.unsafeGetTensorImpl()->is_python_dispatch()) return "a tensor whose operators are Python's";
  if (tensor.is_nested()) return "a nested tensor";
  if (tensor.layout() != at::kStrided) return c10::str("a tensor of layout ", tensor.layout());
  if (tensor.is_meta()) return "a tensor on the meta device";
  return "";
}

at::Tensor part_of(at::Tensor tensor, const Sizes& offsets, const Sizes& sizes) {
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    const auto dim = static_cast<std::int64_t>(d);
    if (tensor.size(dim) != sizes[d]) tensor = tensor.narrow(dim, offsets[d], sizes[d]);
  }
  return tensor;
}

at::Tensor elements_of(const at::Tensor& tensor) {
  return is_quantized_dtype(tensor.scalar_type()) ? integers_of(tensor) : tensor.detach();
}

void write_elements(const at::Tensor& from, std::uint8_t* out) {
  if (from.numel() == 0) return;
  const c10::NoGradGuard no_grad;
  at::from_blob(out, from.sizes(), at::TensorOptions(from.scalar_type())).copy_(from);
}

void copy_elements(const std::uint8_t* bytes, const Sizes& sizes, const Sizes& offsets, const at::Tensor& into) {
  if (into.numel() == 0) return;
  const c10::NoGradGuard no_grad;
  // Only read, but LibTorch has no tensor of constant bytes.
  auto* const data = const_cast<std::uint8_t*>(bytes);
  const at::Tensor all = at::from_blob(data, sizes, at::TensorOptions(into.scalar_type()));
  into.copy_(part_of(all, offsets, Sizes(into.sizes())));
}

std::string why_without_tensor_quantizer(const at::Tensor& tensor) {
  if (!tensor.is_quantized()) return "";
  if (!is_quantized_dtype(tensor.scalar_type())) return c10::str("a tensor of ", tensor.scalar_type());
  const std::string scheme = quantization_scheme(tensor);
  if (scheme == at::toString(at::kPerTensorAffine)) return "";
  if (scheme == "none") return "a quantized tensor without a quantizer";
  return "a tensor with a quantizer for each channel, " + scheme + ",";
}

std::optional<TensorQuantizer> tensor_quantizer_of(const at::Tensor& tensor) {
  if (!is_quantized_dtype(tensor.scalar_type())) return std::nullopt;
  const Quantizer quantizer = quantizer_of(tensor);
  DCP_CHECK(!quantizer.is_per_channel(), kUnsupported, "a tensor with a quantizer for each channel");
  return TensorQuantizer{quantizer.scale, quantizer.zero_point};
}

void set_tensor_quantizer(const at::Tensor& tensor, const std::optional<TensorQuantizer>& quantizer) {
  if (quantizer) set_quantizer(tensor, {quantizer->scale, quantizer->zero_point, {}, {}, 0});
}

}  // namespace dcp

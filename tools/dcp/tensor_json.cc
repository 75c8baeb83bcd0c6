#include "tools/dcp/tensor_json.h"

#include <ATen/ATen.h>

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "torch_dcp/format/object_json.h"
#include "torch_dcp/tensor/dtype.h"
#include "torch_dcp/tensor/quantized.h"

namespace dcp::tool {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t kMaxListed = 4096;

std::string hex_of(const at::Tensor& plain) {
  static constexpr char kDigits[] = "0123456789abcdef";
  const auto* bytes = static_cast<const std::uint8_t*>(plain.const_data_ptr());
  std::string hex(plain.nbytes() * 2, '0');
  for (std::size_t i = 0; i < plain.nbytes(); ++i) {
    hex[2 * i] = kDigits[bytes[i] >> 4];
    hex[2 * i + 1] = kDigits[bytes[i] & 15];
  }
  return hex;
}

Json number(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return value;
}

/// Whether expected.json lists plain numbers for the dtype.
bool has_plain_numbers(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
    case at::kFloat:
    case at::kHalf:
    case at::kBFloat16:
    case at::kChar:
    case at::kShort:
    case at::kInt:
    case at::kLong:
    case at::kByte:
    case at::kUInt16:
    case at::kUInt32:
    case at::kUInt64:
    case at::kBool:
    case at::kComplexFloat:
    case at::kComplexDouble:
      return true;
    default:
      return false;
  }
}

Json values_of(const at::Tensor& flat) {
  Json values = Json::array();
  for (std::int64_t i = 0; i < flat.numel(); ++i) {
    const at::Tensor element = flat[i];
    if (at::isComplexType(flat.scalar_type())) {
      const auto complex = element.to(at::kComplexDouble).item<c10::complex<double>>();
      values.push_back({number(complex.real()), number(complex.imag())});
    } else if (flat.scalar_type() == at::kBool) {
      values.push_back(element.item<bool>());
    } else if (flat.scalar_type() == at::kUInt64) {
      values.push_back(*static_cast<const std::uint64_t*>(element.const_data_ptr()));
    } else if (at::isIntegralType(flat.scalar_type(), false)) {
      values.push_back(element.to(at::kLong).item<std::int64_t>());
    } else {
      values.push_back(number(element.to(at::kDouble).item<double>()));
    }
  }
  return values;
}

}  // namespace

at::Tensor empty_tensor(const Sizes& sizes, at::ScalarType dtype) {
  at::Tensor tensor = at::empty(sizes, dtype);
  if (is_quantized_dtype(dtype)) set_quantizer(tensor, {});  // until it gets that of the file
  return tensor;
}

at::Tensor zero_tensor(const Sizes& sizes, at::ScalarType dtype) {
  // Not at::zeros, which not every dtype has a kernel for.
  at::Tensor tensor = empty_tensor(sizes, dtype);
  if (tensor.nbytes() > 0) std::memset(tensor.mutable_data_ptr(), 0, tensor.nbytes());
  return tensor;
}

void add_elements(Json& json, const at::Tensor& tensor) {
  const at::Tensor plain = tensor.contiguous();
  json["hex"] = hex_of(plain);
  if (has_plain_numbers(plain.scalar_type()) && plain.numel() <= kMaxListed)
    json["values"] = values_of(plain.reshape(-1));
  if (plain.is_quantized()) json["integer_dtype"] = dtype_name(c10::toUnderlying(plain.scalar_type()));
  add_quantizer(json, tensor);
}

}  // namespace dcp::tool

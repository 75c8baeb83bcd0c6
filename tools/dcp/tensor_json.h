#pragma once

#include <ATen/core/Tensor.h>

#include <nlohmann/json_fwd.hpp>

#include "torch_dcp/tensor/box.h"

namespace dcp::tool {

/// An uninitialised whole tensor on CPU.
at::Tensor empty_tensor(const Sizes& sizes, at::ScalarType dtype);

/// The same, all zero bits.
at::Tensor zero_tensor(const Sizes& sizes, at::ScalarType dtype);

/// Adds `hex` (all elements, row-major, little-endian) and, where numbers can be written plainly and are not more than
/// 4096, `values`; of a quantized tensor the integers, their dtype and the quantizer.
void add_elements(nlohmann::ordered_json& json, const at::Tensor& tensor);

}  // namespace dcp::tool

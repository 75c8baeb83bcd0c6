#pragma once

#include <ATen/core/Tensor.h>

#include <nlohmann/json_fwd.hpp>

#include "torch_dcp/base/bytes.h"
#include "torch_dcp/base/export.h"
#include "torch_dcp/base/limits.h"

namespace dcp {

/// Describes an object item as JSON with Python's types told apart: `{"t":"int","v":"123"}`,
/// `{"t":"tuple","v":[...]}`, `{"t":"set",...}`; an object of unknown type is
/// `{"t":"other","type":"module.name"}`. Ints are texts, floats have their bits as `hex`, sets are
/// sorted by their elements' texts, and tensors have `dtype`, `shape`, `hex` (little-endian, row-major) and, up to
/// 4096 elements of a plain dtype, `values`; of quantized ones the integers and the quantizer. Made from the inert
/// pickle; nothing is executed.
///
/// \throws dcp::Error as `decode_object_item` does.
DCP_API nlohmann::ordered_json object_item_to_json(ByteSpan item, const ParseLimits& limits = {});

/// Adds `qscheme` and what belongs to it (`scale`, `zero_point`; or `scales`, `zero_points`, `axis`) to the description
/// of a quantized tensor; nothing to that of another.
DCP_API void add_quantizer(nlohmann::ordered_json& json, const at::Tensor& tensor);

}  // namespace dcp

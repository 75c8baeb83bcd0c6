#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "torch_dcp/base/bytes.h"
#include "torch_dcp/base/export.h"
#include "torch_dcp/base/limits.h"
#include "torch_dcp/base/ordered_map.h"

namespace dcp {

/// `model.safetensors.index.json`: which file of a folder holds which tensor.
struct SafetensorsIndex {
  std::int64_t total_size = 0;                      ///< bytes of all elements
  OrderedMap<std::string, std::string> weight_map;  ///< tensor -> file
};

/// Reads an index. Fields other than `weight_map` are ignored (their form differs between writers).
///
/// \throws dcp::Error kCorruptData: no JSON of this form, equal names, or, naming all of them, tensors whose file is
/// not
///         the plain name of a `*.safetensors` file.
DCP_API SafetensorsIndex decode_safetensors_index(ByteSpan bytes, const ParseLimits& limits = {});

/// The index as PyTorch writes it, indented by 2.
DCP_API Bytes encode_safetensors_index(const SafetensorsIndex& index);

}  // namespace dcp

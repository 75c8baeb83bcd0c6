#pragma once

#include <string_view>

/// Python's functions that make tensors, by their names in a pickle.
namespace dcp::tensor_calls {

inline constexpr std::string_view kUtils = "torch._utils";
inline constexpr std::string_view kTensorV2 = "_rebuild_tensor_v2";
inline constexpr std::string_view kTensorV3 = "_rebuild_tensor_v3";
inline constexpr std::string_view kQuantized = "_rebuild_qtensor";
inline constexpr std::string_view kParameter = "_rebuild_parameter";

}  // namespace dcp::tensor_calls

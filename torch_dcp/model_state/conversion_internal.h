#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "torch_dcp/base/fault_list.h"
#include "torch_dcp/state_dict/dtype_policy.h"
#include "torch_dcp/state_dict/load_report.h"

namespace dcp {

/// Checks that `given` may be copied into a tensor of `sizes` and `dtype`, and notes a conversion in `report`.
/// Returns false after adding a fault that names `key`.
bool check_fits(const std::string& key, const at::Tensor& given, c10::IntArrayRef sizes, c10::ScalarType dtype,
                DtypePolicy policy, FaultList& faults, LoadReport& report);

}  // namespace dcp

#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "torch_dcp/base/export.h"
#include "torch_dcp/base/fault_list.h"
#include "torch_dcp/state_dict/dtype_policy.h"
#include "torch_dcp/state_dict/load_report.h"

namespace dcp {

/// Checks that `given` may be copied into a tensor of `sizes` and `dtype`, and notes a conversion in `report`.
/// Returns false after adding a fault that names `key`.
DCP_API bool check_fits(const std::string& key, const at::Tensor& given, c10::IntArrayRef sizes, c10::ScalarType dtype,
                        DtypePolicy policy, FaultList& faults, LoadReport& report);

/// The same for a copy into `target` itself, which also must be writable, and quantized as `given` is or not at all.
DCP_API bool check_fits(const std::string& key, const at::Tensor& given, const at::Tensor& target, DtypePolicy policy,
                        FaultList& faults, LoadReport& report);

/// Why elements cannot be copied into a tensor: it overlaps itself, so that some of its elements are one in memory.
/// Empty if they can. Costs no look at elements, but for strides that tell nothing a bit for each.
DCP_API std::string why_not_writable(const at::Tensor& target);

}  // namespace dcp

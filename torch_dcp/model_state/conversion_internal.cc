#include "torch_dcp/model_state/conversion_internal.h"

#include "torch_dcp/tensor/dtype.h"

namespace dcp {
namespace {

bool may_convert(c10::ScalarType from, c10::ScalarType to, DtypePolicy policy) {
  switch (policy) {
    case DtypePolicy::kExact:
      return false;
    case DtypePolicy::kLossless:
      return converts_without_loss(from, to);
    case DtypePolicy::kAny:
      return true;
  }
  DCP_THROW(kInvalidArgument, "no such dtype policy: ", static_cast<int>(policy));
}

}  // namespace

bool check_fits(const std::string& key, const at::Tensor& given, c10::IntArrayRef sizes, c10::ScalarType dtype,
                DtypePolicy policy, FaultList& faults, LoadReport& report) {
  if (given.sizes() != sizes) {
    faults.add(ErrorKind::kShape, key,
               c10::str("the given tensor has shape ", given.sizes(), ", the current one ", sizes));
    return false;
  }
  const c10::ScalarType from = given.scalar_type();
  if (from == dtype) return true;
  if (!may_convert(from, dtype, policy)) {
    faults.add(ErrorKind::kType, key,
               c10::str("the given tensor is ", dtype_name(from), ", the current one ", dtype_name(dtype),
                        ", and the dtype policy does not allow this conversion"));
    return false;
  }
  report.converted.push_back({key, dtype_name(from), dtype_name(dtype)});
  return true;
}

}  // namespace dcp

#include "torch_dcp/state_dict/dtype_policy.h"

#include "torch_dcp/base/error.h"
#include "torch_dcp/tensor/dtype.h"

namespace dcp {

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

}  // namespace dcp

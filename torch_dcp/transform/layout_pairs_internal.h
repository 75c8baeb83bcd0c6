#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

#include "torch_dcp/base/error.h"
#include "torch_dcp/state_dict/value.h"

namespace dcp {

/// Views of the same elements in two tensors of other kinds or layouts.
struct LayoutPairs {
  std::vector<std::pair<at::Tensor, at::Tensor>> views;  ///< (source, target)
  std::string fault;                                     ///< why there are none; empty if there is no reason
  ErrorKind kind = ErrorKind::kKey;                      ///< of the fault
};

/// Cuts what this rank has of `target` out of what it has of `source`; no rank is asked for elements.
///
/// Where this rank has nothing of the target, two empty tensors stand for the dtypes.
///
/// \pre Both are tensors of some kind, with equal global sizes.
LayoutPairs pair_layouts(const Value& source, const Value& target);

}  // namespace dcp

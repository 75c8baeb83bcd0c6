#pragma once

#include <vector>

#include "torch_dcp/state_dict/dtype_policy.h"
#include "torch_dcp/state_dict/load_report.h"
#include "torch_dcp/state_dict/value.h"

namespace dcp {

struct CopyOptions {
  /// Copies between devices may still run on return, as `Tensor::copy_` says.
  bool non_blocking = false;
  /// Refuse Stateful and opaque objects; without it the target takes the state of a Stateful, and opaque objects as
  /// they are.
  bool type_check = true;
  DtypePolicy dtype_policy = DtypePolicy::kLossless;
};

/// Copies the elements of `source`'s tensors into those of `target`, in place, and gives `target` the other values of
/// `source`.
///
/// Dicts must have the same keys, in any order, sequences the same length; a list may be copied into a tuple and stays
/// what the target has. DTensors must have the same mesh and placements, ShardedTensors the same shards on this rank.
/// Values that are no tensors are not compared: the source's wins. Sources that lie in the memory of a target are read
/// before it is written. Autograd sees none of it.
///
/// \returns The conversions of dtype that were done; keys are flat.
/// \throws dcp::Error that names every difference with its flat key, before anything is changed: kKey where the
///         structures differ, kShape or kType where tensors do, kInvalidArgument for objects that `type_check` refuses,
///         kUnsupported for sparse, nested and meta tensors, targets that overlap themselves, and quantized tensors
///         where the other is not quantized by the same scheme to the same dtype; its kind is that of the first
///         difference.
/// Collective: no.
DCP_API std::vector<DtypeConversion> copy_into(const Dict& source, Dict& target, const CopyOptions& options = {});

}  // namespace dcp

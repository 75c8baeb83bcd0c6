#pragma once

#include <set>
#include <string>

#include "torch_dcp/base/export.h"
#include "torch_dcp/fwd.h"
#include "torch_dcp/state_dict/dtype_policy.h"
#include "torch_dcp/state_dict/load_report.h"
#include "torch_dcp/state_dict/value.h"

namespace dcp {

struct GetModelStateOptions {
  /// Names of buffers that are no part of the state. (LibTorch's modules cannot mark a buffer as non-persistent.)
  std::set<std::string> non_persistent_buffers = {};
};

/// Gives a module's state dict with Python's names in Python's order: `module_tensors` as name -> tensor.
///
/// The values are the live tensors themselves, not copies: loading into the dict loads into the module. A tensor
/// that has several names appears under each.
///
/// \throws dcp::Error kKey for a name in `non_persistent_buffers` that no buffer has, naming all such.
/// Collective: no.
/// Source: torch/distributed/checkpoint/state_dict.py, get_model_state_dict (2.14.1).
DCP_API Dict get_model_state_dict(const torch::nn::Module& module, const GetModelStateOptions& options = {});

struct SetModelStateOptions {
  /// On: the names are exactly those of the module, and the values under several names of one tensor are equal. Off:
  /// what fits is set, the rest is reported; of several values for one tensor the first name's counts.
  bool strict = true;
  DtypePolicy dtype_policy = DtypePolicy::kLossless;
  /// As in GetModelStateOptions: left alone.
  std::set<std::string> non_persistent_buffers = {};
};

/// Copies a state dict into a module's tensors, in place: who holds a tensor of the module sees the new values.
/// Where the given tensor is the module's own nothing is copied. Gradients and `requires_grad` stay.
///
/// Everything is checked before the first element changes, and one error names all that is wrong: missing and
/// unexpected names (strict), values that are no plain tensors, sizes, dtypes, and names of one tensor whose values
/// differ.
///
/// \throws dcp::Error of the first fault's kind: kKey, kType, kShape, kInvalidArgument.
/// Collective: no.
/// Source: torch/distributed/checkpoint/state_dict.py, set_model_state_dict (2.14.1).
DCP_API LoadReport set_model_state_dict(torch::nn::Module& module, const Dict& state,
                                        const SetModelStateOptions& options = {});

}  // namespace dcp

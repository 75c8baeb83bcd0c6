#pragma once

#include <string>

#include "torch_dcp/base/export.h"
#include "torch_dcp/fwd.h"
#include "torch_dcp/state_dict/dtype_policy.h"
#include "torch_dcp/state_dict/load_report.h"
#include "torch_dcp/state_dict/value.h"

namespace dcp {

struct StateDictArgs {
  /// Put in front of every name.
  std::string prefix = "";
};

/// Gives a module's state as Python's `Module.state_dict()`: for each module its own parameters, its own buffers but
/// for non-persistent ones, and its extra state, then its children, depth first.
///
/// The tensors are the live ones, not copies; one that has several names is there under each. The hooks of every module
/// in the tree run, with the module's prefix: state-dict pre hooks before the module's own entries are taken, post
/// hooks after its children. Works for modules on the stack too.
///
/// \throws dcp::Error kKey for a name that several tensors have, and for a non-persistent buffer that is none; what
///         hooks and `get_extra_state` throw.
/// Collective: no. Thread safety: of one module by one thread at a time.
/// Source: torch/nn/modules/module.py, Module.state_dict (2.14.1).
DCP_API Dict state_dict(const torch::nn::Module& module, const StateDictArgs& args = {});

struct LoadStateDictOptions {
  /// On: the names are exactly those of the module, after the hooks had their say, and the values under several names
  /// of one tensor are equal. Off: what fits is loaded, the rest is reported; of several values for one tensor the
  /// first name's counts.
  bool strict = true;
  DtypePolicy dtype_policy = DtypePolicy::kLossless;
  /// On: the module's tensors take over the memory and the dtype of the given ones instead of copying; `dtype_policy`
  /// is not asked. Whoever holds a tensor of the module, such as an optimizer, sees the new values. Sizes must agree,
  /// and both tensors must be dense ones of the same device type (LibTorch's `Tensor::set_data`).
  bool assign = false;
};

/// Loads a state into a module as Python's `Module.load_state_dict()`, but all or nothing.
///
/// In this order:
/// 1. Module by module, parents first, load pre hooks run and the module's own entries are checked.
/// 2. One error names all that is wrong: sizes, dtypes, values that are no tensors, what hooks added to the errors,
///    and (strict) missing and unexpected names. These names wait for step 5 if a post hook could still edit them and
///    nothing else is wrong.
/// 3. Tensors are copied in place; where the given tensor is the module's own nothing is copied. Gradients and
///    `requires_grad` stay.
/// 4. Extra state is set.
/// 5. Load post hooks run, children before parents; then (strict) names that are left in the report are an error.
///
/// Until step 3 this call changes nothing. An error in steps 3 to 5, also of a hook or a setter, puts back the bits of
/// all parameters and buffers of the module, and the extra state; it then reaches the caller unchanged, unless
/// something could not be put back, which the error says then. For that all of the module's tensors are copied first,
/// if a post hook is registered or there is extra state to set; otherwise the load takes no memory of that size.
///
/// \throws dcp::Error of the first fault's kind: kType, kShape, kInvalidArgument, kKey; kState if something could not
/// be
///         put back; what hooks, `get_extra_state` and `set_extra_state` throw.
/// Collective: no. Thread safety: of one module by one thread at a time.
/// Source: torch/nn/modules/module.py, Module.load_state_dict (2.14.1).
DCP_API LoadReport load_state_dict(torch::nn::Module& module, const Dict& state,
                                   const LoadStateDictOptions& options = {});

}  // namespace dcp

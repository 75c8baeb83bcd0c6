#pragma once

#include <memory>
#include <vector>

#include "torch_dcp/base/export.h"
#include "torch_dcp/fwd.h"
#include "torch_dcp/state_dict/dtype_policy.h"
#include "torch_dcp/state_dict/load_report.h"
#include "torch_dcp/state_dict/value.h"

namespace dcp {

class OptimizerAdapter;

struct OptimizerStateDictArgs {
  /// Asked before the built-in adapters (SGD, Adam, AdamW, RMSprop, Adagrad, LBFGS).
  std::vector<std::shared_ptr<const OptimizerAdapter>> adapters = {};
};

/// Gives an optimizer's state as Python's `Optimizer.state_dict()`: parameters are numbers from 0, in the order of the
/// groups, `{"state": {0: {name: value}}, "param_groups": [{option: value, "params": [0, 1]}]}`.
///
/// Such a dict belongs to an optimizer with the same parameters in the same order, and is what Python's `torch.save`
/// files hold. For checkpoints, and wherever names are known, `get_optimizer_state_dict` is the better form.
///
/// Tensors are the live ones. As in Python a parameter that was never stepped has no entry in `state`. State of
/// parameters that `shard_parameters` has spread is in DTensors. State-dict hooks of the optimizer run.
///
/// \throws dcp::Error kType for an optimizer that no adapter handles, naming its type; kUnsupported for LBFGS over
/// parts
///         of parameters; what hooks throw.
/// Collective: no. Thread safety: of one optimizer by one thread at a time.
/// Source: torch/optim/optimizer.py, Optimizer.state_dict (2.14.1).
DCP_API Dict state_dict(const torch::optim::Optimizer& optimizer, const OptimizerStateDictArgs& args = {});

struct LoadOptimizerStateDictOptions {
  /// On: each group has all options that LibTorch has, and each state that is there is complete. Off: what is missing
  /// is reported; options then stay.
  bool strict = true;
  DtypePolicy dtype_policy = DtypePolicy::kLossless;
  /// As in OptimizerStateDictArgs.
  std::vector<std::shared_ptr<const OptimizerAdapter>> adapters = {};
};

/// Loads such a dict, also one of Python's from `torch_load`. Keys of `state` may be numbers or, as a checkpoint makes
/// them, their spelling.
///
/// Parameters are matched by their place: the first of the first group takes the state of the first number that the
/// first stored group lists. A trainable parameter without stored state is as never stepped afterwards, strict or not;
/// the report has it in `missing`. The rest is as in `set_optimizer_state_dict`: values are checked before the first
/// change, and one error names all faults; state is copied, in place where a tensor of the same shape is there.
///
/// Load pre hooks of the optimizer run first, post hooks last. What hooks and adapters throw leaves options and state
/// as they were, to the last bit. For that the state's tensors are copied first if a post hook is registered; otherwise
/// the load takes no memory of that size.
///
/// \throws dcp::Error kInvalidArgument if the groups differ in number or length; otherwise as
///         `set_optimizer_state_dict`; what hooks throw.
/// Collective: no. Thread safety: of one optimizer by one thread at a time.
/// Source: torch/optim/optimizer.py, Optimizer.load_state_dict (2.14.1).
DCP_API LoadReport load_state_dict(torch::optim::Optimizer& optimizer, const Dict& state,
                                   const LoadOptimizerStateDictOptions& options = {});

}  // namespace dcp

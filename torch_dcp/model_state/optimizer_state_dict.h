#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "torch_dcp/base/export.h"
#include "torch_dcp/fwd.h"
#include "torch_dcp/model_state/state_dict_options.h"
#include "torch_dcp/state_dict/dtype_policy.h"
#include "torch_dcp/state_dict/load_report.h"
#include "torch_dcp/state_dict/value.h"

namespace dcp {

/// How a tensor that this rank has a part of is spread.
struct DTensorLayout {
  std::shared_ptr<const DeviceMesh> mesh;
  Placements placements;
  Sizes global_sizes;
};

/// A parameter as the optimizer holds it.
struct OptimizerParameter {
  std::string fqn;
  at::Tensor tensor;                    ///< what the optimizer steps: may be this rank's part only
  std::optional<DTensorLayout> layout;  ///< given if it is a part; the values of its state are then DTensors
};

/// For the calls to which parameters are given.
struct OptimizerStateOptions {
  /// Off: Python's nested form, `{"state": {fqn: {name: value}}, "param_groups": [{option: value, "params": [fqn]}]}`.
  /// On: `{"state.FQN.NAME": value, "param_groups.FQN.OPTION": value}`. A dict loads in its own form only.
  bool flatten = false;
  /// For a set. On: each trainable parameter has a stored group and state, and each group all options that LibTorch
  /// has. Off: what is missing is reported; options then stay, and a parameter without stored state is as never
  /// stepped.
  bool strict = true;
  /// For a set: dtypes of tensors in the state. (Numbers are taken from any real dtype.)
  DtypePolicy dtype_policy = DtypePolicy::kLossless;
  /// Asked before the built-in adapters (SGD, Adam, AdamW, RMSprop, Adagrad, LBFGS).
  std::vector<std::shared_ptr<const OptimizerAdapter>> adapters = {};
};

/// Gives the state of optimizers in Python's form: names instead of numbers, and every option that Python's optimizer
/// of this name needs, with Python's defaults for those that LibTorch lacks. Several optimizers make one dict: their
/// states joined, their groups one after the other.
///
/// Changes nothing: tensors in the result are the live ones (but for `full_state_dict` and `cpu_offload`), and the
/// state of a parameter that was never stepped is built beside the optimizer. Parameters that need no gradient and have
/// no state have no entry, nor have any where the optimizer keeps nothing (SGD without momentum). A parameter with
/// several names has one entry, under the first; one that a group has twice (`Module::parameters` gives a tied one once
/// for each name) is listed twice there, as in Python. `step` is a float32 tensor without dimensions, int64 above 2^24.
/// SGD's buffer of a parameter that was never stepped is all -0.0: Python takes it as zeros, and
/// `set_optimizer_state_dict` as no state.
///
/// LBFGS has one state, under its first parameter; before the first step it is the two counters alone. Python has no
/// flattened form of it. Ours is the usual one, `state.FIRST.NAME` with lists as values, and has
/// `param_groups.FQN.params` for each parameter, the list of all: the vectors in the state are in this order.
///
/// State of parameters that `shard_parameters` has spread is in DTensors. State-dict hooks of each optimizer run, on
/// its own part, in the form of the call. With `submodules` there is only what belongs to their parameters.
///
/// As destinations of a load the result has the groups and values that this optimizer has now. Where the checkpoint's
/// may differ (other groups, amsgrad or momentum switched, an int64 step, LBFGS with another history) read it with
/// `load_keys` instead.
///
/// \param optimizers  One, or pointers to several.
/// \throws dcp::Error kInvalidArgument and kState for illegal options (`verify_options`); kType for an optimizer that
/// no
///         adapter handles, naming its type; kKey for a parameter that the module does not have, two of one name, and
///         one that two optimizers step; kUnsupported for LBFGS over parts of parameters, and with `submodules` that
///         divide a group of it; what hooks throw.
/// Collective: with `full_state_dict`, all ranks of the group. Otherwise no.
/// Source: torch/distributed/checkpoint/state_dict.py, get_optimizer_state_dict (2.14.1); interop FORMAT.md 8.
DCP_API Dict get_optimizer_state_dict(const torch::nn::Module& module, const ConstOptimizerRefs& optimizers,
                                      const StateDictOptions& options = {}, const Submodules& submodules = {});

/// The same of one optimizer with names and layouts as given. All parameters of the optimizer must be there; others are
/// ignored.
///
/// Values of a parameter's shape become DTensors of its layout, but for those without dimensions.
DCP_API Dict get_optimizer_state_dict(const std::vector<OptimizerParameter>& parameters,
                                      const torch::optim::Optimizer& optimizer,
                                      const OptimizerStateOptions& options = {});

/// Puts options and state into optimizers; parameters and groups are matched by name, never by position.
///
/// Each group takes the options of the stored group that lists its parameters; an empty group those of the stored empty
/// group at the same place among the empty ones, if there is one. (Not strict: a group that no stored one lists takes
/// the options of the stored one at its position among all.) State is copied, in place where the optimizer has a tensor
/// of the same shape: the given dict, which is never changed, shares no memory with the optimizer unless it did before.
/// Weights and gradients are not touched. LBFGS takes its state if the stored group has the same parameters, in any
/// order. A parameter with several names takes what is stored under the first of them that has state, else that is in a
/// group. A state with numbers for parameters, as Python's `Optimizer.state_dict()`, is loaded by position (the nested
/// form, into one optimizer).
///
/// Numbers may be ints, doubles or tensors without dimensions. Options that LibTorch lacks are checked if they change
/// results (`maximize`, `differentiable`, `decoupled_weight_decay`: kUnsupported if LibTorch computes otherwise), and
/// ignored if not (`foreach`, `fused`, `capturable`). Unknown options, and state of other parameters, are ignored and
/// reported as unexpected.
///
/// Everything is checked before the first change, on all ranks if there is a group, and one error names all that is
/// wrong. Load hooks of each optimizer run before and after, with a copy of the whole dict; what they or adapters throw
/// leaves options, state and gradients as they were, to the last bit. For that the state's tensors are copied first if
/// a post hook is registered.
///
/// With `full_state_dict` each rank takes its part of whole tensors, which with `broadcast_from_rank0` come from rank
/// 0: the others may give an empty dict. That takes memory for this rank's part of the state once more, and for a
/// bucket.
///
/// An empty dict is refused if strict, and otherwise loads nothing.
///
/// \throws dcp::Error of the first fault's kind: kKey (strict: missing options, groups or state), kInvalidArgument (one
///         group would need two different sets of options), kUnsupported, kType, kShape; kState for an empty dict; and
///         as the getter. With a group of several ranks it is a CheckpointError, alike on each.
/// Collective: if there is a group, all its ranks. Otherwise no.
/// Source: torch/distributed/checkpoint/state_dict.py, set_optimizer_state_dict (2.14.1); interop FORMAT.md 8.5.
DCP_API LoadReport set_optimizer_state_dict(const torch::nn::Module& module, const OptimizerRefs& optimizers,
                                            const Dict& state, const StateDictOptions& options = {},
                                            const Submodules& submodules = {});

/// The same for one optimizer with names and layouts as given; nothing is found by position.
DCP_API LoadReport set_optimizer_state_dict(const std::vector<OptimizerParameter>& parameters,
                                            torch::optim::Optimizer& optimizer, const Dict& state,
                                            const OptimizerStateOptions& options = {});

}  // namespace dcp

#pragma once

#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "torch_dcp/base/export.h"
#include "torch_dcp/comm/communicator.h"
#include "torch_dcp/comm/group_ref.h"
#include "torch_dcp/fwd.h"
#include "torch_dcp/model_state/wrappers.h"
#include "torch_dcp/state_dict/dtype_policy.h"

namespace dcp {

class OptimizerAdapter;

// clang-format off: a table.

/// How the calls named get_ and set_ give and take the states of modules and optimizers.
///
/// What is legal; one error (`verify_options`) names every field that is not:
///
/// | field                                    | in a getter                           | in a setter                        |
/// | ---------------------------------------- | ------------------------------------- | ---------------------------------- |
/// | `full_state_dict`                        | a group where parameters are spread   | always                             |
/// |                                          | over several ranks                    |                                    |
/// | `cpu_offload`                            | always                                | always; without effect             |
/// | `broadcast_from_rank0`                   | never                                 | with `full_state_dict` and a group |
/// |                                          |                                       | whose coordinator is rank 0        |
/// | `ignore_frozen_params`, `strict`,        | always                                | always                             |
/// | `flatten_optimizer_state_dict`           |                                       |                                    |
/// | `keep_submodule_prefixes` off            | always; without submodules no effect  | the same                           |
/// | `bucket_bytes`                           | above 0                               | above 0                            |
/// | `device`                                 | one that has memory; without effect   | one that has memory                |
/// | `wrappers`, `adapters`                   | no null, no empty names               | the same                           |
///
/// "A group" is `communicator` or `process_group`. A call for optimizers alone needs one at least, and no optimizer
/// twice.
// clang-format on
struct StateDictOptions {
  /// Plain whole tensors in place of the parts that ranks have. A getter gathers them, tensor by tensor; a setter takes
  /// them, and each rank keeps its part.
  bool full_state_dict = false;
  /// A getter's tensors lie on the CPU. With `full_state_dict` rank 0 alone gets them: the others get an empty dict.
  bool cpu_offload = false;
  /// Parameters that need no gradient are left out of the model's dict. A setter takes them if they are there.
  bool ignore_frozen_params = false;
  /// Off: names begin below the submodule that was asked for.
  bool keep_submodule_prefixes = true;
  /// On: names are exactly those of the module, and every trainable parameter has its state and options. Off: what fits
  /// is loaded, the rest reported; a group of an optimizer none of whose parameters is listed takes the options of the
  /// stored group at the same position.
  bool strict = true;
  /// A setter takes all from rank 0, and the others may give empty dicts.
  bool broadcast_from_rank0 = false;
  /// Python's flattened form of an optimizer's state.
  bool flatten_optimizer_state_dict = false;
  /// Replaced names of a module's children.
  std::function<FqnModifiers(const torch::nn::Module&)> fqn_modifiers = {};

  /// For a setter: dtypes of tensors.
  DtypePolicy dtype_policy = DtypePolicy::kLossless;
  /// Asked before the built-in adapters of optimizers.
  std::vector<std::shared_ptr<const OptimizerAdapter>> adapters = {};
  /// Wrappers beside the default ones.
  std::vector<WrapperTraits> wrappers = {};
  /// Names of buffers that are no part of the state, beside those that are registered as such.
  std::set<std::string> non_persistent_buffers = {};
  /// The ranks that call together; none: this process alone. A getter talks to nobody but for `full_state_dict`. A
  /// setter checks on all ranks before the first one changes anything.
  GroupRef process_group = {};
  /// Used instead of `process_group` if given: spares making a group for every call.
  std::shared_ptr<Communicator> communicator = nullptr;
  /// The most bytes that travel in one step, as in `gather` and `broadcast_state`.
  std::int64_t bucket_bytes = std::int64_t{64} << 20;
  /// Where a setter gives memory to tensors on the meta device; where the module's others are if not given.
  std::optional<c10::Device> device = std::nullopt;
};

/// Optimizers of a call: one, or several whose states make one dict.
template <typename T>
class OptimizerRefsOf {
 public:
  OptimizerRefsOf() = default;
  OptimizerRefsOf(T& optimizer) : pointers_{&optimizer} {}  // NOLINT: calls take the optimizer itself
  OptimizerRefsOf(std::initializer_list<T*> pointers) : pointers_(pointers) {}
  /// Pointers to optimizers of any class.
  template <typename U>
    requires std::is_convertible_v<U*, T*>
  OptimizerRefsOf(const std::vector<U*>& pointers)  // NOLINT
      : pointers_(pointers.begin(), pointers.end()) {}
  template <typename U>
    requires(std::is_convertible_v<U*, T*> && !std::is_same_v<U, T>)
  OptimizerRefsOf(const OptimizerRefsOf<U>& other)  // NOLINT
      : pointers_(other.pointers().begin(), other.pointers().end()) {}

  const std::vector<T*>& pointers() const { return pointers_; }

 private:
  std::vector<T*> pointers_;
};
using OptimizerRefs = OptimizerRefsOf<torch::optim::Optimizer>;
using ConstOptimizerRefs = OptimizerRefsOf<const torch::optim::Optimizer>;

/// Modules of the tree to which a call is limited; empty: all of it. Of a module that has several names the first
/// counts, and one below another in the list changes nothing.
using Submodules = std::vector<const torch::nn::Module*>;

/// What a call with options is for.
struct StateDictCall {
  bool is_getter = true;
  bool has_model = true;
  ConstOptimizerRefs optimizers = {};
};

/// \throws dcp::Error naming every field and argument that is illegal in this call, by the table above: kState for a
///         call without model and optimizer, else kInvalidArgument.
/// Collective: no.
DCP_API void verify_options(const torch::nn::Module& module, const StateDictOptions& options,
                            const StateDictCall& call);

}  // namespace dcp

#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "torch_dcp/base/export.h"
#include "torch_dcp/base/fault_list.h"
#include "torch_dcp/fwd.h"
#include "torch_dcp/state_dict/load_report.h"
#include "torch_dcp/state_dict/value.h"

// State-dict hooks on modules and optimizers of any class. They run in every call that gives or takes a state:
// `state_dict` and `load_state_dict`, the calls named get_ and set_, and all that is built on them.
//
// Lifetime. A hook belongs to the object it was registered on, not to copies and clones of it, and to its handle. If a
// module that a `std::shared_ptr` (or a `ModuleHolder`) owned when the hook was registered dies before the handle, its
// hooks never run again, also if another module comes to lie at the same address. Of a module on the stack or in a
// member, of one that registers in its own constructor, where no pointer owns it yet, and of an optimizer, only the
// address is known: destroy the handle first. A handle that is a member of the module itself does so.
//
// Threads. Registering and removing is safe from several threads. A call works with the hooks that are registered when
// it begins, and runs them on its own thread without holding any lock: a hook may register, remove, and ask for states.
// What is removed meanwhile is not run by the next call, and may still be running in another thread.

namespace dcp {

/// Where one hook is kept.
struct HookRef {
  const void* subject = nullptr;
  std::uint64_t id = 0;
};

/// Owns hooks, and whatever else is attached to a module or optimizer by a `register_` call: destroying the handle ends
/// it.
///
/// Thread safety: one handle by one thread at a time; different handles at once.
class [[nodiscard]] DCP_API HookHandle {
 public:
  /// Owns nothing.
  HookHandle() = default;
  explicit HookHandle(std::vector<HookRef> refs);
  HookHandle(const HookHandle&) = delete;
  HookHandle& operator=(const HookHandle&) = delete;
  HookHandle(HookHandle&& other) noexcept;
  /// Removes what it owned before.
  HookHandle& operator=(HookHandle&& other) noexcept;
  ~HookHandle();

  /// Takes over what another handle owns.
  void add(HookHandle other);

  /// Removes all that it owns; does nothing if it owns nothing.
  void remove() noexcept;

  /// Whether it owns anything.
  explicit operator bool() const noexcept { return !refs_.empty(); }

 private:
  std::vector<HookRef> refs_;
};

/// Runs before a module's own entries are put into a state; may prepare the module.
///
/// `prefix` is the module's place below the one that the call was made on, with a dot at its end: "" or "layer.".
using ModuleStateDictPreHook = std::function<void(torch::nn::Module& module, const std::string& prefix)>;

/// Runs when the entries of a module and its children are in `state`; may change the state. The entries of the module
/// begin with `prefix`; those of others may be there too.
using ModuleStateDictPostHook = std::function<void(torch::nn::Module& module, Dict& state, const std::string& prefix)>;

/// What a load pre hook of a module sees and may change.
struct LoadPreHookArgs {
  torch::nn::Module& module;
  /// The entries below `prefix`, with their full names: a copy, from which the module and its children load. The
  /// caller's dict is never changed (tensors in it are shared with the copy).
  Dict& state;
  const std::string& prefix;
  bool strict;
  /// What is known so far, of modules before this one.
  std::vector<std::string>& missing;
  std::vector<std::string>& unexpected;
  /// Faults added here fail the load, strict or not, before anything was changed; the error names them all.
  FaultList& errors;
};

/// Runs before a module takes anything from a state; may prepare the module.
using ModuleLoadPreHook = std::function<void(const LoadPreHookArgs& args)>;

/// Runs when everything is loaded, for children before their parents. May edit `missing` and `unexpected`, the lists of
/// the whole load: a strict load fails if a name is left in them after the last hook, and takes everything back.
using ModuleLoadPostHook = std::function<void(torch::nn::Module& module, LoadReport& report)>;

/// Registers a hook on a module; hooks of one kind run in the order in which they were registered.
///
/// An exception of a hook ends the call, and reaches the caller unchanged. Nothing stays changed then but what hooks
/// themselves did: see `load_state_dict`.
///
/// \throws dcp::Error kInvalidArgument for an empty function.
/// Collective: no.
/// Source: torch/nn/modules/module.py, register_state_dict_pre_hook and the others (2.14.1).
DCP_API HookHandle register_state_dict_pre_hook(torch::nn::Module& module, ModuleStateDictPreHook hook);
DCP_API HookHandle register_state_dict_post_hook(torch::nn::Module& module, ModuleStateDictPostHook hook);
DCP_API HookHandle register_load_state_dict_pre_hook(torch::nn::Module& module, ModuleLoadPreHook hook);
DCP_API HookHandle register_load_state_dict_post_hook(torch::nn::Module& module, ModuleLoadPostHook hook);

/// Runs before an optimizer's state is read.
using OptimizerStateDictPreHook = std::function<void(torch::optim::Optimizer& optimizer)>;

/// Runs on the result of a call, and may change it. It has the form of that call: numbers for parameters from
/// `state_dict`, names from `get_optimizer_state_dict`, flattened if that was asked for.
using OptimizerStateDictPostHook = std::function<void(torch::optim::Optimizer& optimizer, Dict& state)>;

/// Runs before an optimizer takes anything from a state. `state` is a copy of what was given, in the form of the call,
/// and what is loaded; the caller's dict is never changed (tensors in it are shared with the copy).
using OptimizerLoadPreHook = std::function<void(torch::optim::Optimizer& optimizer, Dict& state)>;

/// Runs when everything is loaded.
using OptimizerLoadPostHook = std::function<void(torch::optim::Optimizer& optimizer)>;

/// Registers a hook on an optimizer, as on a module.
///
/// \throws dcp::Error kInvalidArgument for an empty function.
/// Collective: no.
/// Source: torch/optim/optimizer.py, register_state_dict_pre_hook and the others (2.14.1).
DCP_API HookHandle register_state_dict_pre_hook(torch::optim::Optimizer& optimizer, OptimizerStateDictPreHook hook);
DCP_API HookHandle register_state_dict_post_hook(torch::optim::Optimizer& optimizer, OptimizerStateDictPostHook hook);
DCP_API HookHandle register_load_state_dict_pre_hook(torch::optim::Optimizer& optimizer, OptimizerLoadPreHook hook);
DCP_API HookHandle register_load_state_dict_post_hook(torch::optim::Optimizer& optimizer, OptimizerLoadPostHook hook);

}  // namespace dcp

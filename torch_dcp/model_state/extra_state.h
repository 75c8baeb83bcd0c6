#pragma once

#include <functional>
#include <set>
#include <string>

#include "torch_dcp/base/export.h"
#include "torch_dcp/fwd.h"
#include "torch_dcp/model_state/hooks.h"
#include "torch_dcp/state_dict/value.h"

// What LibTorch's modules lack beside hooks: state that is no tensor, and buffers that are no state. For modules of
// one's own by deriving from an interface beside `torch::nn::Module`, for all others by registering.

namespace dcp {

/// A module with more state than its parameters and buffers. It is in the state dict under the module's prefix and
/// `_extra_state`, after the module's tensors and before its children's, as in Python.
class DCP_API HasExtraState {
 public:
  virtual ~HasExtraState();

  virtual Value get_extra_state() const = 0;

  /// Takes over what `get_extra_state` gave, in this or another process. A load that fails later sets the old value
  /// again.
  virtual void set_extra_state(const Value& state) = 0;
};

/// The same for a module of any class. `getter` and `setter` refer to what they need by themselves.
///
/// \throws dcp::Error kKey if the module has extra state already, kInvalidArgument for an empty function.
/// Collective: no.
/// Source: torch/nn/modules/module.py, get_extra_state, set_extra_state (2.14.1).
DCP_API HookHandle register_extra_state(torch::nn::Module& module, std::function<Value()> getter,
                                        std::function<void(const Value&)> setter);

/// A module some of whose buffers are no part of its state.
class DCP_API HasNonPersistentBuffers {
 public:
  virtual ~HasNonPersistentBuffers();

  /// Names of the module's own buffers. One that it does not have makes each call for the module's state fail (kKey).
  virtual std::set<std::string> non_persistent_buffers() const = 0;
};

/// The same for a module of any class: `names` are those of buffers of the module itself, not of its children.
///
/// \throws dcp::Error kKey for names that are no buffers of the module, naming all such.
/// Collective: no.
/// Source: torch/nn/modules/module.py, register_buffer with persistent=False (2.14.1).
DCP_API HookHandle register_non_persistent_buffers(torch::nn::Module& module, const std::set<std::string>& names);

}  // namespace dcp

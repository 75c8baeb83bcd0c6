#pragma once

#include <optional>
#include <set>
#include <string>
#include <unordered_set>
#include <vector>

#include "torch_dcp/base/fault_list.h"
#include "torch_dcp/fwd.h"
#include "torch_dcp/model_state/fqn.h"
#include "torch_dcp/model_state/hook_registry_internal.h"

namespace dcp {

/// Appends a module's own tensors, parameters before buffers. Undefined ones are skipped.
void append_own_tensors(const torch::nn::Module& module, const std::string& prefix, std::vector<ModuleTensor>& out);

/// Notes the names that tensors of a module have. LibTorch refuses dots in names, but a parameter and a buffer, or a
/// tensor and a child's, may still meet.
class NameCheck {
 public:
  void add(const std::string& fqn);
  /// \throws dcp::Error kKey naming all that several tensors have.
  void throw_if_doubled() const;

 private:
  std::unordered_set<std::string> seen_;
  FaultList faults_;
};

/// Says what a module's own part of a state is: which buffers belong to it, and the extra state.
class ModuleParts {
 public:
  /// \param left_out  Full names of further buffers that are no part of the state.
  ModuleParts(const HookTable& hooks, const std::set<std::string>& left_out)
      : hooks_(hooks), unused_(left_out), left_out_(left_out) {}

  /// The module's own parameters and persistent buffers.
  std::vector<ModuleTensor> tensors(const torch::nn::Module& module, const std::string& prefix);

  bool has_extra_state(const torch::nn::Module& module) const;
  /// Nothing for a module without.
  std::optional<Value> extra_state(const torch::nn::Module& module) const;
  /// Valid as long as the module and the table of hooks.
  std::optional<ExtraStateCalls> extra_state_calls(torch::nn::Module& module) const;

  /// After all modules were asked.
  /// \throws dcp::Error kKey for doubled names, and for names left out that no buffer has; naming all such.
  void check_names() const;

 private:
  bool is_persistent(const std::set<std::string>& non_persistent, const std::string& prefix, const std::string& fqn);

  const HookTable& hooks_;
  NameCheck names_;
  std::set<std::string> unused_;
  const std::set<std::string>& left_out_;
};

/// Key of a module's extra state.
std::string extra_state_key(const std::string& prefix);

}  // namespace dcp

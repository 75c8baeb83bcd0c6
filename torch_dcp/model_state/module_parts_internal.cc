#include "torch_dcp/model_state/module_parts_internal.h"

#include <torch/nn/module.h>

#include <utility>

#include "torch_dcp/model_state/extra_state.h"

namespace dcp {
namespace {

using TensorDict = torch::OrderedDict<std::string, at::Tensor>;

void append(const std::string& prefix, const TensorDict& named, ModuleTensorKind kind, std::vector<ModuleTensor>& out) {
  for (const auto& item : named) {
    if (item.value().defined()) out.push_back({prefix + item.key(), item.value(), kind});
  }
}

/// Names of a module's own buffers.
std::set<std::string> non_persistent_names(const torch::nn::Module& module, const HookTable& hooks) {
  std::set<std::string> names;
  if (const auto* known = dynamic_cast<const HasNonPersistentBuffers*>(&module))
    names = known->non_persistent_buffers();
  for (const NonPersistentNames* registered : hooks.of<NonPersistentNames>(&module)) {
    names.insert(registered->names.begin(), registered->names.end());
  }
  return names;
}

void check_are_buffers(const std::set<std::string>& names, const torch::nn::Module& module, const std::string& prefix) {
  if (names.empty()) return;
  const TensorDict buffers = module.named_buffers(/*recurse=*/false);
  FaultList faults;
  for (const std::string& name : names) {
    if (!buffers.contains(name)) faults.add(ErrorKind::kKey, prefix + name, "the module has no such buffer");
  }
  faults.throw_if_any("names of non-persistent buffers", DCP_WHERE);
}

}  // namespace

void append_own_tensors(const torch::nn::Module& module, const std::string& prefix, std::vector<ModuleTensor>& out) {
  append(prefix, module.named_parameters(/*recurse=*/false), ModuleTensorKind::kParameter, out);
  append(prefix, module.named_buffers(/*recurse=*/false), ModuleTensorKind::kBuffer, out);
}

void NameCheck::add(const std::string& fqn) {
  if (!seen_.insert(fqn).second) faults_.add(ErrorKind::kKey, fqn, "names several tensors");
}

void NameCheck::throw_if_doubled() const { faults_.throw_if_any("names in the module", DCP_WHERE); }

std::vector<ModuleTensor> ModuleParts::tensors(const torch::nn::Module& module, const std::string& prefix) {
  const std::set<std::string> non_persistent = non_persistent_names(module, hooks_);
  check_are_buffers(non_persistent, module, prefix);
  std::vector<ModuleTensor> all, kept;
  append_own_tensors(module, prefix, all);
  for (ModuleTensor& entry : all) {
    names_.add(entry.fqn);
    if (entry.kind == ModuleTensorKind::kParameter || is_persistent(non_persistent, prefix, entry.fqn)) {
      kept.push_back(std::move(entry));
    }
  }
  return kept;
}

bool ModuleParts::is_persistent(const std::set<std::string>& non_persistent, const std::string& prefix,
                                const std::string& fqn) {
  if (left_out_.contains(fqn)) {
    unused_.erase(fqn);
    return false;
  }
  return !non_persistent.contains(fqn.substr(prefix.size()));
}

bool ModuleParts::has_extra_state(const torch::nn::Module& module) const {
  return dynamic_cast<const HasExtraState*>(&module) != nullptr || hooks_.first_of<ExtraStateCalls>(&module) != nullptr;
}

std::optional<Value> ModuleParts::extra_state(const torch::nn::Module& module) const {
  if (const auto* has_state = dynamic_cast<const HasExtraState*>(&module)) return has_state->get_extra_state();
  if (const ExtraStateCalls* calls = hooks_.first_of<ExtraStateCalls>(&module)) return calls->get();
  return std::nullopt;
}

std::optional<ExtraStateCalls> ModuleParts::extra_state_calls(torch::nn::Module& module) const {
  if (auto* has_state = dynamic_cast<HasExtraState*>(&module)) {
    return ExtraStateCalls{[has_state] { return has_state->get_extra_state(); },
                           [has_state](const Value& state) { has_state->set_extra_state(state); }};
  }
  if (const ExtraStateCalls* calls = hooks_.first_of<ExtraStateCalls>(&module)) return *calls;
  return std::nullopt;
}

void ModuleParts::check_names() const {
  names_.throw_if_doubled();
  FaultList faults;
  for (const std::string& name : unused_) faults.add(ErrorKind::kKey, name, "the module has no such buffer");
  faults.throw_if_any("names of non-persistent buffers", DCP_WHERE);
}

std::string extra_state_key(const std::string& prefix) { return prefix + "_extra_state"; }

}  // namespace dcp

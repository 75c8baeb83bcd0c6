#include "torch_dcp/model_state/module_load_internal.h"

#include <ATen/ops/empty_like.h>
#include <c10/core/GradMode.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <string_view>
#include <unordered_set>

#include "torch_dcp/model_state/extra_state.h"
#include "torch_dcp/state_dict/equal.h"
#include "torch_dcp/state_dict/tensor_fit.h"
#include "torch_dcp/tensor/dtype.h"

namespace dcp {

using torch::nn::Module;

/// What a module and its children load from: the given dict, or a copy that hooks have changed.
class LoadScope {
 public:
  LoadScope(const Dict& state, std::string prefix) : state_(state), prefix_(std::move(prefix)) {}

  /// The entries of a module, for a scope of its own: this one says nothing of them any more.
  Dict hand_on(const std::string& prefix) {
    Dict handed;
    for (const auto& [key, value] : state_) {
      const std::string* name = std::get_if<std::string>(&key);
      if (prefix.empty() || (name != nullptr && name->starts_with(prefix))) handed.insert_or_assign(key, value);
    }
    handed_on_.insert(prefix);
    return handed;
  }

  const Value* find(const std::string& fqn) {
    known_.insert(fqn);
    return state_.find(fqn);
  }

  /// Keys that no module has asked for.
  void append_unexpected(std::vector<std::string>& unexpected) const {
    if (handed_on_.contains("")) return;
    for (const auto& [key, value] : state_) {
      const std::string* name = std::get_if<std::string>(&key);
      const bool is_other = name == nullptr ? !prefix_.empty() : !name->starts_with(prefix_);
      const bool is_known = name != nullptr && (known_.contains(*name) || is_handed_on(*name));
      if (!is_other && !is_known) unexpected.push_back(to_string(key));
    }
  }

 private:
  bool is_handed_on(std::string_view name) const {
    if (handed_on_.empty()) return false;
    for (std::size_t dot = name.find('.'); dot != std::string_view::npos; dot = name.find('.', dot + 1)) {
      if (handed_on_.contains(name.substr(0, dot + 1))) return true;
    }
    return false;
  }

  const Dict& state_;
  std::string prefix_;
  std::unordered_set<std::string> known_;
  std::set<std::string, std::less<>> handed_on_;
};

ModuleLoad::ModuleLoad(Module& module, const HookTable& hooks, const ModuleLoadArgs& args)
    : module_(module), hooks_(hooks), args_(args), parts_(hooks, args.left_out) {}

ModuleLoad::~ModuleLoad() = default;

void ModuleLoad::check(const Dict& given, FaultList& faults) {
  faults_ = &faults;
  LoadScope scope(given, "");
  visit(module_, "", scope);
  scope.append_unexpected(report_.unexpected);
  parts_.check_names();
  // A post hook that could still edit the names has a say, but not on a load that fails anyway.
  if (post_hooks_.empty() || !faults.empty()) add_name_faults(faults);
}

void ModuleLoad::visit(Module& module, const std::string& prefix, LoadScope& outer) {
  const auto pre_hooks = hooks_.of<ModuleLoadPre>(&module);
  std::optional<LoadScope> own;
  if (!pre_hooks.empty()) {
    Dict& state = copies_of_state_.emplace_back(outer.hand_on(prefix));
    for (const ModuleLoadPre* hook : pre_hooks) {
      hook->call({module, state, prefix, args_.options.strict, report_.missing, report_.unexpected, *faults_});
    }
    own.emplace(state, prefix);
  }
  LoadScope& scope = own ? *own : outer;
  append_own_tensors(module, prefix, all_tensors_);
  for (const ModuleTensor& entry : parts_.tensors(module, prefix)) check(entry, scope);
  check_extra_state(module, extra_state_key(prefix), scope);
  for (const auto& child : module.named_children()) {
    if (!child.value()) continue;
    modules_.push_back(child.value());
    visit(*child.value(), prefix + child.key() + ".", scope);
  }
  if (own) own->append_unexpected(report_.unexpected);
  for (const ModuleLoadPost* hook : hooks_.of<ModuleLoadPost>(&module)) post_hooks_.push_back(hook);
}

void ModuleLoad::check_extra_state(Module& module, const std::string& key, LoadScope& scope) {
  std::optional<ExtraStateCalls> calls = parts_.extra_state_calls(module);
  if (!calls) return;
  if (const Value* given = scope.find(key)) {
    extras_.push_back({key, *std::move(calls), given});
  } else {
    add_missing(key);
  }
}

void ModuleLoad::check(const ModuleTensor& live, LoadScope& scope) {
  const Value* value = scope.find(live.fqn);
  if (value == nullptr) return add_missing(live.fqn);
  if (!value->is_tensor() || !value->as_tensor().defined()) {
    return add_fault(ErrorKind::kType, live.fqn,
                     c10::str("a plain tensor is needed, a ", value_kind_name(value->kind()), " is given"));
  }
  const at::Tensor& given = value->as_tensor();
  if (!fits(live, given)) return;
  const auto [it, is_first] = first_names_.try_emplace(live.tensor.unsafeGetTensorImpl(), Named{live.fqn, given});
  if (is_first) {
    take(live.tensor, given);
  } else if (args_.options.strict) {
    check_tied(it->second, {live.fqn, given});
  }
}

void ModuleLoad::take(const at::Tensor& live, const at::Tensor& given) {
  if (args_.options.assign) {
    if (!is_same_memory(live, given)) assigned_.emplace_back(live, given.detach());
    return;
  }
  if (!live.is_meta() || given.is_meta()) return copies_.add(live, given);
  at::Tensor memory = at::empty_like(live.detach(), at::TensorOptions().device(args_.device.value_or(given.device())));
  copies_.add(memory, given);
  assigned_.emplace_back(live, std::move(memory));
}

bool ModuleLoad::fits(const ModuleTensor& live, const at::Tensor& given) {
  const std::string name = shown(live.fqn);
  const DtypePolicy policy = args_.options.dtype_policy;
  LoadReport report;
  const bool does_fit =
      args_.options.assign ? check_fits(name, given, live.tensor.sizes(), given.scalar_type(), policy, *faults_, report)
                           : check_fits(name, given, live.tensor, policy, *faults_, report);
  if (!does_fit) return false;
  report_.converted.insert(report_.converted.end(), report.converted.begin(), report.converted.end());
  if (!args_.options.assign && given.is_meta() && !live.tensor.is_meta()) {
    add_fault(ErrorKind::kUnsupported, live.fqn, "the given tensor is on the meta device, and has no elements");
    return false;
  }
  return !args_.options.assign || can_be_assigned(live, given);
}

/// As `set_data` would refuse it half-way.
bool ModuleLoad::can_be_assigned(const ModuleTensor& live, const at::Tensor& given) {
  const bool gets_memory = live.tensor.is_meta() && !given.is_meta();
  if (!gets_memory && !live.tensor.unsafeGetTensorImpl()->has_compatible_shallow_copy_type(given.key_set())) {
    add_fault(ErrorKind::kInvalidArgument, live.fqn,
              c10::str("the given tensor, on ", given.device(), ", cannot be assigned to the current one, on ",
                       live.tensor.device(), ": only dense ones of the same device type can"));
    return false;
  }
  if (live.tensor.requires_grad() && !given.is_floating_point() && !given.is_complex()) {
    add_fault(ErrorKind::kType, live.fqn,
              c10::str("the given tensor is ", dtype_name(given.scalar_type()),
                       ", and the current one, to which it would be assigned, requires a gradient"));
    return false;
  }
  return true;
}

void ModuleLoad::check_tied(const Named& first, const Named& other) {
  if (is_same_memory(first.given, other.given)) return;
  if (first.given.is_meta() || other.given.is_meta()) return;
  const std::string difference = first_difference(first.given, other.given);
  if (difference.empty()) return;
  add_fault(
      ErrorKind::kInvalidArgument, other.fqn,
      c10::str("is one tensor with ", shown(first.fqn), " in the module, but their given values differ: ", difference));
}

void ModuleLoad::add_missing(const std::string& name) {
  if (!args_.is_needed || args_.is_needed(name)) report_.missing.push_back(name);
}

void ModuleLoad::add_name_faults(FaultList& faults) const {
  if (!args_.options.strict) return;
  for (const std::string& name : report_.missing) {
    faults.add(ErrorKind::kKey, shown(name), "is missing in the given state");
  }
  for (const std::string& name : report_.unexpected) {
    faults.add(ErrorKind::kKey, shown(name), "is unexpected: no such name in the state of the module");
  }
}

void ModuleLoad::add_fault(ErrorKind kind, const std::string& name, const std::string& what) {
  faults_->add(kind, shown(name), what);
}

std::string ModuleLoad::shown(const std::string& name) const { return args_.shown ? args_.shown(name) : name; }

void ModuleLoad::keep_elements(LoadUndo& undo) {
  for (const auto& [tensor, given] : assigned_) undo.keep_memory(tensor);
  for (const ModuleTensor& entry : all_tensors_) {
    undo.keep(entry.tensor);
    if (entry.kind == ModuleTensorKind::kParameter) undo.keep_gradient(entry.tensor);
  }
  for (const ExtraEntry& extra : extras_) undo.keep(extra.key, extra.calls);
}

void ModuleLoad::write_elements() {
  copies_.apply();
  const c10::NoGradGuard no_grad;
  for (const auto& [tensor, given] : assigned_) take_memory(tensor, given);
}

void ModuleLoad::finish() {
  for (const ExtraEntry& extra : extras_) extra.calls.set(*extra.given);
  if (post_hooks_.empty()) return;
  for (const ModuleLoadPost* hook : post_hooks_) hook->call(report_);
  FaultList faults;
  add_name_faults(faults);
  faults.throw_if_any(kHeading, DCP_WHERE);
}

LoadReport ModuleLoad::report() const {
  LoadReport report = report_;
  for (std::string& name : report.missing) name = shown(name);
  for (std::string& name : report.unexpected) name = shown(name);
  return report;
}

bool runs_code_in_load(const Module& module, const HookTable& hooks) {
  const auto pre_hooks = hooks.of<ModuleLoadPre>(&module);
  const bool has_pre_hooks =
      std::any_of(pre_hooks.begin(), pre_hooks.end(), [](const ModuleLoadPre* hook) { return !hook->is_spread; });
  if (has_pre_hooks || !hooks.of<ModuleLoadPost>(&module).empty()) return true;
  if (dynamic_cast<const HasExtraState*>(&module) != nullptr) return true;
  if (hooks.first_of<ExtraStateCalls>(&module) != nullptr) return true;
  for (const auto& child : module.named_children()) {
    if (child.value() && runs_code_in_load(*child.value(), hooks)) return true;
  }
  return false;
}

}  // namespace dcp

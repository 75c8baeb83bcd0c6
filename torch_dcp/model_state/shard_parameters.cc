#include "torch_dcp/model_state/shard_parameters.h"

#include <fnmatch.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <map>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "torch_dcp/base/checked_math.h"
#include "torch_dcp/base/fault_list.h"
#include "torch_dcp/model_state/hook_registry_internal.h"
#include "torch_dcp/model_state/layout_internal.h"
#include "torch_dcp/tensor/dtensor.h"

namespace dcp {
namespace {

using torch::nn::Module;

/// A module's own parameter, under one of the names it has below the root.
struct OwnParameter {
  Module* owner = nullptr;
  std::string name;  ///< within the owner
  std::string fqn;
  at::Tensor tensor;
};

void append_parameters(Module& module, const std::string& prefix, std::vector<OwnParameter>& out) {
  for (const auto& item : module.named_parameters(/*recurse=*/false)) {
    if (item.value().defined()) out.push_back({&module, item.key(), prefix + item.key(), item.value()});
  }
  for (const auto& child : module.named_children()) {
    if (child.value()) append_parameters(*child.value(), prefix + child.key() + ".", out);
  }
}

bool matches(const ShardRule& rule, const std::string& fqn) {
  return ::fnmatch(rule.pattern.c_str(), fqn.c_str(), FNM_NOESCAPE) == 0;
}

/// The shape of which each rank has an equal part.
Sizes whole_of_equal_parts(const ShardRule& rule, c10::IntArrayRef local) {
  Sizes sizes(local);
  for (std::size_t i = 0; i < rule.placements.size() && i < rule.mesh->ndim(); ++i) {
    const Placement& placement = rule.placements[i];
    const auto ndim = static_cast<std::int64_t>(sizes.size());
    if (!placement.is_shard() || placement.dim < 0 || placement.dim >= ndim) continue;
    std::int64_t& size = sizes[static_cast<std::size_t>(placement.dim)];
    const std::optional<std::int64_t> whole = checked_mul(size, rule.mesh->shape()[i]);
    DCP_CHECK(whole, kInvalidArgument, "the whole has more elements than 64 bits can count");
    size = *whole;
  }
  return sizes;
}

constexpr const char* kIsSpread = "is spread already";

/// Finds how each parameter is spread.
class Spreading {
 public:
  explicit Spreading(const std::vector<ShardRule>& rules) : rules_(rules), is_used_(rules.size()) {}

  void run(const std::vector<OwnParameter>& parameters) {
    check_rules();
    for (std::size_t i = 0; i < rules_.size(); ++i) apply(i, parameters);
    for (const OwnParameter& parameter : parameters) check(parameter);
    for (std::size_t i = 0; i < rules_.size(); ++i) {
      if (!is_used_[i]) faults_.add(ErrorKind::kKey, rules_[i].pattern, "matches no parameter of the module");
    }
    faults_.throw_if_any(kHeading, DCP_WHERE);
  }

  /// Null for a parameter that no rule matches.
  const DTensorLayout* layout_of(const at::Tensor& tensor) const {
    const auto it = layouts_.find(tensor.unsafeGetTensorImpl());
    return it == layouts_.end() ? nullptr : &it->second;
  }

 private:
  static constexpr const char* kHeading = "cannot spread the parameters of the module";

  void check_rules() {
    for (const ShardRule& rule : rules_) {
      if (rule.mesh == nullptr) faults_.add(ErrorKind::kInvalidArgument, rule.pattern, "the rule has no mesh");
    }
    faults_.throw_if_any(kHeading, DCP_WHERE);
  }

  /// Of a tied parameter's names any may match, and the first rule counts.
  void apply(std::size_t rule, const std::vector<OwnParameter>& parameters) {
    for (const OwnParameter& parameter : parameters) {
      if (!matches(rules_[rule], parameter.fqn)) continue;
      is_used_[rule] = true;
      rule_of_.try_emplace(parameter.tensor.unsafeGetTensorImpl(), &rules_[rule]);
    }
  }

  void check(const OwnParameter& parameter) {
    const void* key = parameter.tensor.unsafeGetTensorImpl();
    const auto it = rule_of_.find(key);
    if (it == rule_of_.end() || layouts_.contains(key)) return;
    if (hooks_.layout_of(parameter.tensor)) faults_.add(ErrorKind::kKey, parameter.fqn, kIsSpread);
    const ShardRule& rule = *it->second;
    DTensorLayout& layout = layouts_[key] = {rule.mesh, rule.placements, Sizes()};
    try {
      layout.global_sizes =
          rule.global_sizes ? *rule.global_sizes : whole_of_equal_parts(rule, parameter.tensor.sizes());
      if (DTensor(parameter.tensor, layout.mesh, layout.placements, layout.global_sizes).is_partial()) {
        faults_.add(ErrorKind::kUnsupported, parameter.fqn, "a Partial parameter has no state of its own");
      }
    } catch (const Error& error) {
      faults_.add(error.kind(), parameter.fqn,
                  c10::str(error.what_without_backtrace(), "; the part has shape ", parameter.tensor.sizes(),
                           ", the whole is ", to_string(layout)));
    }
  }

  const std::vector<ShardRule>& rules_;
  const HookTable hooks_ = current_hooks();
  std::vector<bool> is_used_;
  std::unordered_map<const void*, const ShardRule*> rule_of_;
  std::unordered_map<const void*, DTensorLayout> layouts_;
  FaultList faults_;
};

/// Layouts of a module's own parameters by their names in it.
using OwnLayouts = std::map<std::string, DTensorLayout>;

void spread(const OwnLayouts& layouts, const std::string& prefix, Dict& state) {
  for (const auto& [name, layout] : layouts) {
    Value* value = state.find(prefix + name);
    if (value == nullptr || !value->is_tensor()) continue;
    try {
      *value = DTensor(value->as_tensor(), layout.mesh, layout.placements, layout.global_sizes);
    } catch (Error& error) {
      error.add_context("the parameter '" + prefix + name + "' is no longer as shard_parameters found it");
      throw;
    }
  }
}

void take_parts(const OwnLayouts& layouts, const LoadPreHookArgs& args) {
  std::map<std::string, at::Tensor> own;
  for (const auto& item : args.module.named_parameters(/*recurse=*/false)) own.emplace(item.key(), item.value());
  for (const auto& [name, layout] : layouts) {
    const std::string fqn = args.prefix + name;
    Value* value = args.state.find(fqn);
    if (value == nullptr) continue;
    std::optional<AdapterFault> fault;
    if (value->kind() == ValueKind::kDTensor) {
      const DTensor given = value->as_dtensor();
      fault = layout_fault(given, layout);
      // A rank outside of the mesh has no part: nothing is given for its tensor, whatever shape that has.
      *value = given.is_in_mesh() ? given.local() : own.at(name);
    } else if (value->is_tensor()) {
      fault = plain_tensor_fault(layout);
    }
    if (!fault) continue;
    args.errors.add(fault->kind, fqn, fault->text);
  }
}

}  // namespace

HookHandle shard_parameters(Module& module, const std::vector<ShardRule>& rules) {
  std::vector<OwnParameter> parameters;
  append_parameters(module, "", parameters);
  Spreading spreading(rules);
  spreading.run(parameters);

  HookHandle handle;
  std::vector<Module*> owners;
  std::unordered_map<Module*, OwnLayouts> layouts_of_owner;
  std::unordered_set<const void*> attached;
  for (const OwnParameter& parameter : parameters) {
    const DTensorLayout* layout = spreading.layout_of(parameter.tensor);
    if (layout == nullptr) continue;
    OwnLayouts& of_owner = layouts_of_owner[parameter.owner];
    if (of_owner.empty()) owners.push_back(parameter.owner);
    of_owner.emplace(parameter.name, *layout);
    if (!attached.insert(parameter.tensor.unsafeGetTensorImpl()).second) continue;
    // Another thread may have done it since the check.
    const std::string doubled = "the parameter '" + parameter.fqn + "' " + kIsSpread;
    handle.add(attach(parameter.tensor, TensorSpread{*layout}, doubled.c_str()));
  }
  for (Module* owner : owners) {
    const OwnLayouts& layouts = layouts_of_owner.at(owner);
    handle.add(register_state_dict_post_hook(
        *owner, [layouts](Module&, Dict& state, const std::string& prefix) { spread(layouts, prefix, state); }));
    handle.add(attach(*owner, ModuleLoadPre{[layouts](const LoadPreHookArgs& args) { take_parts(layouts, args); },
                                            /*is_spread=*/true}));
  }
  return handle;
}

}  // namespace dcp

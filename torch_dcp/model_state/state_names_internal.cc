#include "torch_dcp/model_state/state_names_internal.h"

#include <torch/nn/module.h>

#include <algorithm>
#include <utility>

#include "torch_dcp/base/fault_list.h"
#include "torch_dcp/model_state/hook_registry_internal.h"
#include "torch_dcp/model_state/module_parts_internal.h"
#include "torch_dcp/model_state/naming_internal.h"

namespace dcp {

using torch::nn::Module;

NamingOptions naming_of(const StateDictOptions& options) {
  return {.wrappers = options.wrappers, .fqn_modifiers = options.fqn_modifiers};
}

StateNames::StateNames(const Module& root, const StateDictOptions& options, const Submodules& submodules)
    : keeps_prefixes_(options.keep_submodule_prefixes), ignores_frozen_(options.ignore_frozen_params) {
  const HookTable hooks = current_hooks();
  const std::set<std::string> none;
  ModuleParts parts(hooks, none);
  visit_places(root, Naming(naming_of(options)), [&](const ModulePlace& place) {
    has_hidden_ = has_hidden_ || place.own_prefix != place.clean_prefix;
    clean_prefixes_.emplace(place.own_prefix, place.clean_prefix);
    innermost_.insert_or_assign(place.clean_prefix, place.own_prefix);
    first_prefixes_.try_emplace(&place.module, place.clean_prefix);
    for (ModuleTensor& entry : parts.tensors(place.module, place.own_prefix)) {
      const bool is_frozen = entry.kind == ModuleTensorKind::kParameter && !entry.tensor.requires_grad();
      if (ignores_frozen_ && is_frozen) frozen_.insert(entry.fqn);
      std::optional<DTensorLayout> layout =
          entry.kind == ModuleTensorKind::kParameter ? hooks.layout_of(entry.tensor) : std::nullopt;
      tensors_.insert_or_assign(entry.fqn, LiveTensor{entry.tensor, std::move(layout)});
    }
    if (parts.has_extra_state(place.module)) extras_.push_back(extra_state_key(place.own_prefix));
  });
  parts.check_names();
  find_prefixes(submodules);
  number_parameters(root);
  is_plain_ = !has_hidden_ && prefixes_.empty() && frozen_.empty();
  index_shown_names();
}

void StateNames::find_prefixes(const Submodules& submodules) {
  std::vector<std::string> all;
  for (const Module* submodule : submodules) {
    const auto it = first_prefixes_.find(submodule);
    DCP_CHECK(it != first_prefixes_.end(), kKey, "submodules: a module is given that is not in the module");
    if (it->second.empty()) return;  // The whole, under its own names.
    all.push_back(it->second);
  }
  std::sort(all.begin(), all.end());
  for (std::string& prefix : all) {
    if (prefixes_.empty() || !prefix.starts_with(prefixes_.back())) prefixes_.push_back(std::move(prefix));
  }
}

void StateNames::number_parameters(const Module& root) {
  std::unordered_map<const void*, std::size_t> numbers;
  std::unordered_map<const void*, std::size_t> uses;
  for (auto& [fqn, live] : tensors_) ++uses[live.tensor.unsafeGetTensorImpl()];
  for (auto& [fqn, live] : tensors_) live.is_tied = uses.at(live.tensor.unsafeGetTensorImpl()) > 1;
  for (const ModuleTensor& entry : module_tensors(root)) {
    if (entry.kind != ModuleTensorKind::kParameter) continue;
    const auto [it, is_new] = numbers.try_emplace(entry.tensor.unsafeGetTensorImpl(), parameters_.size());
    const std::string name = without_prefix(clean(entry.fqn));
    if (is_new) {
      parameters_.push_back({{name, entry.tensor, tensors_.find(entry.fqn)->layout}, {name}, selects(entry.fqn)});
      continue;
    }
    NamedParameter& known = parameters_[it->second];
    if (!known.is_selected && selects(entry.fqn)) {
      // Its other names are outside of what was asked for.
      known.parameter.fqn = name;
      known.names = {name};
      known.is_selected = true;
    } else if (selects(entry.fqn) || !known.is_selected) {
      known.names.push_back(name);
    }
  }
}

void StateNames::index_shown_names() {
  if (is_plain_) return;
  FaultList faults;
  const auto add = [&](const std::string& own_name) {
    if (!selects(own_name)) return;
    const auto [it, is_new] = own_names_.try_emplace(shown(own_name), own_name);
    if (!is_new) {
      faults.add(ErrorKind::kKey, it->first, "would be the name of both '" + it->second + "' and '" + own_name + "'");
    }
  };
  for (const auto& [fqn, live] : tensors_) add(fqn);
  for (const std::string& key : extras_) add(key);
  faults.throw_if_any("names in the state of the module", DCP_WHERE);
}

std::string StateNames::clean(const std::string& own) const {
  if (!has_hidden_) return own;
  // The longest prefix that is a module's: what is behind it may be a hook's invention.
  for (std::size_t dot = own.rfind('.'); dot != std::string::npos;
       dot = dot == 0 ? std::string::npos : own.rfind('.', dot - 1)) {
    const auto it = clean_prefixes_.find(own.substr(0, dot + 1));
    if (it != clean_prefixes_.end()) return it->second + own.substr(dot + 1);
  }
  return own;
}

const std::string* StateNames::prefix_of(const std::string& clean) const {
  const auto it = std::find_if(prefixes_.begin(), prefixes_.end(),
                               [&](const std::string& prefix) { return clean.starts_with(prefix); });
  return it == prefixes_.end() ? nullptr : &*it;
}

std::string StateNames::without_prefix(const std::string& clean) const {
  const std::string* prefix = keeps_prefixes_ ? nullptr : prefix_of(clean);
  return prefix == nullptr ? clean : clean.substr(prefix->size());
}

std::string StateNames::shown(const std::string& own) const { return is_plain_ ? own : without_prefix(clean(own)); }

std::optional<std::string> StateNames::own(const std::string& shown) const {
  if (is_plain_) return shown;
  if (const auto it = own_names_.find(shown); it != own_names_.end()) return it->second;
  // Nothing that the module has now. A hook may know it: it belongs to the innermost module of its prefix.
  const std::string clean = keeps_prefixes_ || prefixes_.empty() ? shown : prefixes_.front() + shown;
  if (!is_below_prefix(clean)) return std::nullopt;
  if (!has_hidden_) return clean;
  for (std::size_t dot = clean.rfind('.'); dot != std::string::npos;
       dot = dot == 0 ? std::string::npos : clean.rfind('.', dot - 1)) {
    const auto it = innermost_.find(clean.substr(0, dot + 1));
    if (it != innermost_.end()) return it->second + clean.substr(dot + 1);
  }
  return innermost_.at("") + clean;
}

}  // namespace dcp

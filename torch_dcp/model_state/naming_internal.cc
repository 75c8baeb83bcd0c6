#include "torch_dcp/model_state/naming_internal.h"

// Before ordered_dict.h, which uses it without including it.
#include <c10/util/Exception.h>
#include <c10/util/Type.h>
#include <torch/nn/module.h>

#include <typeinfo>
#include <utility>

#include "torch_dcp/base/error.h"

namespace dcp {
namespace {

using torch::nn::Module;

/// The name of a module's class without namespaces, parameters of templates, and LibTorch's "Impl".
std::string class_name(const Module& module) {
  std::string name = c10::demangle(typeid(module).name());
  if (const std::size_t end = name.find('<'); end != std::string::npos) name.resize(end);
  if (const std::size_t colons = name.rfind("::"); colons != std::string::npos) name.erase(0, colons + 2);
  if (name.ends_with("Impl")) name.resize(name.size() - 4);
  return name;
}

bool is_data_parallel(const Module& module) { return class_name(module).ends_with("DataParallel"); }

bool is_compiled(const Module& module) {
  const std::string name = class_name(module);
  return name.ends_with("OptimizedModule") || name.ends_with("CompiledModule");
}

bool always(const Module&) { return true; }

void visit(const ModulePlace& place, const Naming& naming, const std::function<void(const ModulePlace&)>& call) {
  call(place);
  const Children children = place.module.named_children();
  if (children.is_empty()) return;
  const std::set<std::string> hidden = naming.hidden_children(place.module, children);
  for (const auto& child : children) {
    if (!child.value()) continue;
    const std::string own_prefix = place.own_prefix + child.key() + ".";
    const std::string clean_prefix =
        hidden.contains(child.key()) ? place.clean_prefix : place.clean_prefix + child.key() + ".";
    visit({*child.value(), own_prefix, clean_prefix}, naming, call);
  }
}

}  // namespace

std::vector<WrapperTraits> default_wrappers() {
  return {{"module", is_data_parallel, {}},
          {"_orig_mod", is_compiled, {}},
          {"_checkpoint_wrapped_module", always, {}},
          {"_fsdp_wrapped_module", always, {}}};
}

Naming::Naming(const NamingOptions& options)
    : wrappers_(options.wrappers), modifiers_(options.fqn_modifiers), kept_(options.kept) {
  for (WrapperTraits& traits : default_wrappers()) wrappers_.push_back(std::move(traits));
}

std::optional<std::string> Naming::inner_of(const Module& module, const Children& children) const {
  if (const auto* wrapper = dynamic_cast<const HasInnerModule*>(&module)) {
    std::string inner = wrapper->inner_module_name();
    DCP_CHECK(children.contains(inner) && children[inner], kKey, "a module of class ", class_name(module),
              " says that it wraps its child '", inner, "', which it does not have");
    return inner;
  }
  for (const WrapperTraits& traits : wrappers_) {
    const auto* child = children.find(traits.inner);
    if (child != nullptr && *child && traits.is_wrapper(module)) return traits.inner;
  }
  return std::nullopt;
}

FqnModifiers Naming::modifiers_of(const Module& module) const {
  return modifiers_ ? modifiers_(module) : FqnModifiers();
}

FqnSet Naming::flat_names_of(const Module& module) const {
  for (const WrapperTraits& traits : wrappers_) {
    if (!traits.flat_names) continue;
    if (FqnSet names = traits.flat_names(module); !names.empty()) return names;
  }
  return {};
}

std::set<std::string> Naming::hidden_children(const Module& module, const Children& children) const {
  std::set<std::string> hidden;
  if (std::optional<std::string> inner = inner_of(module, children); inner && !keeps(*inner)) {
    hidden.insert(*std::move(inner));
  }
  for (const auto& [name, attribute] : modifiers_of(module)) {
    if (children.contains(attribute)) hidden.insert(attribute);
  }
  return hidden;
}

void visit_places(const Module& root, const Naming& naming, const std::function<void(const ModulePlace&)>& call) {
  const std::string none;
  visit({root, none, none}, naming, call);
}

}  // namespace dcp

#include "torch_dcp/model_state/wrappers.h"

#include <torch/nn/module.h>

#include <unordered_set>
#include <utility>

#include "torch_dcp/base/error.h"
#include "torch_dcp/model_state/hook_registry_internal.h"
#include "torch_dcp/model_state/module_parts_internal.h"
#include "torch_dcp/model_state/naming_internal.h"

namespace dcp {
namespace {

using torch::nn::Module;

std::vector<std::string> segments_of(const std::string& name) {
  std::vector<std::string> segments;
  std::size_t begin = 0;
  for (std::size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.', begin)) {
    segments.push_back(name.substr(begin, dot - begin));
    begin = dot + 1;
  }
  segments.push_back(name.substr(begin));
  return segments;
}

/// Follows a name from module to module.
class NameWalk {
 public:
  NameWalk(const Module& root, const std::string& name, const NamingOptions& options)
      : naming_(options), name_(name), segments_(segments_of(name)), module_(&root) {}

  FqnSet run() {
    while (next_ < segments_.size()) {
      if (segments_[next_] == kFlatParameter && next_ + 1 == segments_.size()) return flat_names();
      step();
    }
    return {clean_};
  }

 private:
  void step() {
    const std::string& segment = segments_[next_];
    DCP_CHECK(module_ != nullptr, kKey, "'", name_, "' goes on behind a tensor, at '", segment, "'");
    const Children children = module_->named_children();
    const std::optional<std::string> inner = naming_.inner_of(*module_, children);
    if (inner && segment == *inner) {
      if (naming_.keeps(segment)) append(segment);
      wrapper_ = module_;
      return enter(children, segment);
    }
    if (segment == "_extra_state") {
      DCP_CHECK(next_ + 1 == segments_.size(), kState, "'", name_, "' has more behind _extra_state");
      return finish();
    }
    const FqnModifiers modifiers = naming_.modifiers_of(*module_);
    if (const auto it = modifiers.find(segment); it != modifiers.end() && children.contains(it->second)) {
      module_ = children[it->second].get();
      return find(module_->named_children());
    }
    for (const auto& [replaced, attribute] : modifiers) {
      if (attribute == segment && children.contains(attribute)) return enter(children, segment);
    }
    if (inner && !children.contains(segment) && !has_tensor(*module_, segment)) {
      wrapper_ = module_;
      module_ = children[*inner].get();  // The name lacks the wrapper's segment.
      return;
    }
    find(children);
  }

  void find(const Children& children) {
    const std::string& segment = segments_[next_];
    if (children.contains(segment)) {
      append(segment);
      return enter(children, segment);
    }
    DCP_CHECK(has_tensor(*module_, segment), kKey, "'", name_, "' names nothing in the module: there is no '", segment,
              "'");
    finish();
  }

  static bool has_tensor(const Module& module, const std::string& name) {
    return module.named_parameters(/*recurse=*/false).contains(name) ||
           module.named_buffers(/*recurse=*/false).contains(name);
  }

  void enter(const Children& children, const std::string& segment) {
    module_ = children[segment].get();
    ++next_;
  }

  void finish() {
    append(segments_[next_]);
    module_ = nullptr;
    ++next_;
  }

  void append(const std::string& segment) { clean_ += (clean_.empty() ? "" : ".") + segment; }

  FqnSet flat_names() {
    FqnSet names = module_ == nullptr ? FqnSet() : naming_.flat_names_of(*module_);
    if (names.empty() && wrapper_ != nullptr) names = naming_.flat_names_of(*wrapper_);
    for (std::string& name : names) name = clean_.empty() ? name : clean_ + "." + name;
    if (names.empty()) names.push_back(clean_.empty() ? kFlatParameter : clean_ + "." + kFlatParameter);
    return names;
  }

  const Naming naming_;
  const std::string& name_;
  const std::vector<std::string> segments_;
  const Module* module_;             ///< null behind a tensor
  const Module* wrapper_ = nullptr;  ///< the last one on the way
  std::size_t next_ = 0;
  std::string clean_;
};

/// Visits each module once, children first.
class StateWalk {
 public:
  StateWalk(const NamingOptions& options, const std::function<void(const std::string&, const StateRef&)>& visit)
      : naming_(options), hooks_(current_hooks()), parts_(hooks_, left_out_), visit_(visit) {}

  void run(const Module& module, const std::string& prefix) {
    if (!seen_.insert(&module).second) return;
    const Children children = module.named_children();
    const std::set<std::string> hidden = naming_.hidden_children(module, children);
    for (const auto& child : children) {
      if (child.value()) run(*child.value(), hidden.contains(child.key()) ? prefix : prefix + child.key() + ".");
    }
    const std::vector<ModuleTensor> tensors = parts_.tensors(module, prefix);
    for (const ModuleTensorKind kind : {ModuleTensorKind::kBuffer, ModuleTensorKind::kParameter}) {
      for (const ModuleTensor& entry : tensors) {
        if (entry.kind == kind) visit_(entry.fqn, entry);
      }
    }
    if (parts_.has_extra_state(module)) visit_(extra_state_key(prefix), ExtraStateTag());
  }

 private:
  const Naming naming_;
  const HookTable hooks_;
  const std::set<std::string> left_out_;
  ModuleParts parts_;
  const std::function<void(const std::string&, const StateRef&)>& visit_;
  std::unordered_set<const Module*> seen_;
};

}  // namespace

HasInnerModule::~HasInnerModule() = default;

const Module& unwrap(const Module& module, const NamingOptions& options) {
  const Naming naming(options);
  const Module* inside = &module;
  std::unordered_set<const Module*> seen;
  while (true) {
    DCP_CHECK(seen.insert(inside).second, kInvalidArgument, "the wrappers around a module wrap each other in a circle");
    const Children children = inside->named_children();
    const std::optional<std::string> inner = naming.inner_of(*inside, children);
    if (!inner) return *inside;
    inside = children[*inner].get();
  }
}

Module& unwrap(Module& module, const NamingOptions& options) {
  return const_cast<Module&>(unwrap(std::as_const(module), options));
}

FqnSet fqns_of(const Module& root, const std::string& name, const NamingOptions& options) {
  if (name.empty()) return {""};
  return NameWalk(root, name, options).run();
}

void for_each_state(const Module& root, const std::function<void(const std::string&, const StateRef&)>& visit,
                    const NamingOptions& options) {
  StateWalk(options, visit).run(root, "");
}

ParamIndex::ParamIndex(const Module& root, const NamingOptions& options) {
  visit_places(root, Naming(options), [&](const ModulePlace& place) {
    for (const auto& item : place.module.named_parameters(/*recurse=*/false)) {
      if (!item.value().defined()) continue;
      const std::string name = place.clean_prefix + item.key();
      names_[item.value().unsafeGetTensorImpl()].push_back(name);
      parameters_.try_emplace(name, item.value());
    }
  });
}

const FqnSet& ParamIndex::names_of(const at::Tensor& parameter) const {
  static const FqnSet kNone;
  const auto it = names_.find(parameter.unsafeGetTensorImpl());
  return it == names_.end() ? kNone : it->second;
}

at::Tensor ParamIndex::find(const std::string& name) const {
  const auto it = parameters_.find(name);
  return it == parameters_.end() ? at::Tensor() : it->second;
}

}  // namespace dcp

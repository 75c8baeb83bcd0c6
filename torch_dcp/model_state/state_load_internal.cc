#include "torch_dcp/model_state/state_load_internal.h"

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <utility>

#include "torch_dcp/comm/rank_step.h"
#include "torch_dcp/model_state/call_group_internal.h"
#include "torch_dcp/model_state/layout_internal.h"
#include "torch_dcp/model_state/load_part_internal.h"
#include "torch_dcp/model_state/optimizer_positional_state_internal.h"
#include "torch_dcp/state_dict/tensor_fit.h"
#include "torch_dcp/tensor/dtensor.h"

namespace dcp {
namespace {

constexpr const char* kModel = "model";
constexpr const char* kOptimizers = "optimizers";

bool has_prefix_for(const Dict& flat, const std::string& prefix) {
  return std::any_of(flat.begin(), flat.end(), [&](const auto& entry) {
    const std::string* key = std::get_if<std::string>(&entry.first);
    return key != nullptr && key->starts_with(prefix);
  });
}

/// Whether a nested or flattened state has the state, or the options, of a parameter of this name.
bool has_state_of(const Dict& given, bool is_flat, const std::string& name) {
  if (is_flat) return has_prefix_for(given, "state." + name + ".");
  const Value* states = given.find("state");
  return states != nullptr && states->is_dict() && states->as_dict().contains(name);
}

bool has_group_of(const Dict& given, bool is_flat, const std::string& name) {
  if (is_flat) return has_prefix_for(given, "param_groups." + name + ".");
  const Value* groups = given.find("param_groups");
  if (groups == nullptr || !groups->is_list()) return false;
  for (const Value& group : groups->as_list()) {
    const Value* params = group.is_dict() ? group.as_dict().find("params") : nullptr;
    if (params == nullptr || !params->is_list()) continue;
    for (const Value& param : params->as_list()) {
      if (param.kind() == ValueKind::kString && param.as_string() == name) return true;
    }
  }
  return false;
}

/// The name under which a parameter that has several stands in a state.
const std::string& name_in(const Dict& given, bool is_flat, const FqnSet& names) {
  for (const std::string& name : names) {
    if (has_state_of(given, is_flat, name)) return name;
  }
  for (const std::string& name : names) {
    if (has_group_of(given, is_flat, name)) return name;
  }
  return names.front();
}

void append_new(const std::vector<std::string>& from, std::vector<std::string>& to) {
  std::unordered_set<std::string> known(to.begin(), to.end());
  for (const std::string& name : from) {
    if (known.insert(name).second) to.push_back(name);
  }
}

}  // namespace

LoadReport StateLoad::run(const GivenStates& given) {
  group_ = communicator_of(options_);
  run_load_step(group_.get(), "begin to load", [&] { begin(given); });
  if (options_.full_state_dict) {
    receive(given);
  } else {
    model_ = given.model != nullptr && !given.model->empty() ? given.model : nullptr;
    optimizer_ = given.optimizers != nullptr && !given.optimizers->empty() ? given.optimizers : nullptr;
  }
  bool keeps_elements = false;
  if (group_ == nullptr || group_->size() == 1) {
    keeps_elements = check();
  } else {
    keeps_elements = reduce_step(
        *group_, "check the state", [&] { return check(); },
        [](const std::vector<bool>& by_rank) {
          return std::find(by_rank.begin(), by_rank.end(), true) != by_rank.end();
        });
  }
  std::vector<LoadPart*> loads;
  for (const OptimizerPart& part : parts_) loads.push_back(part.load.get());
  if (model_load_) loads.push_back(&*model_load_);
  ApplyOptions apply = {.subject = parts_.empty() ? "the module"
                                   : model_load_  ? "the state"
                                                  : "the optimizer",
                        .communicator = group_.get(),
                        .keeps_elements = keeps_elements};
  if (full_) apply.transfer = [&] { full_->write_in_place(); };
  apply_parts(loads, apply);
  return report();
}

void StateLoad::begin(const GivenStates& given) {
  ConstOptimizerRefs optimizers;
  if (given.optimizers != nullptr) optimizers = OptimizerRefs(optimizers_);
  verify_options(root_, options_, {.is_getter = false, .has_model = given.model != nullptr, .optimizers = optimizers});
  hooks_ = current_hooks();
  names_.emplace(root_, options_, submodules_);
  for (const std::string& name : options_.non_persistent_buffers) {
    model_args_.left_out.insert(names_->own(name).value_or(name));
  }
  for (const NamedParameter& parameter : names_->parameters()) {
    parameter_by_tensor_.emplace(parameter.parameter.tensor.unsafeGetTensorImpl(), &parameter);
    if (!parameter.is_selected) continue;
    for (const std::string& name : parameter.names) parameter_by_name_.emplace(name, &parameter);
  }
  runs_code_ =
      (module_ != nullptr && runs_code_in_load(*module_, hooks_)) ||
      std::any_of(optimizers_.begin(), optimizers_.end(), [&](const torch::optim::Optimizer* optimizer) {
        return !hooks_.of<OptimizerLoadPost>(optimizer).empty() || !hooks_.of<OptimizerLoadPre>(optimizer).empty();
      });
  if (options_.full_state_dict) device_ = device_of_module();
  check_not_empty(given);
}

/// An empty dict is a mistake where there is something to load. With a broadcast only rank 0's counts.
void StateLoad::check_not_empty(const GivenStates& given) const {
  if (!options_.strict || options_.broadcast_from_rank0) return;
  const auto& live = names_->tensors();
  const bool has_entries =
      std::any_of(live.begin(), live.end(), [&](const auto& entry) { return names_->needs(entry.first); });
  if (given.model != nullptr && given.model->empty() && !given.is_model_optional) {
    DCP_CHECK(!has_entries, kState, "the given state of the module is empty");
  }
  if (given.optimizers == nullptr || !given.optimizers->empty()) return;
  for (const torch::optim::Optimizer* optimizer : optimizers_) {
    DCP_CHECK(optimizer->param_groups().empty(), kState, "the given state of the optimizers is empty");
  }
}

c10::Device StateLoad::device_of_module() const {
  std::optional<c10::Device> common;
  for (const auto& [fqn, live] : names_->tensors()) {
    if (live.tensor.dim() == 0 || live.tensor.is_meta()) continue;
    if (!common) common = live.tensor.device();
    DCP_CHECK(*common == live.tensor.device(), kInvalidArgument,
              "a full state is for modules whose tensors are on one device; there are some on ", *common, ", and '",
              names_->shown(fqn), "' is on ", live.tensor.device());
  }
  return common ? *common : options_.device.value_or(at::kCPU);
}

// --- full states -----------------------------------------------------------------------------------------------------

void StateLoad::receive(const GivenStates& given) {
  full_.emplace(options_.broadcast_from_rank0 ? group_.get() : nullptr, options_.bucket_bytes);
  Dict full;
  if (given.model != nullptr) full[kModel] = *given.model;
  if (given.optimizers != nullptr) full[kOptimizers] = *given.optimizers;
  full_->outline(full);
  received_ = full_->receive([&](const Path& path, const at::Tensor& whole) { return choose(path, whole); });
  const auto take = [&](const char* key, bool is_optional) -> const Dict* {
    const Value* value = received_.find(key);
    if (value == nullptr) return nullptr;
    const bool is_left_out = value->as_dict().empty() && (is_optional || !options_.broadcast_from_rank0);
    return is_left_out ? nullptr : &value->as_dict();
  };
  model_ = take(kModel, given.is_model_optional);
  optimizer_ = take(kOptimizers, false);
}

FullTarget StateLoad::choose(const Path& path, const at::Tensor& whole) {
  return path.front().key == kModel ? choose_of_model(path, whole) : choose_of_optimizers(path, whole);
}

FullTarget StateLoad::choose_of_model(const Path& path, const at::Tensor& whole) {
  FullTarget target = {.is_wanted = options_.broadcast_from_rank0 && runs_code_, .device = device_};
  const std::optional<std::string> own = names_->own(to_string(path[1]));
  const LiveTensor* live = own && path.size() == 2 ? names_->tensors().find(*own) : nullptr;
  if (live == nullptr || model_args_.left_out.contains(*own)) return target;  // Hooks or extra state may want it.
  const bool is_spread = live->layout && !is_replicated(live->layout->placements);
  const c10::IntArrayRef sizes = live->layout ? c10::IntArrayRef(live->layout->global_sizes) : live->tensor.sizes();
  LoadReport ignored;
  if (!check_fits(to_string(path[1]), whole, sizes, live->tensor.scalar_type(), options_.dtype_policy, faults_,
                  ignored)) {
    // The fault is known; what is loaded in its place finds none.
    target.is_wanted = false;
    target.instead =
        live->layout
            ? Value(DTensor(live->tensor, live->layout->mesh, live->layout->placements, live->layout->global_sizes))
            : Value(live->tensor);
    return target;
  }
  target.is_wanted = options_.broadcast_from_rank0 || is_spread;
  target.layout = live->layout ? &*live->layout : nullptr;
  const bool has_elements = live->tensor.layout() == at::kStrided && !live->tensor.is_meta();
  if (!runs_code_ && !live->is_tied && has_elements && live->tensor.scalar_type() == whole.scalar_type()) {
    target.live = live->tensor;
  }
  return target;
}

/// States of optimizers are checked by their values, and so are never written in place.
FullTarget StateLoad::choose_of_optimizers(const Path& path, const at::Tensor& whole) {
  FullTarget target = {.is_wanted = options_.broadcast_from_rank0};
  const NamedParameter* parameter = parameter_of(path);
  if (whole.dim() > 0) target.device = device_;
  if (parameter == nullptr || whole.dim() == 0 || !parameter->parameter.layout) return target;
  const DTensorLayout& layout = *parameter->parameter.layout;
  if (whole.sizes() != c10::IntArrayRef(layout.global_sizes)) {
    Path inner(path.begin() + 1, path.end());
    faults_.add(
        ErrorKind::kShape, flat_key(inner),
        c10::str("the given tensor has shape ", whole.sizes(), ", the parameter ", to_string(layout.global_sizes)));
    target.is_wanted = false;
    return target;
  }
  target.is_wanted = target.is_wanted || !is_replicated(layout.placements);
  target.layout = &layout;
  return target;
}

/// Whose state the tensor at a path is part of; null for a group's options, and where no such parameter is known.
const NamedParameter* StateLoad::parameter_of(const Path& path) const {
  const auto find = [&](const std::string& name) {
    const auto it = parameter_by_name_.find(name);
    return it == parameter_by_name_.end() ? nullptr : it->second;
  };
  if (!options_.flatten_optimizer_state_dict) {
    return path.size() > 3 && path[1].key == "state" ? find(to_string(path[2])) : nullptr;
  }
  const std::string& key = path[1].key;
  if (!key.starts_with("state.")) return nullptr;
  const std::size_t begin = std::string("state.").size();
  for (std::size_t dot = key.rfind('.'); dot != std::string::npos && dot > begin; dot = key.rfind('.', dot - 1)) {
    if (const NamedParameter* parameter = find(key.substr(begin, dot - begin))) return parameter;
  }
  return nullptr;
}

// --- checks ----------------------------------------------------------------------------------------------------------

/// Whether all must be kept for what may throw later.
bool StateLoad::check() {
  if (optimizer_ != nullptr) check_optimizers();
  if (model_ != nullptr) check_model();
  faults_.throw_if_any(heading(), DCP_WHERE);
  bool runs_code_last = model_load_ && model_load_->runs_code_last();
  for (const OptimizerPart& part : parts_) runs_code_last = runs_code_last || part.load->runs_code_last();
  return runs_code_last;
}

const char* StateLoad::heading() const {
  if (model_ != nullptr && optimizer_ != nullptr) return "cannot set the state of the module and its optimizers";
  return model_ != nullptr ? ModuleLoad::kHeading : OptimizerLoad::kHeading;
}

void StateLoad::check_model() {
  model_args_.options = {.strict = options_.strict, .dtype_policy = options_.dtype_policy};
  if (!names_->is_plain()) {
    model_args_.is_needed = [&](const std::string& own) { return names_->needs(own); };
    model_args_.shown = [&](const std::string& own) { return names_->shown(own); };
  }
  model_args_.device = options_.device;
  name_model_entries();
  if (options_.strict) {
    for (const std::string& name : outside_) {
      faults_.add(ErrorKind::kKey, name, "is unexpected: no such name in the submodules");
    }
  }
  model_load_.emplace(*module_, hooks_, model_args_);
  model_load_->check(names_->is_plain() ? *model_ : own_entries_, faults_);
}

void StateLoad::name_model_entries() {
  if (names_->is_plain()) return;
  for (const auto& [key, value] : *model_) {
    const std::string* name = std::get_if<std::string>(&key);
    const std::optional<std::string> own = name == nullptr ? std::nullopt : names_->own(*name);
    if (own) {
      own_entries_.insert_or_assign(*own, value);
    } else if (name == nullptr) {
      own_entries_.insert_or_assign(key, value);
    } else {
      outside_.push_back(*name);
    }
  }
}

void StateLoad::check_optimizers() {
  find_shared_parameters();
  std::size_t position = 0, empty_position = 0;
  parts_.reserve(optimizers_.size());
  for (torch::optim::Optimizer* optimizer : optimizers_) {
    OptimizerPart& part = parts_.emplace_back();
    part.optimizer = optimizer;
    part.args.options = {.flatten = options_.flatten_optimizer_state_dict,
                         .strict = options_.strict,
                         .dtype_policy = options_.dtype_policy,
                         .adapters = options_.adapters};
    part.args.position = position;
    part.args.empty_position = empty_position;
    position += optimizer->param_groups().size();
    for (const auto& group : optimizer->param_groups()) empty_position += group.params().empty() ? 1 : 0;
    part.changed = run_load_pre_hooks(*optimizer, hooks_, *optimizer_);
    name_parameters(part, part.changed ? *part.changed : *optimizer_);
  }
  for (OptimizerPart& part : parts_) {
    part.load = std::make_unique<OptimizerLoad>(part.parameters, *part.optimizer, part.args, hooks_);
    part.load->check(part.changed ? *part.changed : *optimizer_, faults_);
  }
}

void StateLoad::name_parameters(OptimizerPart& part, const Dict& given) {
  const bool is_flat = options_.flatten_optimizer_state_dict;
  if (!is_flat && is_positional(given)) {
    DCP_CHECK(optimizers_.size() == 1, kInvalidArgument,
              "a state with numbers for parameters is given, which belongs to one optimizer, for ", optimizers_.size());
    NamedByPosition named = name_by_position(*part.optimizer, given, hooks_);
    part.parameters = std::move(named.parameters);
    part.changed = std::move(named.state);
    part.unexpected = std::move(named.unexpected);
    part.args.never_stepped = NeverStepped::kHasNoState;
    return;
  }
  for (const NamedParameter& named : names_->parameters()) {
    OptimizerParameter& parameter = part.parameters.emplace_back(named.parameter);
    const void* identity = parameter.tensor.unsafeGetTensorImpl();
    if (!named.is_selected) {
      // No name in dicts, which might be that of another.
      parameter.fqn += " (outside of the submodules)";
      part.args.left_alone.insert(identity);
      continue;
    }
    if (named.names.size() > 1) parameter.fqn = name_in(given, is_flat, named.names);
    const auto stepped = optimizer_of_.find(identity);
    if (stepped != optimizer_of_.end() && stepped->second != part.optimizer) part.args.foreign.insert(parameter.fqn);
  }
}

void StateLoad::find_shared_parameters() {
  for (const torch::optim::Optimizer* optimizer : optimizers_) {
    for (const auto& group : optimizer->param_groups()) {
      for (const at::Tensor& tensor : group.params()) {
        const auto [it, is_new] = optimizer_of_.try_emplace(tensor.unsafeGetTensorImpl(), optimizer);
        if (is_new || it->second == optimizer) continue;
        const auto named = parameter_by_tensor_.find(tensor.unsafeGetTensorImpl());
        if (named == parameter_by_tensor_.end()) continue;  // Found when it is looked for by its name.
        faults_.add(ErrorKind::kKey, named->second->parameter.fqn, "is a parameter of two optimizers");
      }
    }
  }
}

LoadReport StateLoad::report() const {
  LoadReport report;
  if (model_load_) report = model_load_->report();
  append_new(outside_, report.unexpected);
  for (const OptimizerPart& part : parts_) {
    const LoadReport& of_part = part.load->report();
    append_new(of_part.missing, report.missing);
    append_new(of_part.unexpected, report.unexpected);
    append_new(part.unexpected, report.unexpected);
    report.converted.insert(report.converted.end(), of_part.converted.begin(), of_part.converted.end());
  }
  return report;
}

}  // namespace dcp

#include <ATen/ops/empty_like.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <unordered_map>
#include <utility>

#include "torch_dcp/base/fault_list.h"
#include "torch_dcp/model_state/conversion_internal.h"
#include "torch_dcp/model_state/live_parameters_internal.h"
#include "torch_dcp/model_state/optimizer_adapter.h"
#include "torch_dcp/model_state/optimizer_state_dict.h"
#include "torch_dcp/model_state/optimizers/adapter_values_internal.h"
#include "torch_dcp/model_state/stored_optimizer_state_internal.h"
#include "torch_dcp/model_state/tensor_copies_internal.h"
#include "torch_dcp/state_dict/equal.h"
#include "torch_dcp/tensor/device_mesh.h"

namespace dcp {
namespace {

using torch::optim::OptimizerOptions;
using torch::optim::OptimizerParamState;

constexpr const char* kHeading = "cannot set the state of the optimizer";

/// Checks a stored state against an optimizer, and then applies it.
class OptimizerLoad {
 public:
  OptimizerLoad(const std::vector<OptimizerParameter>& parameters, torch::optim::Optimizer& optimizer,
                const OptimizerStateOptions& options)
      : optimizer_(optimizer),
        options_(options),
        adapter_(find_adapter(optimizer, options.adapters)),
        live_(find_live_groups(parameters, optimizer)) {}

  void check(const Dict& given) {
    stored_ = options_.flatten
                  ? read_flattened_state(given, live_names(), adapter_->option_names(), state_names(), faults_)
                  : read_nested_state(given, faults_);
    report_.unexpected = stored_.unexpected;
    // What follows would only complain of what these leave out.
    faults_.throw_if_any(kHeading, DCP_WHERE);
    check_groups();
    for (std::size_t g = 0; g < live_.size(); ++g) {
      for (const OptimizerParameter* parameter : live_[g]) check_state(*parameter, *groups_[g].options);
    }
    find_unexpected();
    faults_.throw_if_any(kHeading, DCP_WHERE);
  }

  LoadReport apply() {
    // Memory is allocated before anything changes, and what could fail comes before what cannot.
    for (StateChange& change : changes_) {
      if (change.is_written) change.values = place_values(change);
    }
    copies_.apply();
    for (StateChange& change : changes_) apply(change);
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      if (groups_[g].stored == nullptr) continue;
      adapter_->write_options(optimizer_.param_groups()[g].options(), groups_[g].stored->options);
    }
    return std::move(report_);
  }

 private:
  /// What a live group will have.
  struct GroupChange {
    const StoredGroup* stored = nullptr;  ///< null: the options stay
    std::unique_ptr<OptimizerOptions> options;
  };

  /// What a parameter will have.
  struct StateChange {
    const OptimizerParameter* parameter = nullptr;
    bool is_written = false;  ///< else the state is removed
    Dict values;              ///< counters as ints, tensors as given, of the parameter's shape
  };

  std::vector<std::string> live_names() const {
    std::vector<std::string> names;
    for (const auto& group : live_) {
      for (const OptimizerParameter* parameter : group) names.push_back(parameter->fqn);
    }
    return names;
  }

  std::vector<std::string> state_names() const {
    std::vector<std::string> names;
    if (optimizer_.param_groups().empty()) return names;
    for (const StateField& field : adapter_->state_fields(optimizer_.param_groups().front().options())) {
      names.push_back(field.name);
    }
    return names;
  }

  OptimizerParamState* live_state(const OptimizerParameter& parameter) const {
    const auto it = optimizer_.state().find(parameter.tensor.unsafeGetTensorImpl());
    return it == optimizer_.state().end() ? nullptr : it->second.get();
  }

  void add_missing(const std::string& key, const std::string& fault) {
    report_.missing.push_back(key);
    if (options_.strict) faults_.add(ErrorKind::kKey, key, fault);
  }

  void check_groups() {
    std::unordered_map<std::string, const StoredGroup*> group_of;
    std::vector<const StoredGroup*> empty_groups;
    for (const StoredGroup& group : stored_.groups) {
      for (const std::string& fqn : group.params) group_of[fqn] = &group;
      if (group.params.empty()) empty_groups.push_back(&group);
    }
    std::size_t empty_count = 0;
    for (std::size_t g = 0; g < live_.size(); ++g) {
      if (!live_[g].empty()) {
        check_group(g, find_stored(live_[g], group_of));
      } else {
        const bool has_counterpart = empty_count < empty_groups.size();
        check_group(g,
                    has_counterpart ? std::vector<Listing>{{empty_groups[empty_count], ""}} : std::vector<Listing>());
        ++empty_count;
      }
    }
  }

  /// A stored group, and the first parameter of a live group that it lists.
  struct Listing {
    const StoredGroup* stored = nullptr;
    std::string fqn;
  };

  /// Each stored group once.
  std::vector<Listing> find_stored(const std::vector<const OptimizerParameter*>& group,
                                   const std::unordered_map<std::string, const StoredGroup*>& group_of) {
    std::vector<Listing> listings;
    std::set<const StoredGroup*> seen;
    for (const OptimizerParameter* parameter : group) {
      const auto it = group_of.find(parameter->fqn);
      if (it == group_of.end()) {
        add_unlisted(*parameter);
      } else if (seen.insert(it->second).second) {
        listings.push_back({it->second, parameter->fqn});
      }
    }
    return listings;
  }

  /// The group of a frozen parameter says nothing that the optimizer would use.
  void add_unlisted(const OptimizerParameter& parameter) {
    const std::string key = "param_groups." + parameter.fqn;
    if (parameter.tensor.requires_grad()) {
      add_missing(key, "is missing: no stored group lists this parameter");
    } else {
      report_.missing.push_back(key);
    }
  }

  void check_group(std::size_t g, const std::vector<Listing>& listings) {
    const OptimizerOptions& current = optimizer_.param_groups()[g].options();
    GroupChange& change = groups_.emplace_back();
    change.options = current.clone();
    Dict chosen;
    for (const Listing& listing : listings) {
      std::unique_ptr<OptimizerOptions> options = current.clone();
      add_result(*listing.stored, adapter_->write_options(*options, listing.stored->options));
      Dict read = adapter_->read_options(*options);
      if (change.stored == nullptr) {
        change = {listing.stored, std::move(options)};
        chosen = std::move(read);
      } else if (const std::string difference = first_difference(chosen, read); !difference.empty()) {
        faults_.add(ErrorKind::kInvalidArgument, c10::str("param_groups.", g),
                    c10::str("this group of the optimizer would need two sets of options: ", listings.front().fqn,
                             " has those of ", change.stored->label, ", and ", listing.fqn, " those of ",
                             listing.stored->label, ", which differ: ", difference));
      }
    }
  }

  void add_result(const StoredGroup& stored, const OptionsResult& result) {
    if (!checked_.insert(&stored).second) return;  // several live groups may share a stored one
    for (const auto& [option, fault] : result.faults) {
      faults_.add(fault.kind, stored.label + "." + option, fault.text);
    }
    for (const std::string& name : result.missing) {
      add_missing(stored.label + "." + name, "is missing");
    }
    for (const std::string& name : result.unexpected) report_.unexpected.push_back(stored.label + "." + name);
  }

  void check_state(const OptimizerParameter& parameter, const OptimizerOptions& options) {
    const std::vector<StateField> fields = adapter_->state_fields(options);
    const Dict* given = stored_.state.find(parameter.fqn);
    StateChange change{&parameter, false, {}};
    if (given == nullptr) {
      const bool is_needed = std::any_of(fields.begin(), fields.end(), [](const StateField& f) { return f.is_needed; });
      const std::string key = "state." + parameter.fqn;
      if (is_needed && parameter.tensor.requires_grad()) {
        add_missing(key, "is missing: no stored state of a trainable parameter");
      }
    } else {
      change.is_written = read_fields(parameter, fields, *given, change.values);
    }
    changes_.push_back(std::move(change));
  }

  /// Returns whether `values` is to be the parameter's state.
  bool read_fields(const OptimizerParameter& parameter, const std::vector<StateField>& fields, const Dict& given,
                   Dict& values) {
    const std::string prefix = "state." + parameter.fqn + ".";
    const OptimizerParamState* state = live_state(parameter);
    const Dict current = state == nullptr ? Dict() : adapter_->read_state(*state);
    bool is_complete = true;
    for (const StateField& field : fields) {
      if (const Value* value = given.find(field.name)) {
        const bool is_sound =
            field.kind == StateFieldKind::kCounter
                ? read_counter(prefix + field.name, *value, values[field.name])
                : read_tensor(prefix + field.name, *value, parameter, current.find(field.name), values[field.name]);
        is_complete = is_complete && is_sound;
      } else if (field.is_needed) {
        add_missing(prefix + field.name, "is missing");
        is_complete = false;
      }
    }
    find_unknown_fields(prefix, fields, given);
    return is_complete && !adapter_->means_no_state(values);
  }

  void find_unknown_fields(const std::string& prefix, const std::vector<StateField>& fields, const Dict& given) {
    for (const auto& [key, value] : given) {
      const std::string name = to_string(key);
      const bool is_known =
          std::any_of(fields.begin(), fields.end(), [&](const StateField& f) { return f.name == name; });
      if (!is_known) report_.unexpected.push_back(prefix + name);
    }
  }

  bool read_counter(const std::string& key, const Value& value, Value& into) {
    std::int64_t counter = 0;
    if (const auto fault = take_counter(value, counter)) {
      faults_.add(fault->kind, key, fault->text);
      return false;
    }
    into = counter;
    return true;
  }

  bool read_tensor(const std::string& key, const Value& value, const OptimizerParameter& parameter,
                   const Value* current, Value& into) {
    const bool is_dtensor = value.kind() == ValueKind::kDTensor;
    if (is_dtensor && !check_layout(key, value.as_dtensor(), parameter)) return false;
    if (!is_dtensor && (!value.is_tensor() || !value.as_tensor().defined())) {
      faults_.add(ErrorKind::kType, key,
                  c10::str("a ", value_kind_name(value.kind()), " is given where a tensor is needed"));
      return false;
    }
    const at::Tensor& local = is_dtensor ? value.as_dtensor().local() : value.as_tensor();
    const at::Tensor& like = current == nullptr ? parameter.tensor : current->as_tensor();
    into = local;
    return check_fits(key, local, parameter.tensor.sizes(), like.scalar_type(), options_.dtype_policy, faults_,
                      report_);
  }

  /// Parts of equal shape may be different parts.
  bool check_layout(const std::string& key, const DTensor& given, const OptimizerParameter& parameter) {
    if (!parameter.layout) {
      faults_.add(ErrorKind::kType, key, "a DTensor is given, but the optimizer's parameter is a plain tensor");
      return false;
    }
    const DTensorLayout& layout = *parameter.layout;
    if (given.global_sizes() != layout.global_sizes) {
      faults_.add(ErrorKind::kShape, key,
                  c10::str("the given DTensor has shape ", c10::IntArrayRef(given.global_sizes()), ", the parameter ",
                           c10::IntArrayRef(layout.global_sizes)));
      return false;
    }
    if (given.placements() != layout.placements || !(given.mesh() == *layout.mesh)) {
      faults_.add(ErrorKind::kInvalidArgument, key, "the given DTensor is spread otherwise than the parameter");
      return false;
    }
    return true;
  }

  void find_unexpected() {
    const std::vector<std::string> names = live_names();
    const std::set<std::string> live(names.begin(), names.end());
    for (const auto& [fqn, values] : stored_.state) {
      if (!live.contains(fqn)) report_.unexpected.push_back("state." + fqn);
    }
    for (const StoredGroup& group : stored_.groups) {
      for (const std::string& fqn : group.params) {
        if (!live.contains(fqn)) report_.unexpected.push_back(group.label + ".params: " + fqn);
      }
    }
  }

  /// Replaces the given tensors by those that the optimizer will have, and notes what is to be copied into them.
  Dict place_values(const StateChange& change) {
    const at::Tensor& parameter = change.parameter->tensor;
    const OptimizerParamState* state = live_state(*change.parameter);
    const Dict current = state == nullptr ? Dict() : adapter_->read_state(*state);
    Dict placed;
    for (const auto& [name, value] : change.values) {
      if (!value.is_tensor()) {
        placed.insert_or_assign(name, value);
        continue;
      }
      const Value* live = current.find(name);
      const bool fits = live != nullptr && live->as_tensor().sizes() == parameter.sizes();
      at::Tensor destination = fits ? live->as_tensor() : new_tensor(parameter, live);
      copies_.add(destination, value.as_tensor());
      placed.insert_or_assign(name, std::move(destination));
    }
    return placed;
  }

  static at::Tensor new_tensor(const at::Tensor& parameter, const Value* live) {
    const at::ScalarType dtype = live == nullptr ? parameter.scalar_type() : live->as_tensor().scalar_type();
    return at::empty_like(parameter.detach(), at::dtype(dtype));
  }

  void apply(const StateChange& change) {
    auto& states = optimizer_.state();
    void* const key = change.parameter->tensor.unsafeGetTensorImpl();
    if (!change.is_written) {
      states.erase(key);
      return;
    }
    std::unique_ptr<OptimizerParamState>& state = states[key];
    if (state == nullptr) state = adapter_->make_state();
    adapter_->write_state(*state, change.values);
  }

  torch::optim::Optimizer& optimizer_;
  const OptimizerStateOptions& options_;
  std::shared_ptr<const OptimizerAdapter> adapter_;
  LiveGroups live_;
  StoredOptimizerState stored_;
  FaultList faults_;
  LoadReport report_;
  std::set<const StoredGroup*> checked_;
  std::vector<GroupChange> groups_;
  std::vector<StateChange> changes_;
  TensorCopies copies_;
};

}  // namespace

LoadReport set_optimizer_state_dict(const std::vector<OptimizerParameter>& parameters,
                                    torch::optim::Optimizer& optimizer, const Dict& state,
                                    const OptimizerStateOptions& options) {
  OptimizerLoad load(parameters, optimizer, options);
  load.check(state);
  return load.apply();
}

LoadReport set_optimizer_state_dict(const torch::nn::Module& module, torch::optim::Optimizer& optimizer,
                                    const Dict& state, const OptimizerStateOptions& options) {
  return set_optimizer_state_dict(optimizer_parameters(module), optimizer, state, options);
}

}  // namespace dcp

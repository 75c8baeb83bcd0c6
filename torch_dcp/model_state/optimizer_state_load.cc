#include <c10/util/StringUtil.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <unordered_map>
#include <utility>

#include "torch_dcp/base/fault_list.h"
#include "torch_dcp/model_state/live_parameters_internal.h"
#include "torch_dcp/model_state/optimizer_adapter.h"
#include "torch_dcp/model_state/optimizer_state_dict.h"
#include "torch_dcp/model_state/state_values_internal.h"
#include "torch_dcp/model_state/stored_optimizer_state_internal.h"
#include "torch_dcp/model_state/tensor_copies_internal.h"
#include "torch_dcp/state_dict/equal.h"

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
        live_(find_live_groups(parameters, optimizer)) {
    check_state_can_be_named(live_, *adapter_);
  }

  void check(const Dict& given) {
    stored_ = options_.flatten
                  ? read_flattened_state(given, live_names(), adapter_->option_names(), state_names(), faults_)
                  : read_nested_state(given, faults_);
    report_.unexpected = stored_.unexpected;
    // What follows would only complain of what these leave out.
    faults_.throw_if_any(kHeading, DCP_WHERE);
    check_groups();
    for (std::size_t g = 0; g < live_.size(); ++g) {
      if (adapter_->has_one_state_per_group()) {
        check_state_of_all(g);
      } else {
        for (const OptimizerParameter* parameter : live_[g]) check_state_of_one(*parameter, *groups_[g].options);
      }
    }
    find_unexpected();
    faults_.throw_if_any(kHeading, DCP_WHERE);
  }

  LoadReport apply() {
    // Memory is allocated before anything changes, and what could fail comes before what cannot.
    for (StateChange& change : changes_) {
      for (const StateTarget& target : change.targets) {
        if (Value* value = change.values.find(target.field.name)) *value = place_state_value(target, *value, copies_);
      }
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
    Dict current = {};        ///< what it has now
    std::vector<StateTarget> targets = {};
    Dict values = {};  ///< as taken, by the names of the targets
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

  Dict live_state(const OptimizerParameter& parameter) const {
    const auto it = optimizer_.state().find(parameter.tensor.unsafeGetTensorImpl());
    return it == optimizer_.state().end() || it->second == nullptr ? Dict() : adapter_->read_state(*it->second);
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

  void check_state_of_one(const OptimizerParameter& parameter, const OptimizerOptions& options) {
    check_state(parameter, options, parameter.tensor.requires_grad(), stored_.state.find(parameter.fqn), {});
  }

  /// The state is under the first parameter of the group that was saved, in the order of that group.
  void check_state_of_all(std::size_t g) {
    const std::vector<const OptimizerParameter*>& group = live_[g];
    if (group.empty()) return;
    const StoredGroup* stored = groups_[g].stored;
    if (stored != nullptr && !check_same_parameters(group, *stored)) return;
    const Dict* given = stored == nullptr ? nullptr : stored_.state.find(stored->order.front());
    check_state(*group.front(), *groups_[g].options, has_trainable(group), given, group_vector_of(group));
    if (given == nullptr) return;
    state_holders_.insert(stored->order.front());
    StateChange& change = changes_.back();
    for (const StateTarget& target : change.targets) {
      if (target.field.kind != StateFieldKind::kGroupVector) continue;
      Value& value = change.values.at(target.field.name);
      value = reorder_group_vector(value, stored->order, group);
    }
  }

  bool check_same_parameters(const std::vector<const OptimizerParameter*>& group, const StoredGroup& stored) {
    std::vector<std::string> names;
    for (const OptimizerParameter* parameter : group) names.push_back(parameter->fqn);
    if (std::is_permutation(names.begin(), names.end(), stored.order.begin(), stored.order.end())) return true;
    faults_.add(ErrorKind::kKey, stored.label + ".params",
                c10::str("the state is one of all parameters of a group; the stored one has [",
                         c10::Join(", ", stored.order), "], that of the optimizer [", c10::Join(", ", names), "]"));
    return false;
  }

  void check_state(const OptimizerParameter& parameter, const OptimizerOptions& options, bool is_trainable,
                   const Dict* given, const GroupVector& group) {
    const std::vector<StateField> fields = adapter_->state_fields(options);
    StateChange& change = changes_.emplace_back(StateChange{&parameter});
    change.current = live_state(parameter);
    if (given == nullptr) {
      const bool is_needed = std::any_of(fields.begin(), fields.end(), [](const StateField& f) { return f.is_needed; });
      if (is_needed && is_trainable) {
        add_missing("state." + parameter.fqn, "is missing: no stored state of a trainable parameter");
      }
    } else {
      read_fields(fields, options, *given, group, change);
      find_unknown_fields("state." + parameter.fqn + ".", fields, *given);
    }
    if (change.is_written || !adapter_->needs_state_to_step()) return;
    read_fields(fields, options, adapter_->initial_state(parameter.tensor, options), group, change);
  }

  /// Takes what is given, and decides whether it is to be the parameter's state.
  void read_fields(const std::vector<StateField>& fields, const OptimizerOptions& options, const Dict& given,
                   const GroupVector& group, StateChange& change) {
    const std::string prefix = "state." + change.parameter->fqn + ".";
    bool is_complete = true;
    for (const StateField& field : fields) {
      if (const Value* value = given.find(field.name)) {
        const StateTarget& target = change.targets.emplace_back(
            StateTarget{prefix + field.name, field, change.parameter, change.current.find(field.name), group});
        const bool is_sound =
            take_state_value(target, *value, options_.dtype_policy, faults_, report_, change.values[field.name]);
        is_complete = is_complete && is_sound;
      } else if (field.is_needed) {
        add_missing(prefix + field.name, "is missing");
        is_complete = false;
      }
    }
    if (is_complete) is_complete = check_together(prefix, options, change.values);
    change.is_written = is_complete && !adapter_->means_no_state(change.values);
    if (change.is_written) return;
    change.targets.clear();
    change.values = {};
  }

  bool check_together(const std::string& prefix, const OptimizerOptions& options, const Dict& values) {
    const std::vector<FieldFault> found = adapter_->check_state(values, options);
    for (const auto& [field, fault] : found) {
      if (fault.kind == ErrorKind::kKey) {
        add_missing(prefix + field, fault.text);
      } else {
        faults_.add(fault.kind, prefix + field, fault.text);
      }
    }
    return found.empty();
  }

  void find_unknown_fields(const std::string& prefix, const std::vector<StateField>& fields, const Dict& given) {
    for (const auto& [key, value] : given) {
      const std::string name = to_string(key);
      const bool is_known =
          std::any_of(fields.begin(), fields.end(), [&](const StateField& f) { return f.name == name; });
      if (!is_known) report_.unexpected.push_back(prefix + name);
    }
  }

  void find_unexpected() {
    const std::vector<std::string> names = live_names();
    const std::set<std::string> live(names.begin(), names.end());
    const std::set<std::string>& holders = adapter_->has_one_state_per_group() ? state_holders_ : live;
    for (const auto& [fqn, values] : stored_.state) {
      if (!holders.contains(fqn)) report_.unexpected.push_back("state." + fqn);
    }
    for (const StoredGroup& group : stored_.groups) {
      for (const std::string& fqn : group.params) {
        if (!live.contains(fqn)) report_.unexpected.push_back(group.label + ".params: " + fqn);
      }
    }
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
  std::set<std::string> state_holders_;  ///< names under which there is the state of a whole group
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

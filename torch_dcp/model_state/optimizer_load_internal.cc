#include "torch_dcp/model_state/optimizer_load_internal.h"

#include <c10/util/StringUtil.h>
#include <torch/optim/optimizer.h>

#include <algorithm>

#include "torch_dcp/state_dict/equal.h"
#include "torch_dcp/state_dict/walk.h"

namespace dcp {
namespace {

using torch::optim::OptimizerOptions;
using torch::optim::OptimizerParamState;

/// The options and state objects of an optimizer, as they were before a load.
class OptimizerUndo {
 public:
  explicit OptimizerUndo(torch::optim::Optimizer& optimizer) : optimizer_(optimizer) {
    for (const auto& group : optimizer.param_groups()) options_.push_back(group.options().clone());
  }

  /// The tensors in the state are kept by handle.
  void keep(void* key) {
    const auto it = optimizer_.state().find(key);
    const bool is_there = it != optimizer_.state().end() && it->second != nullptr;
    states_.emplace_back(key, is_there ? it->second->clone() : nullptr);
  }

  void put_back() {
    for (auto& [key, state] : states_) {
      optimizer_.state().erase(key);
      if (state != nullptr) optimizer_.state()[key] = std::move(state);
    }
    auto& groups = optimizer_.param_groups();
    for (std::size_t g = 0; g < options_.size() && g < groups.size(); ++g) {
      groups[g].set_options(std::move(options_[g]));
    }
  }

 private:
  torch::optim::Optimizer& optimizer_;
  std::vector<std::unique_ptr<OptimizerOptions>> options_;
  std::vector<std::pair<void*, std::unique_ptr<OptimizerParamState>>> states_;
};

/// A tensor that a group has twice, as `Module::parameters` gives one with two names, has one state and takes it once.
void drop_repeats(LiveGroups& groups) {
  for (auto& group : groups) {
    std::unordered_set<const OptimizerParameter*> seen;
    std::erase_if(group, [&](const OptimizerParameter* parameter) { return !seen.insert(parameter).second; });
  }
}

}  // namespace

OptimizerLoad::OptimizerLoad(const std::vector<OptimizerParameter>& parameters, torch::optim::Optimizer& optimizer,
                             const OptimizerLoadArgs& args, const HookTable& hooks)
    : optimizer_(optimizer),
      args_(args),
      post_hooks_(hooks.of<OptimizerLoadPost>(&optimizer)),
      adapter_(find_adapter(optimizer, args.options.adapters)),
      live_(find_live_groups(parameters, optimizer)) {
  // The vectors in a state of all of a group have the elements of such a one twice.
  if (!adapter_->has_one_state_per_group()) drop_repeats(live_);
  check_state_can_be_named(live_, *adapter_);
  check_state_can_be_divided(live_, *adapter_, args.left_alone);
}

OptimizerLoad::~OptimizerLoad() = default;

void OptimizerLoad::check(const Dict& given, FaultList& faults) {
  const std::size_t earlier_faults = faults.count();
  stored_ = args_.options.flatten
                ? read_flattened_state(given, live_names(), adapter_->option_names(), state_names(), faults)
                : read_nested_state(given, faults);
  // What follows would only complain of what these leave out.
  if (faults.count() > earlier_faults) return;
  faults_ = &faults;
  for (const std::string& key : stored_.unexpected) {
    if (!args_.options.flatten || !is_foreign(key)) report_.unexpected.push_back(key);
  }
  check_groups();
  for (std::size_t g = 0; g < live_.size(); ++g) {
    if (are_left_alone(live_[g])) continue;
    if (adapter_->has_one_state_per_group()) {
      check_state_of_all(g);
      continue;
    }
    for (const OptimizerParameter* parameter : live_[g]) {
      if (!is_left_alone(*parameter)) check_state_of_one(*parameter, *groups_[g].options);
    }
  }
  find_unexpected();
}

void OptimizerLoad::keep_objects(LoadUndo& undo) {
  auto old = std::make_shared<OptimizerUndo>(optimizer_);
  for (const StateChange& change : changes_) old->keep(change.key());
  undo.keep("the options and states of an optimizer", [old] { old->put_back(); });
}

void OptimizerLoad::keep_elements(LoadUndo& undo) {
  for (const StateChange& change : changes_) {
    visit_all(change.current, [&](const Path&, const Value& value) {
      if (value.is_tensor()) undo.keep(value.as_tensor());
    });
  }
  for (const auto& group : live_) {
    for (const OptimizerParameter* parameter : group) undo.keep_gradient(parameter->tensor);
  }
}

void OptimizerLoad::prepare() {
  for (StateChange& change : changes_) place_values(change);
}

void OptimizerLoad::write_objects() {
  write_options();
  for (const StateChange& change : changes_) write_state(change);
}

void OptimizerLoad::write_elements() { copies_.apply(); }

void OptimizerLoad::finish() {
  for (const OptimizerLoadPost* hook : post_hooks_) hook->call();
}

bool OptimizerLoad::is_left_alone(const OptimizerParameter& parameter) const {
  return args_.left_alone.contains(parameter.tensor.unsafeGetTensorImpl());
}

bool OptimizerLoad::are_left_alone(const Group& group) const {
  return !group.empty() && std::all_of(group.begin(), group.end(),
                                       [&](const OptimizerParameter* parameter) { return is_left_alone(*parameter); });
}

std::vector<std::string> OptimizerLoad::live_names() const {
  std::vector<std::string> names;
  for (const auto& group : live_) {
    for (const OptimizerParameter* parameter : group) names.push_back(parameter->fqn);
  }
  return names;
}

std::vector<std::string> OptimizerLoad::state_names() const {
  std::vector<std::string> names;
  if (optimizer_.param_groups().empty()) return names;
  for (const StateField& field : adapter_->state_fields(optimizer_.param_groups().front().options())) {
    names.push_back(field.name);
  }
  return names;
}

Dict OptimizerLoad::live_state(const OptimizerParameter& parameter) const {
  const auto it = optimizer_.state().find(parameter.tensor.unsafeGetTensorImpl());
  return it == optimizer_.state().end() || it->second == nullptr ? Dict() : adapter_->read_state(*it->second);
}

void OptimizerLoad::add_missing(const std::string& key, const std::string& fault) {
  report_.missing.push_back(key);
  if (args_.options.strict) faults_->add(ErrorKind::kKey, key, fault);
}

void OptimizerLoad::add_never_stepped(const std::string& key) {
  if (args_.never_stepped == NeverStepped::kHasInitialState) {
    add_missing(key, "is missing: no stored state of a trainable parameter");
  } else {
    report_.missing.push_back(key);
  }
}

void OptimizerLoad::check_groups() {
  std::unordered_map<std::string, const StoredGroup*> group_of;
  std::vector<const StoredGroup*> empty_groups;
  for (const StoredGroup& group : stored_.groups) {
    for (const std::string& fqn : group.params) group_of[fqn] = &group;
    if (group.params.empty()) empty_groups.push_back(&group);
  }
  std::size_t empty_count = args_.empty_position;
  for (std::size_t g = 0; g < live_.size(); ++g) {
    if (!live_[g].empty()) {
      check_group(g, find_stored(g, group_of));
    } else {
      const bool has_counterpart = empty_count < empty_groups.size();
      check_group(g, has_counterpart ? std::vector<Listing>{{empty_groups[empty_count], ""}} : std::vector<Listing>());
      ++empty_count;
    }
  }
}

/// Each stored group once.
std::vector<OptimizerLoad::Listing> OptimizerLoad::find_stored(
    std::size_t g, const std::unordered_map<std::string, const StoredGroup*>& group_of) {
  std::vector<Listing> listings;
  std::set<const StoredGroup*> seen;
  for (const OptimizerParameter* parameter : live_[g]) {
    if (is_left_alone(*parameter)) continue;
    const auto it = group_of.find(parameter->fqn);
    if (it == group_of.end()) {
      add_unlisted(*parameter);
    } else if (seen.insert(it->second).second) {
      listings.push_back({it->second, parameter->fqn});
    }
  }
  if (!listings.empty() || are_left_alone(live_[g]) || args_.options.strict || !args_.position) return listings;
  const std::size_t position = *args_.position + g;
  if (!args_.options.flatten && position < stored_.groups.size()) {
    listings.push_back({&stored_.groups[position], live_[g].front()->fqn});
  }
  return listings;
}

/// The group of a frozen parameter says nothing that the optimizer would use.
void OptimizerLoad::add_unlisted(const OptimizerParameter& parameter) {
  const std::string key = "param_groups." + parameter.fqn;
  if (parameter.tensor.requires_grad()) {
    add_missing(key, "is missing: no stored group lists this parameter");
  } else {
    report_.missing.push_back(key);
  }
}

void OptimizerLoad::check_group(std::size_t g, const std::vector<Listing>& listings) {
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
      faults_->add(ErrorKind::kInvalidArgument, c10::str("param_groups.", g),
                   c10::str("this group of the optimizer would need two sets of options: ", listings.front().fqn,
                            " has those of ", change.stored->label, ", and ", listing.fqn, " those of ",
                            listing.stored->label, ", which differ: ", difference));
    }
  }
}

void OptimizerLoad::add_result(const StoredGroup& stored, const OptionsResult& result) {
  if (!checked_.insert(&stored).second) return;  // several live groups may share a stored one
  for (const auto& [option, fault] : result.faults) {
    faults_->add(fault.kind, stored.label + "." + option, fault.text);
  }
  for (const std::string& name : result.missing) {
    add_missing(stored.label + "." + name, "is missing");
  }
  for (const std::string& name : result.unexpected) report_.unexpected.push_back(stored.label + "." + name);
}

void OptimizerLoad::check_state_of_one(const OptimizerParameter& parameter, const OptimizerOptions& options) {
  check_state(parameter, options, parameter.tensor.requires_grad(), stored_.state.find(parameter.fqn), {});
}

/// The state is under the first parameter of the group that was saved, in the order of that group.
void OptimizerLoad::check_state_of_all(std::size_t g) {
  const Group& group = live_[g];
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

bool OptimizerLoad::check_same_parameters(const Group& group, const StoredGroup& stored) {
  std::vector<std::string> names;
  for (const OptimizerParameter* parameter : group) names.push_back(parameter->fqn);
  if (std::is_permutation(names.begin(), names.end(), stored.order.begin(), stored.order.end())) return true;
  faults_->add(ErrorKind::kKey, stored.label + ".params",
               c10::str("the state is one of all parameters of a group; the stored one has [",
                        c10::Join(", ", stored.order), "], that of the optimizer [", c10::Join(", ", names), "]"));
  return false;
}

void OptimizerLoad::check_state(const OptimizerParameter& parameter, const OptimizerOptions& options, bool is_trainable,
                                const Dict* given, const GroupVector& group) {
  const std::vector<StateField> fields = adapter_->state_fields(options);
  StateChange& change = changes_.emplace_back(StateChange{&parameter});
  change.current = live_state(parameter);
  if (given == nullptr) {
    const bool is_needed = std::any_of(fields.begin(), fields.end(), [](const StateField& f) { return f.is_needed; });
    if (is_needed && is_trainable) add_never_stepped("state." + parameter.fqn);
  } else {
    read_fields(fields, options, *given, group, change);
    find_unknown_fields("state." + parameter.fqn + ".", fields, *given);
  }
  if (change.is_written || !adapter_->needs_state_to_step()) return;
  Dict initial = adapter_->initial_state(parameter.tensor, options);
  for (auto& [name, value] : initial) value = spread_like(parameter, std::move(value));
  read_fields(fields, options, initial, group, change);
}

/// Takes what is given, and decides whether it is to be the parameter's state.
void OptimizerLoad::read_fields(const std::vector<StateField>& fields, const OptimizerOptions& options,
                                const Dict& given, const GroupVector& group, StateChange& change) {
  const std::string prefix = "state." + change.parameter->fqn + ".";
  bool is_complete = true;
  for (const StateField& field : fields) {
    if (const Value* value = given.find(field.name)) {
      const StateTarget& target = change.targets.emplace_back(
          StateTarget{prefix + field.name, field, change.parameter, change.current.find(field.name), group});
      const bool is_sound =
          take_state_value(target, *value, args_.options.dtype_policy, *faults_, report_, change.values[field.name]);
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

bool OptimizerLoad::check_together(const std::string& prefix, const OptimizerOptions& options, const Dict& values) {
  const std::vector<FieldFault> found = adapter_->check_state(values, options);
  for (const auto& [field, fault] : found) {
    if (fault.kind == ErrorKind::kKey) {
      add_missing(prefix + field, fault.text);
    } else {
      faults_->add(fault.kind, prefix + field, fault.text);
    }
  }
  return found.empty();
}

void OptimizerLoad::find_unknown_fields(const std::string& prefix, const std::vector<StateField>& fields,
                                        const Dict& given) {
  for (const auto& [key, value] : given) {
    const std::string name = to_string(key);
    const bool is_known =
        std::any_of(fields.begin(), fields.end(), [&](const StateField& f) { return f.name == name; });
    if (!is_known) report_.unexpected.push_back(prefix + name);
  }
}

/// What another optimizer of the call may take is none of this one's business.
void OptimizerLoad::find_unexpected() {
  std::set<std::string> known(args_.foreign.begin(), args_.foreign.end());
  std::set<std::string> holders = known;
  for (const auto& group : live_) {
    for (const OptimizerParameter* parameter : group) {
      if (!is_left_alone(*parameter)) known.insert(parameter->fqn);
    }
  }
  const std::set<std::string>& own_holders = adapter_->has_one_state_per_group() ? state_holders_ : known;
  holders.insert(own_holders.begin(), own_holders.end());
  for (const auto& [fqn, values] : stored_.state) {
    if (!holders.contains(fqn)) report_.unexpected.push_back("state." + fqn);
  }
  for (const StoredGroup& group : stored_.groups) {
    for (const std::string& fqn : group.params) {
      if (!known.contains(fqn)) report_.unexpected.push_back(group.label + ".params: " + fqn);
    }
  }
}

/// Whether a flattened key is one of another optimizer's parameter.
bool OptimizerLoad::is_foreign(const std::string& key) const {
  const std::size_t begin = key.find('.');
  if (begin == std::string::npos) return false;
  for (std::size_t dot = key.find('.', begin + 1); dot != std::string::npos; dot = key.find('.', dot + 1)) {
    if (args_.foreign.contains(key.substr(begin + 1, dot - begin - 1))) return true;
  }
  return false;
}

void OptimizerLoad::place_values(StateChange& change) {
  for (const StateTarget& target : change.targets) {
    if (Value* value = change.values.find(target.field.name)) *value = place_state_value(target, *value, copies_);
  }
}

void OptimizerLoad::write_state(const StateChange& change) {
  auto& states = optimizer_.state();
  if (!change.is_written) {
    states.erase(change.key());
    return;
  }
  std::unique_ptr<OptimizerParamState>& state = states[change.key()];
  if (state == nullptr) state = adapter_->make_state();
  adapter_->write_state(*state, change.values);
}

void OptimizerLoad::write_options() {
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    if (groups_[g].stored == nullptr) continue;
    adapter_->write_options(optimizer_.param_groups()[g].options(), groups_[g].stored->options);
  }
}

}  // namespace dcp

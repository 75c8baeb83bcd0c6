#include "torch_dcp/model_state/stored_optimizer_state_internal.h"

#include <unordered_set>
#include <utility>

namespace dcp {
namespace {

constexpr const char* kState = "state";
constexpr const char* kGroups = "param_groups";
constexpr const char* kParams = "params";

std::string wrong_kind(const Value& value, const char* wanted) {
  return std::string("a ") + value_kind_name(value.kind()) + " is given where " + wanted + " is needed";
}

void read_state(const Value& given, StoredOptimizerState& stored, FaultList& faults) {
  if (!given.is_dict()) {
    faults.add(ErrorKind::kType, kState, wrong_kind(given, "a dict"));
    return;
  }
  for (const auto& [fqn, values] : given.as_dict()) {
    const std::string where = std::string(kState) + "." + to_string(fqn);
    if (values.is_dict()) {
      stored.state.insert_or_assign(to_string(fqn), values.as_dict());
    } else {
      faults.add(ErrorKind::kType, where, wrong_kind(values, "a dict"));
    }
  }
}

std::vector<std::string> read_params(const std::string& where, const Value* given, FaultList& faults) {
  std::vector<std::string> params;
  if (given == nullptr) {
    faults.add(ErrorKind::kKey, where, "is missing");
    return params;
  }
  if (!given->is_list()) {
    faults.add(ErrorKind::kType, where, wrong_kind(*given, "a list of names"));
    return params;
  }
  for (const Value& name : given->as_list()) {
    if (name.kind() == ValueKind::kString) {
      params.push_back(name.as_string());
    } else {
      faults.add(ErrorKind::kType, where, wrong_kind(name, "a parameter's name"));
      break;
    }
  }
  return params;
}

/// An optimizer may have a parameter twice in a group, and lists it twice then.
std::vector<std::string> without_repeats(const std::vector<std::string>& names) {
  std::vector<std::string> unique;
  std::unordered_set<std::string> seen;
  for (const std::string& name : names) {
    if (seen.insert(name).second) unique.push_back(name);
  }
  return unique;
}

void read_groups(const Value& given, StoredOptimizerState& stored, FaultList& faults) {
  if (!given.is_list()) {
    faults.add(ErrorKind::kType, kGroups, wrong_kind(given, "a list"));
    return;
  }
  for (const Value& group : given.as_list()) {
    StoredGroup& read = stored.groups.emplace_back();
    read.label = std::string(kGroups) + "." + std::to_string(stored.groups.size() - 1);
    if (!group.is_dict()) {
      faults.add(ErrorKind::kType, read.label, wrong_kind(group, "a dict"));
      continue;
    }
    read.options = group.as_dict();
    read.order = read_params(read.label + "." + kParams, read.options.find(kParams), faults);
    read.params = without_repeats(read.order);
    read.options.erase(kParams);
  }
}

void check_listed_once(const StoredOptimizerState& stored, FaultList& faults) {
  std::unordered_set<std::string> seen;
  for (const StoredGroup& group : stored.groups) {
    for (const std::string& fqn : group.params) {
      if (!seen.insert(fqn).second) faults.add(ErrorKind::kKey, fqn, "is listed twice in param_groups, in two groups");
    }
  }
}

/// Takes values out of a flattened dict by their keys, and remembers which.
class FlatValues {
 public:
  explicit FlatValues(const Dict& given) : given_(given) {}

  /// Null if there is none.
  const Value* take(const std::string& key) {
    const Value* value = given_.find(key);
    if (value != nullptr) taken_.insert(key);
    return value;
  }

  Dict take(const std::string& prefix, const std::vector<std::string>& names) {
    Dict values;
    for (const std::string& name : names) {
      if (const Value* value = take(prefix + "." + name)) values.insert_or_assign(name, *value);
    }
    return values;
  }

  std::vector<std::string> rest() const {
    std::vector<std::string> keys;
    for (const auto& [key, value] : given_) {
      const std::string* text = std::get_if<std::string>(&key);
      if (text == nullptr || !taken_.contains(*text)) keys.push_back(to_string(key));
    }
    return keys;
  }

 private:
  const Dict& given_;
  std::unordered_set<std::string> taken_;
};

}  // namespace

StoredOptimizerState read_nested_state(const Dict& given, FaultList& faults) {
  StoredOptimizerState stored;
  // A checkpoint that Python wrote lacks an empty state.
  if (const Value* state = given.find(kState)) read_state(*state, stored, faults);
  if (const Value* groups = given.find(kGroups)) {
    read_groups(*groups, stored, faults);
  } else {
    faults.add(ErrorKind::kKey, kGroups, "is missing: this is no optimizer state in the nested form");
  }
  for (const auto& [key, value] : given) {
    if (key != Key(kState) && key != Key(kGroups)) stored.unexpected.push_back(to_string(key));
  }
  check_listed_once(stored, faults);
  return stored;
}

StoredOptimizerState read_flattened_state(const Dict& given, const std::vector<std::string>& fqns,
                                          const std::vector<std::string>& option_names,
                                          const std::vector<std::string>& state_names, FaultList& faults) {
  StoredOptimizerState stored;
  const Value* groups = given.find(kGroups);
  if (groups != nullptr && groups->is_list()) {
    faults.add(ErrorKind::kKey, kGroups, "is a list: this is no optimizer state in the flattened form");
    return stored;
  }
  FlatValues values(given);
  for (const std::string& fqn : fqns) {
    if (Dict state = values.take("state." + fqn, state_names); !state.empty()) {
      stored.state.insert_or_assign(fqn, std::move(state));
    }
    const std::string label = "param_groups." + fqn;
    if (Dict options = values.take(label, option_names); !options.empty()) {
      StoredGroup& group = stored.groups.emplace_back(StoredGroup{label, std::move(options), {fqn}, {}});
      const std::string names = label + "." + kParams;
      if (const Value* params = values.take(names)) group.order = read_params(names, params, faults);
    }
  }
  stored.unexpected = values.rest();
  return stored;
}

}  // namespace dcp

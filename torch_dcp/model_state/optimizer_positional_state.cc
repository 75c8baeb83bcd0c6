#include "torch_dcp/model_state/optimizer_positional_state.h"

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <variant>

#include "torch_dcp/base/fault_list.h"
#include "torch_dcp/model_state/optimizer_positional_state_internal.h"
#include "torch_dcp/model_state/optimizer_state_internal.h"
#include "torch_dcp/state_dict/equal.h"

namespace dcp {
namespace {

using torch::optim::Optimizer;

constexpr const char* kState = "state";
constexpr const char* kGroups = "param_groups";
constexpr const char* kParams = "params";

/// The numbers of an optimizer's parameters, which stand here for their names.
struct Numbering {
  std::vector<OptimizerParameter> parameters;
  std::vector<std::vector<std::string>> groups;
};

/// A tensor that is there twice has one number.
Numbering number(const Optimizer& optimizer, const HookTable& hooks) {
  Numbering numbering;
  std::unordered_map<const void*, std::string> numbers;
  for (const auto& group : optimizer.param_groups()) {
    std::vector<std::string>& names = numbering.groups.emplace_back();
    for (const at::Tensor& tensor : group.params()) {
      const auto [it, is_new] =
          numbers.try_emplace(tensor.unsafeGetTensorImpl(), std::to_string(numbering.parameters.size()));
      names.push_back(it->second);
      if (is_new) numbering.parameters.push_back({it->second, tensor, hooks.layout_of(tensor)});
    }
  }
  return numbering;
}

Value to_number(const std::string& name) { return std::stoll(name); }

/// Numbers in place of their spelling.
Dict with_numbers(Dict named) {
  Dict state;
  for (auto& [name, values] : named.at(kState).as_dict()) {
    state.insert_or_assign(to_number(to_string(name)).as_int(), std::move(values));
  }
  named.at(kState) = std::move(state);
  for (Value& group : named.at(kGroups).as_list()) {
    for (Value& name : group.as_dict().at(kParams).as_list()) name = to_number(name.as_string());
  }
  return named;
}

/// Puts the numbers of an optimizer's parameters, spelled, in place of those of a given state.
class Renumbering {
 public:
  explicit Renumbering(const Numbering& live) : live_(live) {}

  /// What has not the form of such a state is left for the reader of named states to find.
  Dict run(const Dict& given) {
    Dict named = given;
    Value* groups = named.find(kGroups);
    if (groups != nullptr && groups->is_list()) rename_groups(groups->as_list());
    faults_.throw_if_any(kHeading, DCP_WHERE);
    Value* state = named.find(kState);
    if (state != nullptr && state->is_dict()) *state = rename_state(std::move(state->as_dict()));
    faults_.throw_if_any(kHeading, DCP_WHERE);
    return named;
  }

  /// Entries of the state that no group lists.
  const std::vector<std::string>& unexpected() const { return unexpected_; }

 private:
  static constexpr const char* kHeading = "cannot set the state of the optimizer";

  void rename_groups(List& groups) {
    if (groups.size() != live_.groups.size()) {
      faults_.add(ErrorKind::kInvalidArgument, kGroups,
                  c10::str(groups.size(), " groups are given, the optimizer has ", live_.groups.size()));
      return;
    }
    for (std::size_t g = 0; g < groups.size(); ++g) {
      Value* params = groups[g].is_dict() ? groups[g].as_dict().find(kParams) : nullptr;
      if (params == nullptr || !params->is_list()) continue;
      rename_params(c10::str(kGroups, ".", g, ".", kParams), live_.groups[g], params->as_list());
    }
  }

  void rename_params(const std::string& key, const std::vector<std::string>& live, List& params) {
    if (params.size() != live.size()) {
      faults_.add(ErrorKind::kInvalidArgument, key,
                  c10::str("lists ", params.size(), " parameters, the group of the optimizer has ", live.size()));
      return;
    }
    for (std::size_t i = 0; i < params.size(); ++i) {
      if (params[i].kind() != ValueKind::kInt) {
        faults_.add(
            ErrorKind::kType, key,
            c10::str("a ", value_kind_name(params[i].kind()), " is given where a parameter's number is needed"));
        return;
      }
      const std::string stored = std::to_string(params[i].as_int());
      const auto [it, is_new] = live_of_stored_.try_emplace(stored, live[i]);
      if (!is_new && it->second != live[i]) {
        faults_.add(ErrorKind::kKey, key, c10::str("number ", stored, " is listed twice"));
      }
      params[i] = live[i];
    }
  }

  Dict rename_state(Dict given) {
    Dict renamed;
    for (auto& [key, values] : given) {
      const auto it = live_of_stored_.find(to_string(key));
      if (it == live_of_stored_.end()) {
        unexpected_.push_back(c10::str(kState, ".", to_string(key)));
      } else if (const Value* other = renamed.find(it->second)) {
        if (bit_equal(*other, values)) continue;
        faults_.add(ErrorKind::kKey, c10::str(kState, ".", to_string(key)),
                    c10::str("is a second entry for parameter ", it->second, ", of other values"));
      } else {
        renamed.insert_or_assign(it->second, std::move(values));
      }
    }
    return renamed;
  }

  const Numbering& live_;
  std::unordered_map<std::string, std::string> live_of_stored_;
  std::vector<std::string> unexpected_;
  FaultList faults_;
};

Dict read(const Optimizer& optimizer, const OptimizerStateDictArgs& args, const HookTable& hooks) {
  run_save_pre_hooks(optimizer, hooks);
  const Numbering live = number(optimizer, hooks);
  Dict state = with_numbers(
      read_optimizer_state(live.parameters, optimizer, {.adapters = args.adapters}, NeverStepped::kHasNoState));
  run_save_post_hooks(optimizer, hooks, state);
  return state;
}

LoadReport write(Optimizer& optimizer, const Dict& state, const LoadOptimizerStateDictOptions& options,
                 const HookTable& hooks) {
  const std::optional<Dict> changed = run_load_pre_hooks(optimizer, hooks, state);
  const NamedByPosition named = name_by_position(optimizer, changed ? *changed : state, hooks);
  LoadReport report = write_optimizer_state(
      named.parameters, optimizer, named.state,
      {.options = {.strict = options.strict, .dtype_policy = options.dtype_policy, .adapters = options.adapters},
       .never_stepped = NeverStepped::kHasNoState},
      hooks);
  report.unexpected.insert(report.unexpected.end(), named.unexpected.begin(), named.unexpected.end());
  return report;
}

bool is_number(const Key& key) {
  const std::string* text = std::get_if<std::string>(&key);
  return text == nullptr || (!text->empty() && text->find_first_not_of("0123456789") == std::string::npos);
}

}  // namespace

bool is_positional(const Dict& state) {
  const Value* groups = state.find(kGroups);
  const Value* states = state.find(kState);
  if (groups == nullptr || !groups->is_list()) return false;
  if (states != nullptr && states->is_dict()) {
    for (const auto& [key, values] : states->as_dict()) {
      if (!is_number(key)) return false;
    }
  }
  bool has_numbers = false;
  for (const Value& group : groups->as_list()) {
    const Value* params = group.is_dict() ? group.as_dict().find(kParams) : nullptr;
    if (params == nullptr || !params->is_list()) return false;
    for (const Value& param : params->as_list()) {
      if (param.kind() != ValueKind::kInt) return false;
      has_numbers = true;
    }
  }
  return has_numbers;
}

NamedByPosition name_by_position(const Optimizer& optimizer, const Dict& state, const HookTable& hooks) {
  Numbering live = number(optimizer, hooks);
  Renumbering renumbering(live);
  NamedByPosition named;
  named.state = renumbering.run(state);
  named.unexpected = renumbering.unexpected();
  named.parameters = std::move(live.parameters);
  return named;
}

Dict own_state_dict(const Optimizer& optimizer, const OptimizerStateDictArgs& args) {
  return read(optimizer, args, current_hooks());
}

LoadReport own_load_state_dict(Optimizer& optimizer, const Dict& state, const LoadOptimizerStateDictOptions& options) {
  return write(optimizer, state, options, current_hooks());
}

Dict state_dict(const Optimizer& optimizer, const OptimizerStateDictArgs& args) {
  const HookTable hooks = current_hooks();
  if (const OptimizerPatch* patch = hooks.first_of<OptimizerPatch>(&optimizer)) return patch->get(optimizer);
  return read(optimizer, args, hooks);
}

LoadReport load_state_dict(Optimizer& optimizer, const Dict& state, const LoadOptimizerStateDictOptions& options) {
  const HookTable hooks = current_hooks();
  if (const OptimizerPatch* patch = hooks.first_of<OptimizerPatch>(&optimizer)) return patch->set(optimizer, state);
  return write(optimizer, state, options, hooks);
}

}  // namespace dcp

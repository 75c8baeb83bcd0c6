#include "torch_dcp/model_state/app_state.h"

#include <utility>

#include "torch_dcp/base/error.h"
#include "torch_dcp/base/fault_list.h"
#include "torch_dcp/model_state/training_state.h"

namespace dcp {
namespace {

constexpr const char* kModel = "model";
constexpr const char* kOptimizers = "optim";
constexpr const char* kExtra = "extra";

StateDictOptions options_of_getter(StateDictOptions options) {
  options.broadcast_from_rank0 = false;
  return options;
}

const Dict* part(const Dict& state, const char* name) {
  const Value* value = state.find(name);
  return value == nullptr ? nullptr : &value->as_dict();
}

}  // namespace

AppState::AppState(torch::nn::Module& module, const OptimizerRefs& optimizers, const StateDictOptions& options)
    : module_(module), optimizers_(optimizers), options_(options) {
  verify_options(module, options_of_getter(options), {.is_getter = true, .optimizers = optimizers});
  verify_options(module, options, {.is_getter = false, .optimizers = optimizers});
}

AppState::~AppState() = default;

AppState& AppState::add(const std::string& name, Value value) {
  DCP_CHECK(!extra_.contains(name), kKey, "'", name, "' is added twice");
  const bool is_null = value.kind() == ValueKind::kStateful && value.as_stateful() == nullptr;
  DCP_CHECK(!is_null, kInvalidArgument, "'", name, "' is a null pointer");
  extra_.insert_or_assign(name, std::move(value));
  return *this;
}

Dict AppState::state_dict() {
  auto [model, optimizers] = get_state_dict(module_, optimizers_, options_of_getter(options_));
  Dict state = {{kModel, std::move(model)}};
  if (!optimizers_.pointers().empty()) state[kOptimizers] = std::move(optimizers);
  if (extra_.empty()) return state;
  Dict extra;
  for (const auto& [name, value] : extra_) {
    const bool is_object = value.kind() == ValueKind::kStateful;
    extra.insert_or_assign(name, is_object ? Value(value.as_stateful()->state_dict()) : value);
  }
  state[kExtra] = std::move(extra);
  return state;
}

void AppState::load_state_dict(const Dict& state) {
  report_ = {};
  const Dict none;
  const Dict* model = part(state, kModel);
  const Dict* optimizers = part(state, kOptimizers);
  FaultList faults;
  const auto need = [&](const Dict*& given, const char* name) {
    if (given != nullptr) return;
    given = &none;
    report_.missing.push_back(name);
    if (options_.strict) faults.add(ErrorKind::kKey, name, "is missing in the state of the application");
  };
  // With a broadcast the other ranks may have nothing.
  if (!options_.broadcast_from_rank0) {
    need(model, kModel);
    if (!optimizers_.pointers().empty()) need(optimizers, kOptimizers);
  }
  faults.throw_if_any("cannot load the application", DCP_WHERE);
  Dict loaded = load_extra(state);
  const LoadReport report = set_state_dict(module_, optimizers_, model == nullptr ? none : *model,
                                           optimizers == nullptr ? none : *optimizers, options_);
  for (auto& [name, value] : loaded) extra_.at(name) = std::move(value);
  report_.missing.insert(report_.missing.end(), report.missing.begin(), report.missing.end());
  report_.unexpected.insert(report_.unexpected.end(), report.unexpected.begin(), report.unexpected.end());
  report_.converted = report.converted;
}

/// Returns the plain values.
Dict AppState::load_extra(const Dict& state) {
  const Dict none;
  const Dict* given = part(state, kExtra);
  if (given == nullptr) given = &none;
  FaultList faults;
  for (const auto& [name, value] : extra_) {
    if (given->contains(name)) continue;
    const std::string key = std::string(kExtra) + "." + to_string(name);
    report_.missing.push_back(key);
    if (options_.strict) faults.add(ErrorKind::kKey, key, "is missing in the state of the application");
  }
  faults.throw_if_any("cannot load the application", DCP_WHERE);
  Dict plain;
  for (const auto& [name, value] : *given) {
    const Value* known = extra_.find(name);
    if (known == nullptr) {
      report_.unexpected.push_back(std::string(kExtra) + "." + to_string(name));
    } else if (known->kind() == ValueKind::kStateful) {
      known->as_stateful()->load_state_dict(value.as_dict());
    } else {
      plain.insert_or_assign(name, value);
    }
  }
  return plain;
}

}  // namespace dcp

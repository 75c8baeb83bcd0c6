#include <ATen/ops/scalar_tensor.h>
#include <torch/optim/lbfgs.h>

#include <algorithm>
#include <deque>

#include "torch_dcp/model_state/optimizers/adapters_internal.h"
#include "torch_dcp/model_state/optimizers/table_adapter_internal.h"

// LBFGS has one state, under its first parameter: vectors over all parameters, of the last `history_size` iterations.
// Before the first iteration there are the two counters alone, in Python as here.
// Source: torch/optim/lbfgs.py (2.14.1); torch/csrc/api/src/optim/lbfgs.cpp.

namespace dcp {
namespace {

using torch::optim::LBFGSOptions;
using torch::optim::LBFGSParamState;
using Table = TableAdapter<torch::optim::LBFGS, LBFGSOptions, LBFGSParamState>;

constexpr const char* kFuncEvals = "func_evals";
constexpr const char* kIterations = "n_iter";
constexpr const char* kScratch = "al";
constexpr const char* kDirections = "old_dirs";
constexpr const char* kSteps = "old_stps";
constexpr const char* kFactors = "ro";
constexpr const char* kLineSearch = "strong_wolfe";

/// LibTorch drops the oldest of `history_size` entries without asking whether there is one.
std::optional<AdapterFault> take_history_size(LBFGSOptions& options, const Value& value) {
  std::int64_t size = 0;
  if (auto fault = take(value, size)) return fault;
  if (size == 0) return AdapterFault{ErrorKind::kInvalidArgument, "LibTorch's LBFGS needs a history, 0 is given"};
  options.history_size(size);
  return std::nullopt;
}

std::optional<AdapterFault> take_max_eval(LBFGSOptions& options, const Value& value) {
  std::int64_t count = 0;
  if (auto fault = take(value, count)) return fault;
  options.max_eval(count);
  return std::nullopt;
}

std::optional<AdapterFault> take_line_search(LBFGSOptions& options, const Value& value) {
  if (value.is_none()) {
    options.line_search_fn(std::nullopt);
    return std::nullopt;
  }
  if (value.kind() != ValueKind::kString) {
    return AdapterFault{ErrorKind::kType,
                        c10::str("a ", value_kind_name(value.kind()), " is given where a name or None is needed")};
  }
  if (value.as_string() != kLineSearch) {
    return AdapterFault{ErrorKind::kUnsupported,
                        c10::str("there is no line search '", value.as_string(), "', only '", kLineSearch, "'")};
  }
  options.line_search_fn(value.as_string());
  return std::nullopt;
}

std::vector<Table::Option> options() {
  return {
      Table::option("lr", [](auto& o) -> auto& { return o.lr(); }),
      Table::option("max_iter", [](auto& o) -> auto& { return o.max_iter(); }),
      // Its default is what the constructors make of none.
      {"max_eval", true, [](const LBFGSOptions& o) { return Value(o.max_eval().value_or(o.max_iter() * 5 / 4)); },
       take_max_eval},
      Table::option("tolerance_grad", [](auto& o) -> auto& { return o.tolerance_grad(); }),
      Table::option("tolerance_change", [](auto& o) -> auto& { return o.tolerance_change(); }),
      {"history_size", true, [](const LBFGSOptions& o) { return Value(o.history_size()); }, take_history_size},
      {"line_search_fn", true,
       [](const LBFGSOptions& o) { return o.line_search_fn() ? Value(*o.line_search_fn()) : Value(None()); },
       take_line_search},
      Table::maximize(),
  };
}

bool never(const LBFGSOptions&) { return false; }

bool has_iterated(const LBFGSParamState& state) { return state.n_iter() > 0; }

/// A whole number is an int, as Python's first `H_diag` is: LibTorch has an int64 tensor there.
Value scalar_to_value(const at::Tensor& tensor) {
  if (!tensor.defined()) return None();
  if (at::isIntegralType(tensor.scalar_type(), /*includeBool=*/false)) return tensor.item<std::int64_t>();
  return tensor;
}

at::Tensor value_to_tensor(const Value& value) {
  if (value.is_none()) return {};
  if (value.is_tensor()) return value.as_tensor();
  return at::scalar_tensor(value.as_int(), at::dtype(at::kLong));
}

/// A Python int.
template <typename Access>
Table::Field counter(std::string name, Access access) {
  return {std::move(name), StateFieldKind::kCounter, Table::always,
          [access](const LBFGSParamState& s) { return std::optional<Value>(access(s)); },
          [access](LBFGSParamState& s, const Value* value) { access(s) = value == nullptr ? 0 : value->as_int(); }};
}

template <typename Access>
Table::Field number(std::string name, Access access) {
  return {
      std::move(name), StateFieldKind::kNumber, never,
      [access](const LBFGSParamState& s) { return has_iterated(s) ? std::optional<Value>(access(s)) : std::nullopt; },
      [access](LBFGSParamState& s, const Value* value) { access(s) = value == nullptr ? 0 : value->as_double(); }};
}

template <typename Access>
Table::Field tensor(std::string name, StateFieldKind kind, Access access) {
  return {std::move(name), kind, never,
          [access](const LBFGSParamState& s) {
            const at::Tensor& held = access(s);
            return held.defined() ? std::optional<Value>(scalar_to_value(held)) : std::nullopt;
          },
          [access](LBFGSParamState& s, const Value* value) {
            access(s) = value == nullptr ? at::Tensor() : value_to_tensor(*value);
          }};
}

template <typename Tensors>
Value tensors_to_value(const Tensors& tensors) {
  List list;
  for (const at::Tensor& each : tensors) list.push_back(scalar_to_value(each));
  return list;
}

template <typename Tensors>
Tensors value_to_tensors(const Value* value) {
  Tensors tensors;
  if (value == nullptr) return tensors;
  for (const Value& each : value->as_list()) tensors.push_back(value_to_tensor(each));
  return tensors;
}

template <typename Access>
Table::Field history(std::string name, StateFieldKind kind, Access access) {
  return {
      std::move(name),
      kind,
      never,
      [access](const LBFGSParamState& s) {
        return has_iterated(s) ? std::optional<Value>(tensors_to_value(access(s))) : std::nullopt;
      },
      [access](LBFGSParamState& s, const Value* value) { access(s) = value_to_tensors<std::deque<at::Tensor>>(value); },
      /*is_list=*/true};
}

/// Room for a number of each iteration that is remembered, made in the second iteration; None where there was none yet.
Table::Field scratch() {
  return {kScratch,
          StateFieldKind::kGroupScalar,
          never,
          [](const LBFGSParamState& s) {
            return s.al().has_value() ? std::optional<Value>(tensors_to_value(*s.al())) : std::nullopt;
          },
          [](LBFGSParamState& s, const Value* value) {
            s.al(value == nullptr ? std::nullopt : std::optional(value_to_tensors<std::vector<at::Tensor>>(value)));
          },
          /*is_list=*/true};
}

std::vector<Table::Field> fields() {
  return {
      counter(kFuncEvals, [](auto& s) -> auto& { return s.func_evals(); }),
      counter(kIterations, [](auto& s) -> auto& { return s.n_iter(); }),
      scratch(),
      tensor("d", StateFieldKind::kGroupVector, [](auto& s) -> auto& { return s.d(); }),
      number("t", [](auto& s) -> auto& { return s.t(); }),
      history(kDirections, StateFieldKind::kGroupVector, [](auto& s) -> auto& { return s.old_dirs(); }),
      history(kSteps, StateFieldKind::kGroupVector, [](auto& s) -> auto& { return s.old_stps(); }),
      history(kFactors, StateFieldKind::kGroupScalar, [](auto& s) -> auto& { return s.ro(); }),
      tensor("H_diag", StateFieldKind::kGroupScalar, [](auto& s) -> auto& { return s.H_diag(); }),
      tensor("prev_flat_grad", StateFieldKind::kGroupVector, [](auto& s) -> auto& { return s.prev_flat_grad(); }),
      number("prev_loss", [](auto& s) -> auto& { return s.prev_loss(); }),
  };
}

void check_nothing_is_missing(const Dict& values, std::vector<FieldFault>& faults) {
  for (const Table::Field& field : fields()) {
    if (field.name == kScratch || values.contains(field.name)) continue;
    faults.push_back({field.name, {ErrorKind::kKey, "is missing, though iterations are counted"}});
  }
}

void check_history(const char* name, const Dict& values, std::int64_t history_size, std::vector<FieldFault>& faults) {
  const Value* value = values.find(name);
  if (value == nullptr) return;
  const List& list = value->as_list();
  const Value* directions = values.find(kDirections);
  if (directions != nullptr && directions->as_list().size() != list.size()) {
    faults.push_back({name,
                      {ErrorKind::kInvalidArgument, c10::str("has ", list.size(), " entries, ", kDirections, " has ",
                                                             directions->as_list().size())}});
  }
  if (static_cast<std::int64_t>(list.size()) > history_size) {
    faults.push_back({name,
                      {ErrorKind::kInvalidArgument,
                       c10::str("has ", list.size(), " entries, more than history_size, ", history_size)}});
  }
  if (std::any_of(list.begin(), list.end(), [](const Value& each) { return each.is_none(); })) {
    faults.push_back({name, {ErrorKind::kType, "has a None"}});
  }
}

class LbfgsAdapter : public Table {
 public:
  LbfgsAdapter() : Table(options(), fields()) {}

  bool has_one_state_per_group() const override { return true; }

  bool means_no_state(const Dict& values) const override {
    return values.at(kFuncEvals).as_int() == 0 && values.at(kIterations).as_int() == 0;
  }

  /// LibTorch counts on all of this without a look.
  std::vector<FieldFault> check_state(const Dict& values,
                                      const torch::optim::OptimizerOptions& options) const override {
    std::vector<FieldFault> faults;
    const std::int64_t history_size = as<const LBFGSOptions>(options).history_size();
    if (values.at(kIterations).as_int() > 0) check_nothing_is_missing(values, faults);
    for (const char* name : {kDirections, kSteps, kFactors}) check_history(name, values, history_size, faults);
    const Value* scratch = values.find(kScratch);
    if (scratch != nullptr && static_cast<std::int64_t>(scratch->as_list().size()) != history_size) {
      faults.push_back({kScratch,
                        {ErrorKind::kInvalidArgument,
                         c10::str("has ", scratch->as_list().size(), " entries, history_size is ", history_size)}});
    }
    return faults;
  }
};

}  // namespace

std::shared_ptr<const OptimizerAdapter> make_lbfgs_adapter() { return std::make_shared<LbfgsAdapter>(); }

}  // namespace dcp

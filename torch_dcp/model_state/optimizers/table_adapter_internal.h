#pragma once

// Include the optimizer's own header before: this one only names LibTorch's base classes.

#include <ATen/ops/zeros_like.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "torch_dcp/model_state/optimizer_adapter.h"
#include "torch_dcp/model_state/optimizers/adapter_values_internal.h"

namespace dcp {

/// An adapter that a table of options and a table of state fields describe.
///
/// `Access` in the makers below is a function object that returns a reference to the member of the object it is given,
/// const or not: `[](auto& options) -> auto& { return options.lr(); }`.
template <typename Optimizer, typename Options, typename State>
class TableAdapter : public OptimizerAdapter {
 public:
  struct Option {
    std::string name;
    bool is_in_libtorch = true;
    std::function<Value(const Options&)> read;
    std::function<std::optional<AdapterFault>(Options&, const Value&)> write;
  };

  struct Field {
    std::string name;
    StateFieldKind kind = StateFieldKind::kLikeParameter;
    std::function<bool(const Options&)> is_needed;
    std::function<std::optional<Value>(const State&)> read;
    std::function<void(State&, const Value*)> write;  ///< null: unset
    bool is_list = false;
  };

  TableAdapter(std::vector<Option> options, std::vector<Field> fields)
      : options_(std::move(options)), fields_(std::move(fields)) {}

  template <typename Access>
  static Option option(std::string name, Access access) {
    return {std::move(name), true, [access](const Options& options) { return to_value(access(options)); },
            [access](Options& options, const Value& value) { return take(value, access(options)); }};
  }

  /// An option that LibTorch lacks and that changes no result, only how it is computed: any value is taken.
  static Option ignored_option(std::string name, Value python_default) {
    return {std::move(name), false, [python_default](const Options&) { return python_default; },
            [](Options&, const Value&) { return std::optional<AdapterFault>(); }};
  }

  /// The flags that LibTorch lacks in all of its optimizers.
  static Option maximize() { return fixed_option("maximize", false); }
  static Option differentiable() { return fixed_option("differentiable", false); }
  static Option foreach () { return ignored_option("foreach", None()); }
  static Option fused() { return ignored_option("fused", None()); }
  static Option capturable() { return ignored_option("capturable", false); }

  /// A flag that LibTorch lacks and that changes results: only the value by which LibTorch computes is taken.
  static Option fixed_option(std::string name, bool only_value) {
    return {std::move(name), false, [only_value](const Options&) { return Value(only_value); },
            [only_value](Options&, const Value& value) -> std::optional<AdapterFault> {
              bool given = false;
              if (auto fault = take(value, given)) return fault;
              if (given == only_value) return std::nullopt;
              return AdapterFault{ErrorKind::kUnsupported,
                                  given ? "LibTorch's optimizer cannot do this: true is given"
                                        : "LibTorch's optimizer always does this: false is given"};
            }};
  }

  template <typename Access>
  static Field counter(std::string name, Access access) {
    return {std::move(name), StateFieldKind::kCounter, always,
            [access](const State& state) { return std::optional<Value>(counter_to_value(access(state))); },
            [access](State& state, const Value* value) { access(state) = value == nullptr ? 0 : value->as_int(); }};
  }

  static bool always(const Options&) { return true; }

  template <typename Access>
  static Field tensor(std::string name, Access access, std::function<bool(const Options&)> is_needed = always) {
    return {std::move(name), StateFieldKind::kLikeParameter, std::move(is_needed),
            [access](const State& state) {
              const at::Tensor& value = access(state);
              return value.defined() ? std::optional<Value>(value) : std::nullopt;
            },
            [access](State& state, const Value* value) {
              access(state) = value == nullptr ? at::Tensor() : value->as_tensor();
            }};
  }

  bool handles(const torch::optim::Optimizer& optimizer) const override {
    return dynamic_cast<const Optimizer*>(&optimizer) != nullptr;
  }

  std::vector<std::string> option_names() const override {
    std::vector<std::string> names;
    for (const Option& option : options_) names.push_back(option.name);
    return names;
  }

  Dict read_options(const torch::optim::OptimizerOptions& options) const override {
    const Options& typed = as<const Options>(options);
    Dict result;
    for (const Option& option : options_) result.insert_or_assign(option.name, option.read(typed));
    return result;
  }

  OptionsResult write_options(torch::optim::OptimizerOptions& options, const Dict& given) const override {
    Options& typed = as<Options>(options);
    OptionsResult result;
    std::unordered_set<std::string> known;
    for (const Option& option : options_) {
      known.insert(option.name);
      if (const Value* value = given.find(option.name)) {
        if (auto fault = option.write(typed, *value)) result.faults.push_back({option.name, *std::move(fault)});
      } else if (option.is_in_libtorch) {
        result.missing.push_back(option.name);
      }
    }
    for (const auto& [key, value] : given) {
      if (!known.contains(to_string(key))) result.unexpected.push_back(to_string(key));
    }
    return result;
  }

  std::vector<StateField> state_fields(const torch::optim::OptimizerOptions& options) const override {
    const Options& typed = as<const Options>(options);
    std::vector<StateField> result;
    for (const Field& field : fields_) {
      result.push_back({field.name, field.kind, field.is_needed(typed), field.is_list});
    }
    return result;
  }

  Dict read_state(const torch::optim::OptimizerParamState& state) const override {
    const State& typed = as<const State>(state);
    Dict result;
    for (const Field& field : fields_) {
      if (std::optional<Value> value = field.read(typed)) result.insert_or_assign(field.name, *std::move(value));
    }
    return result;
  }

  Dict initial_state(const at::Tensor& parameter, const torch::optim::OptimizerOptions& options) const override {
    const Options& typed = as<const Options>(options);
    Dict result;
    for (const Field& field : fields_) {
      if (!field.is_needed(typed)) continue;
      if (field.kind == StateFieldKind::kLikeParameter) {
        result.insert_or_assign(field.name, at::zeros_like(parameter.detach()));
      } else if (std::optional<Value> value = field.read(State())) {
        result.insert_or_assign(field.name, *std::move(value));
      }
    }
    return result;
  }

  std::unique_ptr<torch::optim::OptimizerParamState> make_state() const override { return std::make_unique<State>(); }

  void write_state(torch::optim::OptimizerParamState& state, const Dict& values) const override {
    State& typed = as<State>(state);
    for (const Field& field : fields_) field.write(typed, values.find(field.name));
  }

 protected:
  /// LibTorch's optimizers cast without a look, and options of another type may have been put into a group.
  template <typename To, typename From>
  static To& as(From& object) {
    To* typed = dynamic_cast<To*>(&object);
    DCP_CHECK(typed != nullptr, kType, "the options or the state of the optimizer are not of its own type");
    return *typed;
  }

 private:
  std::vector<Option> options_;
  std::vector<Field> fields_;
};

}  // namespace dcp

#pragma once

#include <gtest/gtest.h>
#include <torch/optim.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "test/support/deep_copy.h"
#include "test/support/expect_error.h"
#include "torch_dcp/checkpoint/load.h"
#include "torch_dcp/checkpoint/save.h"
#include "torch_dcp/io/memory_file_system.h"
#include "torch_dcp/model_state/optimizer_adapter.h"
#include "torch_dcp/model_state/optimizer_state_dict.h"
#include "torch_dcp/state_dict/equal.h"
#include "torch_dcp/storage/filesystem_reader.h"
#include "torch_dcp/storage/filesystem_writer.h"
#include "torch_dcp/tensor/device_mesh.h"

/// What every OptimizerAdapter must do. A test includes this file once and instantiates `OptimizerAdapterSuite` with
/// the optimizers it has, once for each set of options that changes what state there is:
///
///     INSTANTIATE_TEST_SUITE_P(All, OptimizerAdapterSuite, ::testing::Values(...), case_name);
namespace dcp::test {

using OptimizerGroups = std::vector<torch::optim::OptimizerParamGroup>;

struct OptimizerAdapterCase {
  std::string name;
  std::shared_ptr<const OptimizerAdapter> adapter;
  std::function<std::unique_ptr<torch::optim::Optimizer>(const OptimizerGroups& groups, double lr)> make;
  bool has_state = true;  ///< whether a parameter that was stepped has state
};

inline void PrintTo(const OptimizerAdapterCase& c, std::ostream* out) { *out << c.name; }

inline std::string case_name(const ::testing::TestParamInfo<OptimizerAdapterCase>& info) { return info.param.name; }

/// Parameters, and an optimizer that makes each of them smaller.
struct Training {
  std::vector<OptimizerParameter> parameters;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  const OptimizerAdapter* adapter = nullptr;

  const OptimizerParameter& operator[](const std::string& fqn) const {
    return *std::find_if(parameters.begin(), parameters.end(), [&](const auto& p) { return p.fqn == fqn; });
  }

  /// Gradients of the parameters in `names`, of all if empty; the others have none.
  at::Tensor backward(const std::vector<std::string>& names = {}) {
    at::Tensor loss = at::zeros({});
    for (OptimizerParameter& parameter : parameters) {
      parameter.tensor.mutable_grad() = at::Tensor();
      const bool is_used = names.empty() || std::find(names.begin(), names.end(), parameter.fqn) != names.end();
      if (!is_used || !parameter.tensor.requires_grad()) continue;
      const at::Tensor aim = at::arange(1, parameter.tensor.numel() + 1).cos().view(parameter.tensor.sizes());
      loss = loss + (parameter.tensor - aim.to(parameter.tensor.scalar_type())).pow(4).sum().to(at::kFloat);
    }
    if (loss.requires_grad()) loss.backward();
    return loss;
  }

  void train(int steps, const std::vector<std::string>& names = {}) {
    for (int i = 0; i < steps; ++i) optimizer->step([&] { return backward(names); });
  }

  Dict state_of(const OptimizerParameter& parameter) const {
    const auto it = optimizer->state().find(parameter.tensor.unsafeGetTensorImpl());
    return it == optimizer->state().end() ? Dict() : deep_copy(adapter->read_state(*it->second));
  }

  /// A copy of all that the optimizer and its parameters hold.
  Dict everything() const {
    Dict all;
    for (const OptimizerParameter& parameter : parameters) {
      const at::Tensor& grad = parameter.tensor.grad();
      all[parameter.fqn] = Dict{{"value", parameter.tensor.detach().clone()},
                                {"grad", grad.defined() ? Value(grad.clone()) : None()},
                                {"state", state_of(parameter)}};
    }
    List groups;
    for (const auto& group : optimizer->param_groups()) groups.push_back(adapter->read_options(group.options()));
    all["groups"] = std::move(groups);
    return all;
  }
};

inline void copy_weights(const Training& from, Training& to) {
  const c10::NoGradGuard no_grad;
  for (std::size_t i = 0; i < from.parameters.size(); ++i) {
    to.parameters[i].tensor.copy_(from.parameters[i].tensor);
    const at::Tensor& grad = from.parameters[i].tensor.grad();
    to.parameters[i].tensor.mutable_grad() = grad.defined() ? grad.clone() : at::Tensor();
  }
}

/// As a checkpoint gives it back to who knows nothing of it.
inline Dict through_checkpoint(const Dict& state) {
  const auto files = make_memory_file_system();
  FileSystemWriter writer("ckpt", {.file_system = files});
  save({{"optim", state}}, writer);
  FileSystemReader reader("ckpt", {.file_system = files});
  return load_keys(reader).at("optim").as_dict();
}

class OptimizerAdapterSuite : public ::testing::TestWithParam<OptimizerAdapterCase> {
 protected:
  static const OptimizerAdapter& adapter() { return *GetParam().adapter; }
  static bool is_of_group() { return adapter().has_one_state_per_group(); }

  static OptimizerStateOptions options(bool flatten = false, bool strict = true) {
    return {.flatten = flatten, .strict = strict, .adapters = {GetParam().adapter}};
  }

  static Training make_over(std::vector<OptimizerParameter> parameters, double lr) {
    std::vector<at::Tensor> tensors;
    for (const OptimizerParameter& parameter : parameters) tensors.push_back(parameter.tensor);
    return {std::move(parameters), GetParam().make({torch::optim::OptimizerParamGroup(tensors)}, lr), &adapter()};
  }

  static std::vector<OptimizerParameter> make_parameters(c10::ScalarType dtype,
                                                         const std::vector<std::string>& frozen) {
    std::vector<OptimizerParameter> parameters;
    const std::vector<std::pair<std::string, Sizes>> shapes = {
        {"a.weight", {3, 2}}, {"a.bias", {3}}, {"b.weight", {2, 5}}, {"scale", {}}};
    for (const auto& [fqn, sizes] : shapes) {
      const std::int64_t numel = c10::multiply_integers(sizes);
      at::Tensor tensor = at::arange(numel).add(static_cast<double>(numel)).sin().view(sizes).to(dtype);
      tensor.set_requires_grad(std::find(frozen.begin(), frozen.end(), fqn) == frozen.end());
      parameters.push_back({fqn, std::move(tensor), std::nullopt});
    }
    return parameters;
  }

  static Training make(double lr, c10::ScalarType dtype = at::kFloat, const std::vector<std::string>& frozen = {}) {
    return make_over(make_parameters(dtype, frozen), lr);
  }

  static Dict get(const Training& training, bool flatten = false) {
    return get_optimizer_state_dict(training.parameters, *training.optimizer, options(flatten));
  }

  static LoadReport set(Training& training, const Dict& state, const OptimizerStateOptions& options) {
    return set_optimizer_state_dict(training.parameters, *training.optimizer, state, options);
  }

  static void expect_refused(Training& training, const Dict& state, ErrorKind kind, const std::string& text,
                             const OptimizerStateOptions& options) {
    const Dict before = training.everything();
    expect_error(kind, text, [&] { set(training, state, options); });
    EXPECT_EQ(first_difference(training.everything(), before), "") << "changed though refused: " << text;
  }

  /// A copy of weights, gradients and what the getter gives: a state that is not there yet is the initial one here.
  static Dict seen(const Training& training) {
    Dict all = {{"optim", deep_copy(get(training))}};
    for (const OptimizerParameter& parameter : training.parameters) {
      const at::Tensor& grad = parameter.tensor.grad();
      all[parameter.fqn] = List{parameter.tensor.detach().clone(), grad.defined() ? Value(grad.clone()) : None()};
    }
    return all;
  }

  /// Saves `training`, and expects that `fresh` goes on from there as it does itself.
  static void expect_goes_on(Training& training, Training& fresh, bool flatten,
                             const std::vector<std::string>& names = {}) {
    copy_weights(training, fresh);
    const LoadReport report = set(fresh, through_checkpoint(get(training, flatten)), options(flatten));
    EXPECT_TRUE(report.missing.empty() && report.unexpected.empty() && report.converted.empty());
    EXPECT_EQ(first_difference(seen(fresh), seen(training)), "");
    training.train(3, names);
    fresh.train(3, names);
    EXPECT_EQ(first_difference(seen(fresh), seen(training)), "");
  }

  static void for_each_form(const std::function<void(bool flatten)>& body) {
    for (const bool flatten : {false, true}) {
      SCOPED_TRACE(flatten ? "flattened" : "nested");
      body(flatten);
    }
  }

  /// `state.FQN.NAME` for all values of a nested state dict, with their fields.
  static std::vector<std::pair<std::string, StateField>> fields_of(const Training& training, const Dict& nested) {
    std::vector<std::pair<std::string, StateField>> found;
    for (const auto& [fqn, values] : nested.at("state").as_dict()) {
      for (const StateField& field : adapter().state_fields(training.optimizer->param_groups()[0].options())) {
        if (values.as_dict().contains(field.name)) found.emplace_back(to_string(fqn), field);
      }
    }
    return found;
  }

  static Value& value_of(Dict& nested, const std::string& fqn, const StateField& field) {
    return nested.at("state").as_dict().at(fqn).as_dict().at(field.name);
  }

  /// The value itself, or the first of a list that is no None.
  static Value& first_of(Value& value) {
    if (!value.is_list()) return value;
    for (Value& each : value.as_list()) {
      if (!each.is_none()) return each;
    }
    return value;
  }

  static std::string key_of(const std::string& fqn, const StateField& field, bool in_list) {
    return "'state." + fqn + "." + field.name + (in_list ? "." : "'");
  }
};

inline std::int64_t as_count(const Value& value) {
  return value.is_tensor() ? value.as_tensor().to(at::kLong).item<std::int64_t>() : value.as_int();
}

inline std::vector<std::string> keys_of(const Dict& dict) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : dict) keys.push_back(to_string(key));
  return keys;
}

// --- options and fields ----------------------------------------------------------------------------------------------

TEST_P(OptimizerAdapterSuite, HandlesItsOwnOptimizerAndNoOther) {
  const Training training = make(0.1);
  EXPECT_TRUE(adapter().handles(*training.optimizer));
  class Other : public torch::optim::Optimizer {
   public:
    Other() : Optimizer(OptimizerGroups(), std::make_unique<torch::optim::OptimizerOptions>()) {}
    at::Tensor step(LossClosure) override { return {}; }
  };
  EXPECT_FALSE(adapter().handles(Other()));
  expect_error(ErrorKind::kType, "not of its own type",
               [] { adapter().read_options(torch::optim::OptimizerOptions()); });
  expect_error(ErrorKind::kType, "not of its own type",
               [] { adapter().read_state(torch::optim::OptimizerParamState()); });
}

TEST_P(OptimizerAdapterSuite, WritesBackTheOptionsThatItReads) {
  const Training training = make(0.25), other = make(0.5);
  const auto& options = training.optimizer->param_groups()[0].options();
  const Dict read = adapter().read_options(options);
  EXPECT_EQ(keys_of(read), adapter().option_names());
  const auto into = other.optimizer->param_groups()[0].options().clone();
  const OptionsResult result = adapter().write_options(*into, read);
  EXPECT_TRUE(result.faults.empty() && result.missing.empty() && result.unexpected.empty());
  EXPECT_EQ(first_difference(adapter().read_options(*into), read), "");
  EXPECT_EQ(into->get_lr(), 0.25);
}

TEST_P(OptimizerAdapterSuite, TellsAllThatIsWrongWithOptions) {
  Training training = make(0.25);
  const auto into = training.optimizer->param_groups()[0].options().clone();
  const Dict before = adapter().read_options(*into);
  Dict wrong = {{"not an option", 1}};
  for (const std::string& name : adapter().option_names()) wrong[name] = Dict{{"no", "option is a dict"}};
  const OptionsResult result = adapter().write_options(*into, wrong);
  EXPECT_EQ(result.unexpected, std::vector<std::string>{"not an option"});
  EXPECT_EQ(first_difference(adapter().read_options(*into), before), "");
  const OptionsResult nothing = adapter().write_options(*into, {});
  EXPECT_FALSE(nothing.missing.empty());
  for (const std::string& name : nothing.missing) {
    EXPECT_TRUE(std::any_of(result.faults.begin(), result.faults.end(), [&](const auto& f) {
      return f.option == name;
    })) << name;
  }
}

TEST_P(OptimizerAdapterSuite, ListsTheFieldsOfItsState) {
  Training training = make(0.1);
  const auto& options = training.optimizer->param_groups()[0].options();
  training.train(2);
  std::vector<std::string> names;
  for (const StateField& field : adapter().state_fields(options)) names.push_back(field.name);
  for (const OptimizerParameter& parameter : training.parameters) {
    for (const std::string& name : keys_of(training.state_of(parameter))) {
      EXPECT_NE(std::find(names.begin(), names.end(), name), names.end()) << name;
    }
    const Dict initial = adapter().initial_state(parameter.tensor, options);
    for (const StateField& field : adapter().state_fields(options)) {
      EXPECT_EQ(initial.contains(field.name), field.is_needed) << field.name;
    }
  }
}

// --- asking ----------------------------------------------------------------------------------------------------------

TEST_P(OptimizerAdapterSuite, AskingChangesNothing) {
  for_each_form([](bool flatten) {
    for (const int moment : {1, 2, 3}) {  // before any gradient; with gradients and no step; after two steps
      SCOPED_TRACE(moment);
      Training training = make(0.1), twin = make(0.1);
      if (moment == 2) training.backward(), twin.backward();
      if (moment == 3) training.train(2), twin.train(2);
      const Dict before = training.everything();
      get(training, flatten);
      EXPECT_EQ(first_difference(training.everything(), before), "");
      training.train(1);
      twin.train(1);
      EXPECT_EQ(first_difference(training.everything(), twin.everything()), "");
    }
  });
}

TEST_P(OptimizerAdapterSuite, GivesLiveTensorsUnderTheNamesOfPythonsForms) {
  Training training = make(0.1);
  training.train(2);
  const Dict nested = get(training), flat = get(training, true);
  const Dict& group = nested.at("param_groups").as_list().at(0).as_dict();
  std::vector<std::string> names = adapter().option_names();
  names.emplace_back("params");
  EXPECT_EQ(keys_of(group), names);
  EXPECT_EQ(group.at("params").as_list().size(), training.parameters.size());
  EXPECT_EQ(nested.at("state").as_dict().size(), !GetParam().has_state ? 0
                                                 : is_of_group()       ? 1
                                                                       : training.parameters.size());
  for (const auto& [fqn, field] : fields_of(training, nested)) {
    const Value& value = nested.at("state").as_dict().at(fqn).as_dict().at(field.name);
    const Value& flattened = flat.at("state." + fqn + "." + field.name);
    EXPECT_EQ(first_difference(value, flattened), "");
    if (field.kind == StateFieldKind::kLikeParameter) {
      EXPECT_TRUE(value.as_tensor().is_same(flattened.as_tensor()));
    }
  }
  for (const OptimizerParameter& parameter : training.parameters) {
    for (const std::string& name : adapter().option_names()) {
      EXPECT_EQ(first_difference(flat.at("param_groups." + parameter.fqn + "." + name), group.at(name)), "");
    }
    EXPECT_EQ(flat.contains("param_groups." + parameter.fqn + ".params"), is_of_group());
  }
}

// --- round trips -----------------------------------------------------------------------------------------------------

TEST_P(OptimizerAdapterSuite, GoesOnBitForBitInEveryDtype) {
  for_each_form([](bool flatten) {
    for (const c10::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
      SCOPED_TRACE(c10::toString(dtype));
      Training training = make(0.125, dtype), fresh = make(0.5, dtype);
      training.train(3);
      expect_goes_on(training, fresh, flatten);
    }
  });
}

TEST_P(OptimizerAdapterSuite, GoesOnFromBeforeTheFirstStep) {
  for_each_form([](bool flatten) {
    Training training = make(0.125), fresh = make(0.5), trained = make(0.5);
    trained.train(2);
    training.backward();
    copy_weights(training, trained);
    set(trained, deep_copy(get(training, flatten)), options(flatten));
    EXPECT_EQ(first_difference(seen(trained), seen(training)), "") << "as never stepped";
    expect_goes_on(training, fresh, flatten);
  });
}

TEST_P(OptimizerAdapterSuite, GoesOnWithParametersOfSeveralDtypes) {
  if (is_of_group()) return;  // one vector has one dtype
  for_each_form([](bool flatten) {
    const auto mixed = [] {
      std::vector<OptimizerParameter> parameters = make_parameters(at::kFloat, {});
      parameters[0] = make_parameters(at::kBFloat16, {})[0];
      parameters[2] = make_parameters(at::kDouble, {})[2];
      return parameters;
    };
    Training training = make_over(mixed(), 0.125), fresh = make_over(mixed(), 0.5);
    training.train(3);
    expect_goes_on(training, fresh, flatten);
  });
}

TEST_P(OptimizerAdapterSuite, GoesOnWithFrozenAndUnusedParameters) {
  for_each_form([](bool flatten) {
    const std::vector<std::string> used = {"a.bias", "scale"};
    for (const char* frozen : {"a.weight", "b.weight"}) {
      Training training = make(0.125, at::kFloat, {frozen}), fresh = make(0.5, at::kFloat, {frozen});
      training.train(3, used);
      expect_goes_on(training, fresh, flatten, used);
      // What was unused and frozen is stepped for the first time.
      for (Training* each : {&training, &fresh}) (*each)[frozen].tensor.requires_grad_(true);
      training.train(2);
      fresh.train(2);
      EXPECT_EQ(first_difference(seen(fresh), seen(training)), "");
    }
  });
}

TEST_P(OptimizerAdapterSuite, GoesOnWithSeveralGroupsMatchedByName) {
  if (is_of_group()) return;
  const auto in_groups = [](const std::vector<std::vector<int>>& indices) {
    Training training = make(0.25);
    OptimizerGroups groups;
    for (const std::vector<int>& group : indices) {
      std::vector<at::Tensor> tensors;
      for (const int index : group) tensors.push_back(training.parameters[static_cast<std::size_t>(index)].tensor);
      groups.emplace_back(tensors);
    }
    training.optimizer = GetParam().make(groups, 0.25);
    return training;
  };
  for_each_form([&](bool flatten) {
    Training training = in_groups({{0, 1}, {2, 3}}), fresh = in_groups({{3, 2}, {1}, {0}});
    training.optimizer->param_groups()[1].options().set_lr(0.0625);
    training.train(3);
    copy_weights(training, fresh);
    set(fresh, through_checkpoint(get(training, flatten)), options(flatten));
    EXPECT_EQ(fresh.optimizer->param_groups()[0].options().get_lr(), 0.0625);
    EXPECT_EQ(fresh.optimizer->param_groups()[2].options().get_lr(), 0.25);
    training.train(3);
    fresh.train(3);
    const Dict expected = training.everything(), actual = fresh.everything();
    for (const OptimizerParameter& parameter : training.parameters) {
      EXPECT_EQ(first_difference(actual.at(parameter.fqn), expected.at(parameter.fqn)), "") << parameter.fqn;
    }
  });
}

TEST_P(OptimizerAdapterSuite, NamesATiedParameterOnce) {
  for_each_form([](bool flatten) {
    Training training = make(0.125), fresh = make(0.5);
    for (Training* each : {&training, &fresh}) each->parameters.push_back({"tied", (*each)["a.weight"].tensor, {}});
    training.train(2);
    for (const std::string& key : keys_of(get(training, true))) EXPECT_EQ(key.find("tied"), std::string::npos) << key;
    expect_goes_on(training, fresh, flatten);
  });
}

TEST_P(OptimizerAdapterSuite, SharesNoMemoryWithWhatItWasGiven) {
  Training training = make(0.125), fresh = make(0.5);
  training.train(2);
  for (int time = 0; time < 2; ++time) {  // into no state, and into state
    Dict given = deep_copy(get(training));
    set(fresh, given, options());
    const Dict before = fresh.everything();
    for (const auto& [fqn, field] : fields_of(training, given)) {
      Value& value = value_of(given, fqn, field);
      List single = {value};
      for (Value& each : value.is_list() ? value.as_list() : single) {
        if (each.is_tensor()) each.as_tensor().fill_(9);
      }
    }
    EXPECT_EQ(first_difference(fresh.everything(), before), "");
  }
}

// --- what is missing and what is too much ----------------------------------------------------------------------------

TEST_P(OptimizerAdapterSuite, NamesMissingValuesOfState) {
  for_each_form([](bool flatten) {
    Training training = make(0.125);
    training.train(2);
    for (const auto& [fqn, field] : fields_of(training, get(training))) {
      if (!field.is_needed) continue;
      Dict state = deep_copy(get(training, flatten));
      std::string key = key_of(fqn, field, false);
      if (flatten) {
        state.erase("state." + fqn + "." + field.name);
        // Of a state with one value nothing is left.
        if (training.state_of(training[fqn]).size() == 1) key = "'state." + fqn + "'";
      } else {
        state.at("state").as_dict().at(fqn).as_dict().erase(field.name);
      }
      expect_refused(training, state, ErrorKind::kKey, key + ": is missing", options(flatten));
    }
  });
}

TEST_P(OptimizerAdapterSuite, NamesMissingStateAndLeavesItAsNeverStepped) {
  if (!GetParam().has_state) return;
  Training training = make(0.125);
  training.train(2);
  const std::string fqn = is_of_group() ? "a.weight" : "b.weight";
  Dict state = deep_copy(get(training));
  state.at("state").as_dict().erase(fqn);
  expect_refused(training, state, ErrorKind::kKey, "'state." + fqn + "': is missing", options());

  Training fresh = make(0.5);
  const Dict never_stepped = fresh.state_of(fresh[fqn]);
  fresh.train(1);
  const LoadReport report = set(fresh, state, options(false, false));
  EXPECT_EQ(report.missing, std::vector<std::string>{"state." + fqn});
  for (const OptimizerParameter& parameter : training.parameters) {
    EXPECT_EQ(first_difference(fresh.state_of(fresh[parameter.fqn]),
                               parameter.fqn == fqn ? never_stepped : training.state_of(parameter)),
              "")
        << parameter.fqn;
  }
  fresh.train(1);
}

TEST_P(OptimizerAdapterSuite, NamesMissingOptions) {
  for_each_form([](bool flatten) {
    Training training = make(0.125);
    training.train(1);
    const auto clone = training.optimizer->param_groups()[0].options().clone();
    for (const std::string& name : adapter().write_options(*clone, {}).missing) {
      Dict state = deep_copy(get(training, flatten));
      const std::string key = flatten ? "param_groups.a.bias." + name : "param_groups.0." + name;
      if (flatten) {
        state.erase(key);
      } else {
        state.at("param_groups").as_list().at(0).as_dict().erase(name);
      }
      expect_refused(training, state, ErrorKind::kKey, "'" + key + "': is missing", options(flatten));
      const Dict before = training.everything();
      EXPECT_EQ(set(training, state, options(flatten, false)).missing, std::vector<std::string>{key});
      EXPECT_EQ(first_difference(training.everything(), before), "");
    }
  });
}

TEST_P(OptimizerAdapterSuite, ReportsWhatItDoesNotKnow) {
  Training training = make(0.125);
  training.train(2);
  Dict state = deep_copy(get(training));
  state.at("param_groups").as_list().at(0).as_dict()["initial_lr"] = 0.5;
  Dict& states = state.at("state").as_dict();
  std::vector<std::string> expected = {"param_groups.0.initial_lr"};
  if (!states.empty()) {
    states.at("a.weight").as_dict()["odd"] = 1;
    expected.emplace_back("state.a.weight.odd");
  }
  states["gone.weight"] = Dict{{"step", 1}};
  expected.emplace_back("state.gone.weight");
  const Dict before = training.everything();
  EXPECT_EQ(set(training, state, options()).unexpected, expected);
  EXPECT_EQ(first_difference(training.everything(), before), "");
}

// --- wrong values ----------------------------------------------------------------------------------------------------

TEST_P(OptimizerAdapterSuite, RefusesAllWrongShapesAtOnce) {
  Training training = make(0.125);
  training.train(3);
  Dict state = deep_copy(get(training));
  std::vector<std::string> faulty;
  for (const auto& [fqn, field] : fields_of(training, get(training))) {
    Value& value = value_of(state, fqn, field);
    if (value.is_list() && value.as_list().empty()) continue;
    first_of(value) = at::ones({2, 2, 2});
    faulty.push_back(key_of(fqn, field, value.is_list()));
  }
  EXPECT_EQ(faulty.empty(), !GetParam().has_state);
  for (const std::string& key : faulty) expect_refused(training, state, ErrorKind::kShape, key, options());
}

TEST_P(OptimizerAdapterSuite, RefusesOtherKindsOfValues) {
  Training training = make(0.125);
  training.train(3);
  for (const Value& wrong : {Value("text"), Value(Dict{{"a", 1}}), Value(true)}) {
    Dict state = deep_copy(get(training));
    for (const auto& [fqn, field] : fields_of(training, get(training))) value_of(state, fqn, field) = wrong;
    for (const auto& [fqn, field] : fields_of(training, get(training))) {
      expect_refused(training, state, ErrorKind::kType, key_of(fqn, field, false), options());
    }
  }
}

TEST_P(OptimizerAdapterSuite, RefusesOtherDtypesUnlessThePolicyAllowsThem) {
  Training training = make(0.125);
  training.train(3);
  Dict state = deep_copy(get(training));
  std::vector<std::string> faulty;
  for (const auto& [fqn, field] : fields_of(training, get(training))) {
    if (field.kind == StateFieldKind::kCounter || field.kind == StateFieldKind::kNumber) continue;
    Value& value = value_of(state, fqn, field);
    Value& first = first_of(value);
    if (!first.is_tensor()) continue;
    first = first.as_tensor().to(at::kDouble);
    faulty.push_back(key_of(fqn, field, value.is_list()));
  }
  if (faulty.empty()) return;
  for (const std::string& key : faulty) expect_refused(training, state, ErrorKind::kType, key, options());
  Training fresh = make(0.5);
  copy_weights(training, fresh);
  OptimizerStateOptions any = options();
  any.dtype_policy = DtypePolicy::kAny;
  EXPECT_EQ(set(fresh, state, any).converted.size(), faulty.size());
  EXPECT_EQ(first_difference(fresh.everything(), training.everything()), "");
}

TEST_P(OptimizerAdapterSuite, TakesCountersInEveryForm) {
  std::vector<std::pair<Value, std::int64_t>> forms = {{Value(5), 5}, {Value(5.0), 5}, {Value(0), 0}};
  for (const c10::ScalarType dtype :
       {at::kByte, at::kChar, at::kShort, at::kInt, at::kLong, at::kHalf, at::kBFloat16, at::kFloat, at::kDouble,
        at::kUInt16, at::kUInt32, at::kUInt64, at::kFloat8_e4m3fn}) {
    forms.emplace_back(at::full({}, 5, at::kFloat).to(dtype), 5);
  }
  const std::int64_t beyond_float = (std::int64_t{1} << 24) + 1, beyond_double = (std::int64_t{1} << 53) + 1;
  forms.emplace_back(Value(beyond_float), beyond_float);
  forms.emplace_back(at::full({}, beyond_double, at::kLong), beyond_double);
  Training training = make(0.125);
  training.train(2);
  const Dict sound = deep_copy(get(training));
  for (const auto& [fqn, field] : fields_of(training, sound)) {
    if (field.kind != StateFieldKind::kCounter) continue;
    for (const auto& [form, count] : forms) {
      Dict state = deep_copy(sound);
      value_of(state, fqn, field) = form;
      set(training, state, options());
      EXPECT_EQ(as_count(training.state_of(training[fqn]).at(field.name)), count);
      const Dict again = through_checkpoint(get(training));
      set(training, again, options());
      EXPECT_EQ(as_count(training.state_of(training[fqn]).at(field.name)), count);
    }
    const Value too_large = 9223372036854775808.0, fraction = 0.5, nan = std::numeric_limits<double>::quiet_NaN();
    for (const Value& wrong : {Value(-1), too_large, fraction, nan, Value(at::full({}, -2, at::kFloat))}) {
      Dict state = deep_copy(sound);
      value_of(state, fqn, field) = wrong;
      expect_refused(training, state, ErrorKind::kInvalidArgument, key_of(fqn, field, false), options());
    }
    Dict state = deep_copy(sound);
    value_of(state, fqn, field) = at::ones({}, at::kBool);
    expect_refused(training, state, ErrorKind::kType, key_of(fqn, field, false), options());
  }
}

// --- parts of parameters ---------------------------------------------------------------------------------------------

inline std::vector<OptimizerParameter> laid_out(const Placement& placement) {
  const auto mesh = DeviceMesh::make({2}, 1);
  const DTensorLayout layout = {mesh, {placement}, {placement.is_shard() ? 5 : 2, 3}};
  return {{"w", at::ones({2, 3}).requires_grad_(), layout}, {"b", at::ones({3}).requires_grad_(), std::nullopt}};
}

TEST_P(OptimizerAdapterSuite, GivesPartsOfParametersAsDTensors) {
  const Placement rows = Placement::shard(0);
  Training training = make_over(laid_out(rows), 0.125), fresh = make_over(laid_out(rows), 0.5);
  training.train(2);
  if (is_of_group()) {
    expect_error(ErrorKind::kUnsupported, "'w'", [&] { get(training); });
    expect_error(ErrorKind::kUnsupported, "'w'", [&] { set(training, {}, options()); });
    return;
  }
  for_each_form([&](bool flatten) {
    const Dict state = deep_copy(get(training, flatten)), nested = get(training);
    for (const auto& [fqn, field] : fields_of(training, nested)) {
      const Dict& values = nested.at("state").as_dict().at(fqn).as_dict();
      if (fqn == "w" && field.kind == StateFieldKind::kLikeParameter) {
        EXPECT_EQ(values.at(field.name).as_dtensor().global_sizes(), (Sizes{5, 3}));
      } else {
        EXPECT_NE(values.at(field.name).kind(), ValueKind::kDTensor);
      }
    }
    copy_weights(training, fresh);
    set(fresh, state, options(flatten));
    EXPECT_EQ(first_difference(fresh.everything(), training.everything()), "");
    training.train(2);
    fresh.train(2);
    EXPECT_EQ(first_difference(fresh.everything(), training.everything()), "");
  });
}

TEST_P(OptimizerAdapterSuite, RefusesOtherParts) {
  Training training = make_over(laid_out(Placement::shard(0)), 0.125);
  if (is_of_group()) return;
  training.train(2);
  const Dict state = get(training);
  if (fields_of(training, state).empty()) return;
  Training elsewhere = make_over(laid_out(Placement::shard(0)), 0.5);
  elsewhere.parameters[0].layout->global_sizes = {4, 3};
  expect_refused(elsewhere, state, ErrorKind::kShape, "[5, 3]", options());
  elsewhere.parameters[0].layout = DTensorLayout{DeviceMesh::make({3}, 1), {Placement::shard(0)}, {5, 3}};
  expect_refused(elsewhere, state, ErrorKind::kInvalidArgument, "spread otherwise", options());
  elsewhere.parameters[0].layout.reset();
  expect_refused(elsewhere, state, ErrorKind::kType, "DTensor", options());
}

TEST_P(OptimizerAdapterSuite, GoesOnWithReplicatedParameters) {
  for_each_form([](bool flatten) {
    const Placement whole = Placement::replicate();
    Training training = make_over(laid_out(whole), 0.125), fresh = make_over(laid_out(whole), 0.5);
    training.train(3);
    copy_weights(training, fresh);
    set(fresh, deep_copy(get(training, flatten)), options(flatten));
    training.train(3);
    fresh.train(3);
    EXPECT_EQ(first_difference(fresh.everything(), training.everything()), "");
  });
}

}  // namespace dcp::test

// State of optimizers: its form, what asking and setting change and what not, names and groups.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "test/model_state/optimizer_support.h"
#include "test/support/expect_error.h"
#include "torch_dcp/model_state/model_state_dict.h"
#include "torch_dcp/model_state/optimizer_adapter.h"
#include "torch_dcp/model_state/optimizer_positional_state.h"
#include "torch_dcp/model_state/optimizer_state_dict.h"
#include "torch_dcp/state_dict/equal.h"
#include "torch_dcp/state_dict/stateful.h"
#include "torch_dcp/tensor/device_mesh.h"

namespace dcp::test {
namespace {

// --- form ------------------------------------------------------------------------------------------------------------

TEST(OptimizerFormTest, NestedHasPythonsOptionsInPythonsOrderAndTypes) {
  const Net net({"one"});
  optim::AdamW adamw(net.parameters(), optim::AdamWOptions(0.5).betas({0.8, 0.9}));
  const Dict state = get_optimizer_state_dict(net, adamw);
  const Dict expected = {{"lr", 0.5},
                         {"betas", Tuple{0.8, 0.9}},
                         {"eps", 1e-8},
                         {"weight_decay", 0.01},
                         {"amsgrad", false},
                         {"maximize", false},
                         {"foreach", None()},
                         {"capturable", false},
                         {"differentiable", false},
                         {"fused", None()},
                         {"decoupled_weight_decay", true},
                         {"params", List{"one.weight", "one.bias"}}};
  EXPECT_EQ(first_difference(state.at("param_groups"), List{expected}), "");
  EXPECT_EQ(keys(state), (std::vector<std::string>{"state", "param_groups"}));
  const Dict& weight = state.at("state").as_dict().at("one.weight").as_dict();
  EXPECT_EQ(keys(weight), (std::vector<std::string>{"step", "exp_avg", "exp_avg_sq"}));
  EXPECT_TRUE(bit_equal(weight.at("step"), torch::zeros({}, torch::kFloat)));

  optim::SGD sgd(net.parameters(), optim::SGDOptions(0.25));
  const Dict sgd_expected = {{"lr", 0.25},        {"momentum", 0.0},
                             {"dampening", 0.0},  {"weight_decay", 0.0},
                             {"nesterov", false}, {"maximize", false},
                             {"foreach", None()}, {"differentiable", false},
                             {"fused", None()},   {"params", List{"one.weight", "one.bias"}}};
  EXPECT_EQ(first_difference(get_optimizer_state_dict(net, sgd),
                             Dict{{"state", Dict()}, {"param_groups", List{sgd_expected}}}),
            "");
}

TEST(OptimizerFormTest, FlattenedRepeatsOptionsForEachParameter) {
  const Net net({"one"});
  optim::Adam adam(net.parameters(), optim::AdamOptions(0.5));
  const Dict state = get_optimizer_state_dict(net, adam, form(true));
  EXPECT_EQ(state.size(), 2 * (3 + 11));
  EXPECT_TRUE(state.at("state.one.bias.exp_avg").as_tensor().sizes() == c10::IntArrayRef({5}));
  EXPECT_EQ(state.at("param_groups.one.weight.lr").as_double(), 0.5);
  EXPECT_FALSE(state.contains("param_groups.one.weight.params"));
}

TEST(OptimizerFormTest, MomentsAreTheLiveTensors) {
  const Net net({"one"});
  optim::Adam adam(net.parameters(), optim::AdamOptions(0.5));
  train(net, adam, 1);
  const Dict state = get_optimizer_state_dict(net, adam, form(true));
  const auto& typed =
      static_cast<const optim::AdamParamState&>(*adam.state().at(net["one.weight"].unsafeGetTensorImpl()));
  EXPECT_TRUE(state.at("state.one.weight.exp_avg").as_tensor().is_same(typed.exp_avg()));
}

TEST(OptimizerFormTest, StepBeyondWhatFloat32CountsExactly) {
  const Net net({"one"});
  for (const std::int64_t step : {std::int64_t{1} << 24, (std::int64_t{1} << 24) + 1}) {
    optim::Adam adam(net.parameters(), optim::AdamOptions(0.5)), other(net.parameters(), optim::AdamOptions(0.5));
    train(net, adam, 1);
    auto& typed = static_cast<optim::AdamParamState&>(*adam.state().at(net["one.weight"].unsafeGetTensorImpl()));
    typed.step(step);
    const Dict state = stored_form(get_optimizer_state_dict(net, adam));
    const at::Tensor stored = state.at("state").as_dict().at("one.weight").as_dict().at("step").as_tensor();
    EXPECT_EQ(stored.scalar_type(), step > (1 << 24) ? at::kLong : at::kFloat);
    set_optimizer_state_dict(net, other, state);
    EXPECT_EQ(difference(net, other, net, adam), "");
  }
}

// --- O21, O22 --------------------------------------------------------------------------------------------------------

TEST(OptimizerStateTest, O21_AskingChangesNothing) {
  for (const Case& c : cases()) {
    for (const int moment : {1, 2, 3}) {  // before any gradient; with gradients and no step; after two steps
      for (const bool flatten : {false, true}) {
        SCOPED_TRACE(c10::str(c.name, ", moment ", moment, flatten ? ", flattened" : ", nested"));
        const Net net, twin;
        const OptimizerPtr optimizer = c.make(net.parameters(), 0.1), of_twin = c.make(twin.parameters(), 0.1);
        if (moment == 2) backward(net), backward(twin);
        if (moment == 3) train(net, *optimizer, 2), train(twin, *of_twin, 2);
        const Dict before = everything(net, *optimizer);
        get_optimizer_state_dict(net, *optimizer, form(flatten));
        EXPECT_EQ(first_difference(everything(net, *optimizer), before), "");
        train(net, *optimizer, 1);
        train(twin, *of_twin, 1);
        EXPECT_EQ(difference(net, *optimizer, twin, *of_twin), "");
        if (!c.name.starts_with("Adam")) continue;
        const Dict now = everything(net, *optimizer);
        const Value& step = now.at("one.weight").as_dict().at("state").as_dict().at("step");
        EXPECT_EQ(first_difference(step, torch::full({}, moment == 3 ? 3.0f : 1.0f)), "");
      }
    }
  }
}

/// Counts its steps.
struct CountingAdam : optim::Adam {
  using Adam::Adam;
  at::Tensor step(LossClosure closure = nullptr) override {
    ++steps;
    return Adam::step(std::move(closure));
  }
  int steps = 0;
};

TEST(OptimizerStateTest, O21_NoStepIsMadeAndNothingIsDerived) {
  const Net net;
  CountingAdam adam(net.parameters(), optim::AdamOptions(0.1));
  int derived = 0;
  for (const at::Tensor& parameter : net.parameters()) parameter.register_hook([&](const at::Tensor&) { ++derived; });
  for (const bool flatten : {false, true}) get_optimizer_state_dict(net, adam, form(flatten));
  EXPECT_EQ(adam.steps, 0);
  EXPECT_EQ(derived, 0);
  backward(net);
  for (const bool flatten : {false, true}) get_optimizer_state_dict(net, adam, form(flatten));
  EXPECT_EQ(adam.steps, 0);
  EXPECT_EQ(derived, 4) << "of the pass above";
}

TEST(OptimizerStateTest, O21_ACopyFromBeforeTheFirstStepStepsLikeTheTwin) {
  for (const Case& c : cases()) {
    for (const bool flatten : {false, true}) {
      SCOPED_TRACE(c10::str(c.name, flatten ? ", flattened" : ", nested"));
      const Net net, copy;
      const OptimizerPtr optimizer = c.make(net.parameters(), 0.1), of_copy = c.make(copy.parameters(), 0.5);
      backward(net);
      backward(copy);
      pass_through_checkpoint(net, *optimizer, copy, *of_copy, flatten);
      train(net, *optimizer, 1);
      train(copy, *of_copy, 1);
      EXPECT_EQ(difference(net, *optimizer, copy, *of_copy), "");
      train(net, *optimizer, 1);
      train(copy, *of_copy, 1);
      EXPECT_EQ(difference(net, *optimizer, copy, *of_copy), "");
    }
  }
}

TEST(OptimizerStateTest, O21_SgdWithMomentumThatNeverSteppedTakesBackItsState) {
  const Net net;
  optim::SGD sgd(net.parameters(), optim::SGDOptions(0.1).momentum(0.9));
  const Dict fresh = deep_copy(get_optimizer_state_dict(net, sgd));
  const at::Tensor buffer = fresh.at("state").as_dict().at("one.bias").as_dict().at("momentum_buffer").as_tensor();
  EXPECT_TRUE(torch::equal(buffer, torch::zeros(5)) && buffer.signbit().all().item<bool>());
  train(net, sgd, 1);
  EXPECT_EQ(sgd.state().size(), 4);
  set_optimizer_state_dict(net, sgd, fresh);
  EXPECT_TRUE(sgd.state().empty());
}

void expect_only_the_optimizer_is_set(const Case& c, bool flatten, const Place& place) {
  SCOPED_TRACE(c10::str(c.name, flatten ? ", flattened" : ", nested"));
  const Net net;
  Net copy;
  const OptimizerPtr optimizer = c.make(net.parameters(), 0.1), of_copy = c.make(copy.parameters(), 0.7);
  train(net, *optimizer, 3);
  copy_weights(net, copy);
  backward(net);
  backward(copy);
  pass_through_checkpoint(net, *optimizer, copy, *of_copy, flatten, place, c.has_history);
  EXPECT_EQ(difference(net, *optimizer, copy, *of_copy), "") << "weights and gradients stay, the rest is taken";
  EXPECT_EQ(of_copy->state().empty(), !c.has_state);
  const Dict now = get_optimizer_state_dict(copy, *of_copy, form(flatten));
  const bool has_entries =
      flatten ? to_string(now.begin()->first).starts_with("state.") : !now.at("state").as_dict().empty();
  EXPECT_EQ(has_entries, c.has_state);
  train(net, *optimizer, 3);
  train(copy, *of_copy, 3);
  EXPECT_EQ(difference(net, *optimizer, copy, *of_copy), "");
}

TEST(OptimizerStateTest, O22_SettingChangesOnlyTheOptimizer) {
  alone_and_on_two_ranks([](const Place& place) {
    for (const Case& c : cases()) {
      for (const bool flatten : {false, true}) expect_only_the_optimizer_is_set(c, flatten, place);
    }
  });
}

TEST(OptimizerStateTest, O22_TheGivenDictIsNotAliased) {
  const Net net, other;
  optim::Adam adam(net.parameters(), optim::AdamOptions(0.1)), of_other(other.parameters(), optim::AdamOptions(0.1));
  train(net, adam, 2);
  for (int time = 0; time < 2; ++time) {  // into no state, and into state
    Dict given = deep_copy(get_optimizer_state_dict(net, adam));
    set_optimizer_state_dict(other, of_other, given);
    const Dict before = everything(other, of_other);
    given.at("state").as_dict().at("one.weight").as_dict().at("exp_avg").as_tensor().fill_(9);
    EXPECT_EQ(first_difference(everything(other, of_other), before), "");
  }
}

TEST(OptimizerStateTest, O22_StateThatIsThereIsWrittenInPlace) {
  const Net net;
  optim::Adam adam(net.parameters(), optim::AdamOptions(0.1));
  train(net, adam, 1);
  auto& typed = static_cast<optim::AdamParamState&>(*adam.state().at(net["one.weight"].unsafeGetTensorImpl()));
  auto& options = static_cast<optim::AdamOptions&>(adam.param_groups()[0].options());
  const at::Tensor held = typed.exp_avg();
  const Dict stored = deep_copy(get_optimizer_state_dict(net, adam));
  train(net, adam, 1);
  options.lr(5);
  set_optimizer_state_dict(net, adam, stored);
  EXPECT_TRUE(typed.exp_avg().is_same(held));
  EXPECT_EQ(typed.step(), 1);
  EXPECT_EQ(options.lr(), 0.1);
  EXPECT_TRUE(bit_equal(held, stored.at("state").as_dict().at("one.weight").as_dict().at("exp_avg")));
}

// --- O23: groups -----------------------------------------------------------------------------------------------------

optim::AdamWOptions odd_options() {
  return optim::AdamWOptions(7).betas({0.1, 0.2}).eps(0.5).weight_decay(3).amsgrad(true);
}

OptimizerPtr with_groups(const std::vector<Parameters>& groups, const std::vector<optim::AdamWOptions>& options) {
  std::vector<optim::OptimizerParamGroup> made;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    made.emplace_back(groups[i], std::make_unique<optim::AdamWOptions>(options[i]));
  }
  return std::make_unique<optim::AdamW>(made, odd_options());
}

/// G0 {one.weight, one.bias}, G1 {two.weight, two.bias}, G2 empty.
OptimizerPtr saved_groups(const Net& net) {
  OptimizerPtr optimizer = with_groups({{net["one.weight"], net["one.bias"]}, {net["two.weight"], net["two.bias"]}, {}},
                                       {odd_options(), odd_options(), odd_options()});
  const std::vector<optim::AdamWOptions> options = {optim::AdamWOptions(0.1),
                                                    optim::AdamWOptions(0.2).weight_decay(0.3).betas({0.8, 0.9}),
                                                    optim::AdamWOptions(0.4).eps(1e-3)};
  for (std::size_t i = 0; i < options.size(); ++i) {
    optimizer->param_groups()[i].set_options(std::make_unique<optim::AdamWOptions>(options[i]));
  }
  return optimizer;
}

const optim::AdamWOptions& options_of(const optim::Optimizer& optimizer, std::size_t group) {
  return static_cast<const optim::AdamWOptions&>(optimizer.param_groups()[group].options());
}

TEST(OptimizerStateTest, O23_GroupsAreMatchedByName) {
  for (const bool flatten : {false, true}) {
    SCOPED_TRACE(flatten ? "flattened" : "nested");
    const Net net;
    const OptimizerPtr optimizer = saved_groups(net);
    train(net, *optimizer, 2);
    Net other({"two", "one"});
    copy_weights(net, other);
    const OptimizerPtr of_other =
        with_groups({{}, {other["two.bias"], other["two.weight"]}, {other["one.bias"], other["one.weight"]}},
                    {odd_options(), odd_options(), odd_options()});
    const Dict stored = stored_form(get_optimizer_state_dict(net, *optimizer, form(flatten)));
    const LoadReport report = set_optimizer_state_dict(other, *of_other, stored, form(flatten));
    EXPECT_TRUE(report.missing.empty() && report.unexpected.empty() && report.converted.empty());
    EXPECT_TRUE(options_of(*of_other, 1) == options_of(*optimizer, 1));
    EXPECT_TRUE(options_of(*of_other, 2) == options_of(*optimizer, 0));
    // A flattened dict says nothing of empty groups: theirs stay.
    EXPECT_TRUE(options_of(*of_other, 0) == (flatten ? odd_options() : options_of(*optimizer, 2)));
    train(net, *optimizer, 3);
    train(other, *of_other, 3);
    const Dict expected = everything(net, *optimizer), actual = everything(other, *of_other);
    for (const char* name : {"one.weight", "one.bias", "two.weight", "two.bias"}) {
      EXPECT_EQ(first_difference(actual.at(name), expected.at(name)), "") << name;
    }
  }
}

void expect_another_order_passes_destinations(bool flatten) {
  SCOPED_TRACE(flatten ? "flattened" : "nested");
  const Net net;
  const OptimizerPtr optimizer = saved_groups(net);
  train(net, *optimizer, 2);
  Net other({"two", "one"});
  copy_weights(net, other);
  const OptimizerPtr of_other =
      with_groups({{other["two.bias"], other["two.weight"]}, {}, {other["one.bias"], other["one.weight"]}},
                  {odd_options(), odd_options(), odd_options()});
  for (auto& group : of_other->param_groups()) group.set_options(std::make_unique<optim::AdamWOptions>(9));
  pass_through_checkpoint(net, *optimizer, other, *of_other, flatten);
  train(net, *optimizer, 3);
  train(other, *of_other, 3);
  const Dict expected = everything(net, *optimizer), actual = everything(other, *of_other);
  for (const char* name : {"one.weight", "one.bias", "two.weight", "two.bias"}) {
    EXPECT_EQ(first_difference(actual.at(name), expected.at(name)), "") << name;
  }
  EXPECT_TRUE(options_of(*of_other, 1) == (flatten ? optim::AdamWOptions(9) : options_of(*optimizer, 2)));
}

TEST(OptimizerStateTest, O23_ThroughDestinationsOfAnotherOrder) {
  for (const bool flatten : {false, true}) expect_another_order_passes_destinations(flatten);
}

TEST(OptimizerStateTest, O23_AParameterThatNoStoredGroupLists) {
  const Net net({"one"});
  optim::AdamW adamw(net.parameters(), optim::AdamWOptions(0.1));
  train(net, adamw, 1);
  Net wide({"one", "two"});
  for (const bool flatten : {false, true}) {
    const Dict stored = get_optimizer_state_dict(net, adamw, form(flatten));
    optim::AdamW of_wide(wide.parameters(), optim::AdamWOptions(0.5));
    const Dict before = everything(wide, of_wide);
    for (const char* name : {"'param_groups.two.weight': is missing", "'param_groups.two.bias': is missing",
                             "'state.two.bias': is missing"}) {
      expect_error(ErrorKind::kKey, name, [&] { set_optimizer_state_dict(wide, of_wide, stored, form(flatten)); });
    }
    EXPECT_EQ(first_difference(everything(wide, of_wide), before), "");
  }
}

TEST(OptimizerStateTest, O23_OtherGroups) {
  const Net net;
  const OptimizerPtr optimizer = saved_groups(net);
  train(net, *optimizer, 1);
  for (const bool flatten : {false, true}) {
    const Dict stored = get_optimizer_state_dict(net, *optimizer, form(flatten));
    const OptimizerPtr finer =
        with_groups({{net["one.weight"]}, {net["two.weight"], net["two.bias"]}, {net["one.bias"]}},
                    {odd_options(), odd_options(), odd_options()});
    set_optimizer_state_dict(net, *finer, stored, form(flatten));
    EXPECT_TRUE(options_of(*finer, 0) == options_of(*optimizer, 0));
    EXPECT_TRUE(options_of(*finer, 1) == options_of(*optimizer, 1));
    EXPECT_TRUE(options_of(*finer, 2) == options_of(*optimizer, 0));

    const OptimizerPtr coarser = with_groups({{net["one.weight"], net["two.bias"]}}, {odd_options()});
    for (const char* text : {"two sets of options", "one.weight", "two.bias", "['lr']"}) {
      expect_error(ErrorKind::kInvalidArgument, text,
                   [&] { set_optimizer_state_dict(net, *coarser, stored, form(flatten)); });
    }
    EXPECT_TRUE(options_of(*coarser, 0) == odd_options());
  }
}

TEST(OptimizerStateTest, O23_ValuesAsPythonMayHaveThem) {
  const Net net({"one"});
  optim::Adam adam(net.parameters(), optim::AdamOptions(0.5));
  train(net, adam, 1);
  Dict state = deep_copy(get_optimizer_state_dict(net, adam));
  Dict& group = state.at("param_groups").as_list().at(0).as_dict();
  group["lr"] = torch::full({}, 2, torch::kInt);
  group["eps"] = torch::full({}, 0.25, torch::kBFloat16);
  group["weight_decay"] = 3;
  group["betas"] = List{0, torch::full({}, 0.5, torch::kDouble)};
  group["foreach"] = true;
  group["initial_lr"] = 0.5;
  Dict& weight = state.at("state").as_dict().at("one.weight").as_dict();
  weight["step"] = 4;
  weight["odd"] = 1;
  state.at("state").as_dict().at("one.bias").as_dict()["step"] = torch::full({}, 5.0, torch::kDouble);
  state.at("state").as_dict()["gone.weight"] = Dict{{"step", 1}};
  state["more"] = 1;
  const LoadReport report = set_optimizer_state_dict(net, adam, state);
  EXPECT_EQ(report.unexpected, (std::vector<std::string>{"more", "param_groups.0.initial_lr", "state.one.weight.odd",
                                                         "state.gone.weight"}));
  const auto& options = static_cast<const optim::AdamOptions&>(adam.param_groups()[0].options());
  EXPECT_TRUE(options == optim::AdamOptions(2).betas({0, 0.5}).eps(0.25).weight_decay(3));
  const auto step = [&](const char* name) {
    return static_cast<const optim::AdamParamState&>(*adam.state().at(net[name].unsafeGetTensorImpl())).step();
  };
  EXPECT_EQ(step("one.weight"), 4);
  EXPECT_EQ(step("one.bias"), 5);
}

TEST(OptimizerStateTest, AllFaultsAreNamedAndNothingChanges) {
  const Net net;
  optim::Adam adam(net.parameters(), optim::AdamOptions(0.5));
  train(net, adam, 1);
  Dict state = deep_copy(get_optimizer_state_dict(net, adam));
  const Dict before = everything(net, adam);
  Dict& group = state.at("param_groups").as_list().at(0).as_dict();
  group["maximize"] = true;
  group["decoupled_weight_decay"] = true;
  group["lr"] = "fast";
  group["betas"] = Tuple{0.5};
  group.erase("eps");
  Dict& moments = state.at("state").as_dict();
  moments.at("one.weight").as_dict()["step"] = torch::ones(1);
  moments.at("one.bias").as_dict()["step"] = -1;
  moments.at("two.weight").as_dict()["exp_avg"] = torch::ones({5, 4});
  moments.at("two.bias").as_dict()["exp_avg"] = torch::ones(5, torch::kDouble);
  moments.at("two.bias").as_dict()["step"] = 0.5;
  const std::vector<std::string> faults = {
      "'param_groups.0.maximize': ",
      "'param_groups.0.decoupled_weight_decay': ",
      "'param_groups.0.lr': ",
      "'param_groups.0.betas': ",
      "'param_groups.0.eps': is missing",
      "'state.one.weight.step': a number or a tensor without dimensions is needed, a tensor of shape [1] is given",
      "'state.one.bias.step': -1 is no count",
      "'state.two.weight.exp_avg': the given tensor has shape [5, 4], the current one [5, 5]",
      "'state.two.bias.exp_avg': the given tensor is float64",
      "'state.two.bias.step': 0.5 is no count"};
  for (const std::string& fault : faults) {
    expect_error(ErrorKind::kType, fault, [&] { set_optimizer_state_dict(net, adam, state); });
  }
  EXPECT_EQ(first_difference(everything(net, adam), before), "");
}

TEST(OptimizerStateTest, WhatLibTorchCannotDoIsUnsupported) {
  const Net net({"one"});
  optim::SGD sgd(net.parameters(), optim::SGDOptions(0.5));
  optim::AdamW adamw(net.parameters(), optim::AdamWOptions(0.5));
  Dict state = get_optimizer_state_dict(net, sgd, form(true));
  state["param_groups.one.bias.maximize"] = true;
  expect_error(ErrorKind::kUnsupported, "param_groups.one.bias.maximize",
               [&] { set_optimizer_state_dict(net, sgd, state, form(true)); });
  state = get_optimizer_state_dict(net, adamw);
  state.at("param_groups").as_list().at(0).as_dict()["decoupled_weight_decay"] = false;
  expect_error(ErrorKind::kUnsupported, "decoupled_weight_decay", [&] { set_optimizer_state_dict(net, adamw, state); });
}

TEST(OptimizerStateTest, TheOtherFormAndPlainPythonStatesAreRefused) {
  const Net net({"one"});
  optim::Adam adam(net.parameters(), optim::AdamOptions(0.5));
  const Dict nested = get_optimizer_state_dict(net, adam), flat = get_optimizer_state_dict(net, adam, form(true));
  expect_error(ErrorKind::kKey, "flattened form", [&] { set_optimizer_state_dict(net, adam, nested, form(true)); });
  expect_error(ErrorKind::kKey, "nested form", [&] { set_optimizer_state_dict(net, adam, flat); });
  Dict numbered = deep_copy(nested);
  numbered.at("param_groups").as_list().at(0).as_dict()["params"] = List{0, 1};
  expect_error(ErrorKind::kType, "param_groups.0.params", [&] { set_optimizer_state_dict(net, adam, numbered); });
  Dict twice = deep_copy(nested);
  twice.at("param_groups").as_list().push_back(twice.at("param_groups").as_list().at(0));
  expect_error(ErrorKind::kKey, "'one.bias': is listed twice", [&] { set_optimizer_state_dict(net, adam, twice); });
}

// --- O24, O25 --------------------------------------------------------------------------------------------------------

void set_trainable(const Net& net, bool is_trainable) {
  for (const char* name : {"one.weight", "one.bias"}) net[name].set_requires_grad(is_trainable);
}

TEST(OptimizerStateTest, O24_a_FrozenAfterTraining) {
  for (const bool flatten : {false, true}) {
    const Net net;
    Net copy;
    optim::Adam adam(net.parameters(), optim::AdamOptions(0.1)), of_copy(copy.parameters(), optim::AdamOptions(0.9));
    train(net, adam, 2);
    const Dict trained = everything(net, adam);
    copy_weights(net, copy);
    // A frozen parameter without state is no destination, so the checkpoint is read as it is.
    for (const Net* each : {&net, static_cast<const Net*>(&copy)}) set_trainable(*each, false);
    const Dict stored = stored_form(get_optimizer_state_dict(net, adam, form(flatten)));
    set_optimizer_state_dict(copy, of_copy, stored, form(flatten));
    const Dict loaded = everything(copy, of_copy);
    for (const char* name : {"one.weight", "one.bias", "two.weight", "two.bias"}) {
      EXPECT_EQ(first_difference(loaded.at(name).as_dict().at("state"), trained.at(name).as_dict().at("state")), "");
    }
    for (const Net* each : {&net, static_cast<const Net*>(&copy)}) set_trainable(*each, true);
    train(net, adam, 2);
    train(copy, of_copy, 2);
    EXPECT_EQ(difference(net, adam, copy, of_copy), "");
  }
}

TEST(OptimizerStateTest, O24_b_FrozenFromTheStart) {
  for (const bool flatten : {false, true}) {
    const Net net;
    Net copy;
    for (const Net* each : {&net, static_cast<const Net*>(&copy)}) set_trainable(*each, false);
    optim::Adam adam(net.parameters(), optim::AdamOptions(0.1)), of_copy(copy.parameters(), optim::AdamOptions(0.9));
    train(net, adam, 2);
    const Dict state = get_optimizer_state_dict(net, adam, form(flatten));
    if (flatten) {
      EXPECT_EQ(to_string(state.begin()->first), "state.two.weight.step") << "the first has none";
      EXPECT_TRUE(state.contains("param_groups.one.weight.lr"));
    } else {
      EXPECT_EQ(keys(state.at("state").as_dict()), (std::vector<std::string>{"two.weight", "two.bias"}));
      EXPECT_EQ(state.at("param_groups").as_list().at(0).as_dict().at("params").as_list().size(), 4);
    }
    copy_weights(net, copy);
    pass_through_checkpoint(net, adam, copy, of_copy, flatten);
    train(net, adam, 2);
    train(copy, of_copy, 2);
    EXPECT_EQ(difference(net, adam, copy, of_copy), "");
  }
}

TEST(OptimizerStateTest, O24_c_TrainableButNeverUsed) {
  const std::vector<std::string> used = {"two.weight", "two.bias"};
  for (const Case& c : cases()) {
    for (const bool flatten : {false, true}) {
      SCOPED_TRACE(c10::str(c.name, flatten ? ", flattened" : ", nested"));
      const Net net;
      Net copy;
      const OptimizerPtr optimizer = c.make(net.parameters(), 0.1), of_copy = c.make(copy.parameters(), 0.7);
      train(net, *optimizer, 2, used);
      copy_weights(net, copy);
      pass_through_checkpoint(net, *optimizer, copy, *of_copy, flatten, {}, c.has_history);
      train(net, *optimizer, 2);
      train(copy, *of_copy, 2);
      EXPECT_EQ(difference(net, *optimizer, copy, *of_copy), "");
    }
  }
}

TEST(OptimizerStateTest, O24_d_StateTakenOutOfTheDict) {
  const Net net;
  optim::Adam adam(net.parameters(), optim::AdamOptions(0.1));
  train(net, adam, 2);
  std::vector<std::string> texts;
  for (const bool flatten : {false, true}) {
    Dict state = deep_copy(get_optimizer_state_dict(net, adam, form(flatten)));
    if (flatten) {
      for (const char* name : {"step", "exp_avg", "exp_avg_sq"}) state.erase(std::string("state.one.bias.") + name);
    } else {
      state.at("state").as_dict().erase("one.bias");
    }
    Net copy;
    optim::Adam of_copy(copy.parameters(), optim::AdamOptions(0.9));
    train(copy, of_copy, 1);
    const Dict before = everything(copy, of_copy);
    try {
      set_optimizer_state_dict(copy, of_copy, state, form(flatten));
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kKey);
      texts.push_back(error.what_without_backtrace());
    }
    EXPECT_EQ(first_difference(everything(copy, of_copy), before), "");

    StateDictOptions lenient = form(flatten);
    lenient.strict = false;
    const LoadReport report = set_optimizer_state_dict(copy, of_copy, state, lenient);
    EXPECT_EQ(report.missing, std::vector<std::string>{"state.one.bias"});
    const Dict expected = everything(net, adam), actual = everything(copy, of_copy);
    EXPECT_FALSE(actual.at("one.bias").as_dict().contains("state")) << "as never stepped";
    for (const char* name : {"one.weight", "two.weight", "two.bias"}) {
      EXPECT_EQ(first_difference(actual.at(name).as_dict().at("state"), expected.at(name).as_dict().at("state")), "");
    }
  }
  ASSERT_EQ(texts.size(), 2);
  EXPECT_NE(texts[0].find("one.bias"), std::string::npos) << texts[0];
  EXPECT_EQ(texts[0], texts[1]);
}

TEST(OptimizerStateTest, O24_d_OneValueTakenOut) {
  const Net net({"one"});
  optim::Adam adam(net.parameters(), optim::AdamOptions(0.1));
  Dict nested = get_optimizer_state_dict(net, adam), flat = get_optimizer_state_dict(net, adam, form(true));
  nested.at("state").as_dict().at("one.bias").as_dict().erase("exp_avg_sq");
  flat.erase("state.one.bias.exp_avg_sq");
  const std::string text = "'state.one.bias.exp_avg_sq': is missing";
  expect_error(ErrorKind::kKey, text, [&] { set_optimizer_state_dict(net, adam, nested); });
  expect_error(ErrorKind::kKey, text, [&] { set_optimizer_state_dict(net, adam, flat, form(true)); });
}

struct Tied : nn::Module {
  Tied() : layer(4, 4) {
    register_module("a", layer);
    register_module("b", layer);
  }
  nn::Linear layer;
};

void train(Tied& net, optim::Optimizer& optimizer, int steps) {
  const auto loss = [&] {
    optimizer.zero_grad();
    const at::Tensor sum = net.layer->forward(torch::arange(8.0).view({2, 4}).sin()).pow(2).sum();
    sum.backward();
    return sum;
  };
  for (int i = 0; i < steps; ++i) optimizer.step(loss);
}

void set_weights(Tied& net) {
  // All ranks have the same.
  const at::Tensor weight = torch::arange(16.0).cos().view({4, 4}), bias = torch::arange(4.0).sin();
  set_model_state_dict(*net.layer, {{"weight", weight}, {"bias", bias}});
}

void expect_tied_pair_continues(bool flatten, const Place& place) {
  Tied net, copy;
  optim::Adam adam(net.layer->parameters(), optim::AdamOptions(0.1));
  optim::Adam of_copy(copy.layer->parameters(), optim::AdamOptions(0.5));
  set_weights(net);
  train(net, adam, 2);
  const Dict nested = get_optimizer_state_dict(net, adam);
  EXPECT_EQ(keys(nested.at("state").as_dict()), (std::vector<std::string>{"a.weight", "a.bias"}));

  place.save({{"model", get_model_state_dict(net)}, {"optim", get_optimizer_state_dict(net, adam, form(flatten))}});
  Dict state = {{"model", get_model_state_dict(copy)},
                {"optim", get_optimizer_state_dict(copy, of_copy, form(flatten))}};
  place.load(state);
  set_model_state_dict(copy, state.at("model").as_dict());
  set_optimizer_state_dict(copy, of_copy, state.at("optim").as_dict(), form(flatten));
  EXPECT_TRUE(copy.named_parameters()["a.weight"].is_same(copy.named_parameters()["b.weight"]));
  EXPECT_EQ(keys(get_model_state_dict(copy)), (std::vector<std::string>{"a.weight", "a.bias", "b.weight", "b.bias"}));
  EXPECT_EQ(first_difference(get_model_state_dict(copy), get_model_state_dict(net)), "");
  train(net, adam, 2);
  train(copy, of_copy, 2);
  EXPECT_TRUE(bit_equal(get_model_state_dict(copy), get_model_state_dict(net)));
  EXPECT_TRUE(bit_equal(get_optimizer_state_dict(copy, of_copy), get_optimizer_state_dict(net, adam)));
}

TEST(OptimizerStateTest, O25_OneTensorTwoNames) {
  alone_and_on_two_ranks([](const Place& place) {
    for (const bool flatten : {false, true}) expect_tied_pair_continues(flatten, place);
  });
}

TEST(OptimizerStateTest, O25_StoredEntriesOfATiedPairThatDiffer) {
  alone_and_on_two_ranks([](const Place& place) {
    const auto values = [](double start) { return torch::arange(16.0).add(start).view({4, 4}).to(torch::kFloat); };
    const Dict stored = {
        {"a.weight", values(1)}, {"a.bias", torch::ones(4)}, {"b.weight", values(2)}, {"b.bias", torch::ones(4)}};
    place.save({{"model", stored}});
    Tied net;
    set_weights(net);
    const Dict before = deep_copy(get_model_state_dict(net));
    StateDictOptions options;
    options.communicator = place.communicator;
    for (const char* name : {"a.weight", "b.weight"}) {
      expect_error(ErrorKind::kInvalidArgument, name, [&] { set_model_state_dict(net, stored, options); });
      EXPECT_EQ(first_difference(get_model_state_dict(net), before), "");
      Dict state = {{"model", get_model_state_dict(net)}};
      FileSystemReader reader("ckpt", {.file_system = place.files});
      LoadOptions load_options;
      load_options.communicator = place.communicator;
      load_options.rollback = true;  // That the elements differ is seen when they are there.
      expect_error(ErrorKind::kKey, name, [&] { load(state, reader, load_options); });
      EXPECT_EQ(first_difference(get_model_state_dict(net), before), "");
    }
  });
}

// LibTorch's `Module::parameters` gives a tied tensor once for each of its names, and its optimizers take it so.
TEST(OptimizerStateTest, O25_ATensorThatTheOptimizerHasTwice) {
  for (const Case& c : cases()) {
    for (const bool flatten : {false, true}) {
      SCOPED_TRACE(c10::str(c.name, flatten ? ", flattened" : ", nested"));
      Tied net, copy;
      set_weights(net);
      ASSERT_EQ(net.parameters().size(), 4);
      ASSERT_TRUE(net.parameters()[0].is_same(net.parameters()[2]));
      const OptimizerPtr optimizer = c.make(net.parameters(), 0.1), of_copy = c.make(copy.parameters(), 0.5);
      train(net, *optimizer, 2);
      const Dict nested = get_optimizer_state_dict(net, *optimizer);
      EXPECT_EQ(first_difference(nested.at("param_groups").as_list().at(0).as_dict().at("params"),
                                 List{"a.weight", "a.bias", "a.weight", "a.bias"}),
                "")
          << "as Python lists them";
      const Dict stored = stored_form(get_optimizer_state_dict(net, *optimizer, form(flatten)));
      const LoadReport report = set_optimizer_state_dict(copy, *of_copy, stored, form(flatten));
      EXPECT_TRUE(report.missing.empty() && report.unexpected.empty() && report.converted.empty());
      EXPECT_EQ(first_difference(get_optimizer_state_dict(copy, *of_copy), nested), "");
      set_model_state_dict(copy, deep_copy(get_model_state_dict(net)));
      train(net, *optimizer, 2);
      train(copy, *of_copy, 2);
      EXPECT_EQ(first_difference(get_model_state_dict(copy), get_model_state_dict(net)), "");
      EXPECT_EQ(first_difference(get_optimizer_state_dict(copy, *of_copy), get_optimizer_state_dict(net, *optimizer)),
                "");
      load_state_dict(*of_copy, state_dict(*optimizer));  // by positions
      EXPECT_EQ(first_difference(state_dict(*of_copy), state_dict(*optimizer)), "");
    }
  }
}

TEST(OptimizerStateTest, O25_OnceAndTwiceTakeEachOthersState) {
  for (const bool flatten : {false, true}) {
    for (const bool saves_twice : {false, true}) {
      Tied net, copy;
      const auto listed = [](Tied& each, bool twice) { return twice ? each.parameters() : each.layer->parameters(); };
      optim::Adam adam(listed(net, saves_twice), optim::AdamOptions(0.1));
      optim::Adam of_copy(listed(copy, !saves_twice), optim::AdamOptions(0.5));
      train(net, adam, 2);
      const Dict stored = stored_form(get_optimizer_state_dict(net, adam, form(flatten)));
      const LoadReport report = set_optimizer_state_dict(copy, of_copy, stored, form(flatten));
      EXPECT_TRUE(report.missing.empty() && report.unexpected.empty());
      EXPECT_EQ(first_difference(get_optimizer_state_dict(copy, of_copy).at("state"),
                                 get_optimizer_state_dict(net, adam).at("state")),
                "");
      EXPECT_EQ(of_copy.param_groups()[0].options().get_lr(), 0.1);

      Dict lacks = deep_copy(get_optimizer_state_dict(net, adam));
      lacks.at("state").as_dict().erase("a.bias");
      expect_error(ErrorKind::kKey, "1 fault", [&] { set_optimizer_state_dict(copy, of_copy, lacks); });
    }
  }
}

/// A counter that saves itself.
class Counter final : public Stateful {
 public:
  Dict state_dict() override { return {{"count", count}, {"tensor", tensor}}; }
  void load_state_dict(const Dict& state) override {
    count = state.at("count").as_int();
    tensor = state.at("tensor").as_tensor();
  }
  std::int64_t count = 0;
  at::Tensor tensor = torch::zeros(2);
};

TEST(OptimizerStateTest, O20_ResumeTwiceWithAModule) {
  alone_and_on_two_ranks([](const Place& place) {
    std::vector<Dict> lives;  // what the module was at the end of each
    for (const std::int64_t begin : {0, 1, 5}) {
      const torch::nn::Linear module(2, 3);
      const auto counter = std::make_shared<Counter>();
      Dict state = {{"counter", counter}, {"model", get_model_state_dict(*module)}};
      const void* address = module->weight.data_ptr();
      if (begin > 0) {
        place.load(state);
        EXPECT_EQ(counter->count, begin);
        EXPECT_EQ(first_difference(counter->tensor, torch::full(2, static_cast<float>(begin))), "");
        EXPECT_EQ(first_difference(get_model_state_dict(*module), lives.back()), "");
      }
      EXPECT_EQ(state.at("counter").as_stateful(), counter) << "the user's object, not a copy";
      EXPECT_EQ(module->weight.data_ptr(), address);
      const torch::NoGradGuard no_grad;
      counter->count = begin == 0 ? 1 : 5;
      counter->tensor.fill_(static_cast<double>(counter->count));
      for (torch::Tensor& parameter : module->parameters()) parameter.fill_(static_cast<double>(10 * counter->count));
      lives.push_back(deep_copy(get_model_state_dict(*module)));
      place.save(state);  // the very same dict
    }
  });
}

// --- lists of parameters, adapters -----------------------------------------------------------------------------------

TEST(OptimizerParametersTest, PartsOfParametersGiveDTensors) {
  const auto mesh = DeviceMesh::make({2}, 1);
  const DTensorLayout layout = {mesh, {Placement::shard(0)}, {5, 3}};
  std::vector<OptimizerParameter> parameters = {{"w", torch::ones({2, 3}).requires_grad_(), layout},
                                                {"b", torch::ones(3).requires_grad_(), std::nullopt}};
  optim::Adam adam({parameters[0].tensor, parameters[1].tensor}, optim::AdamOptions(0.1));
  (parameters[0].tensor.pow(2).sum() + parameters[1].tensor.pow(2).sum()).backward();
  adam.step();
  const Dict state = get_optimizer_state_dict(parameters, adam);
  const Dict& w = state.at("state").as_dict().at("w").as_dict();
  const DTensor& moment = w.at("exp_avg").as_dtensor();
  EXPECT_EQ(moment.global_sizes(), (Sizes{5, 3}));
  const auto& typed =
      static_cast<const optim::AdamParamState&>(*adam.state().at(parameters[0].tensor.unsafeGetTensorImpl()));
  EXPECT_TRUE(moment.local().is_same(typed.exp_avg()));
  EXPECT_TRUE(w.at("step").is_tensor());
  EXPECT_TRUE(state.at("state").as_dict().at("b").as_dict().at("exp_avg").is_tensor());

  optim::Adam other({parameters[0].tensor, parameters[1].tensor}, optim::AdamOptions(0.9));
  set_optimizer_state_dict(parameters, other, state);
  EXPECT_EQ(first_difference(get_optimizer_state_dict(parameters, other), state), "");

  // Another part of the same shape, and another whole.
  std::vector<OptimizerParameter> elsewhere = parameters;
  elsewhere[0].layout->mesh = DeviceMesh::make({2, 1}, 1);
  elsewhere[0].layout->placements.push_back(Placement::replicate());
  expect_error(ErrorKind::kInvalidArgument, "spread otherwise",
               [&] { set_optimizer_state_dict(elsewhere, other, state); });
  elsewhere[0].layout = DTensorLayout{mesh, {Placement::shard(0)}, {4, 3}};
  expect_error(ErrorKind::kShape, "[5, 3]", [&] { set_optimizer_state_dict(elsewhere, other, state); });
  elsewhere[0].layout.reset();
  expect_error(ErrorKind::kType, "DTensor", [&] { set_optimizer_state_dict(elsewhere, other, state); });
}

TEST(OptimizerParametersTest, EveryParameterOfTheOptimizerNeedsAName) {
  const Net net({"one"}), other({"one"});
  optim::Adam adam(net.parameters(), optim::AdamOptions(0.1));
  expect_error(ErrorKind::kKey, "parameter 1, of shape [5]", [&] { get_optimizer_state_dict(other, adam); });
  expect_error(ErrorKind::kKey, "parameter 0, of shape [5, 5]", [&] { get_optimizer_state_dict(other, adam); });
  const std::vector<OptimizerParameter> same_name = {{"x", net["one.weight"], std::nullopt},
                                                     {"x", net["one.bias"], std::nullopt}};
  expect_error(ErrorKind::kKey, "'x': names two parameters", [&] { get_optimizer_state_dict(same_name, adam); });
}

class UnknownOptimizer : public optim::Optimizer {
 public:
  explicit UnknownOptimizer(Parameters parameters)
      : Optimizer(std::move(parameters), std::make_unique<optim::SGDOptions>(0.1)) {}
  at::Tensor step(LossClosure) override { return {}; }
};

/// The state of SGD, for an optimizer of one's own.
class OwnAdapter : public OptimizerAdapter {
 public:
  bool handles(const optim::Optimizer& optimizer) const override {
    return dynamic_cast<const UnknownOptimizer*>(&optimizer) != nullptr;
  }
  std::vector<std::string> option_names() const override { return sgd_->option_names(); }
  Dict read_options(const optim::OptimizerOptions& options) const override { return sgd_->read_options(options); }
  OptionsResult write_options(optim::OptimizerOptions& options, const Dict& given) const override {
    return sgd_->write_options(options, given);
  }
  std::vector<StateField> state_fields(const optim::OptimizerOptions& options) const override {
    return sgd_->state_fields(options);
  }
  Dict read_state(const optim::OptimizerParamState& state) const override { return sgd_->read_state(state); }
  Dict initial_state(const at::Tensor& parameter, const optim::OptimizerOptions& options) const override {
    return sgd_->initial_state(parameter, options);
  }
  std::unique_ptr<optim::OptimizerParamState> make_state() const override { return sgd_->make_state(); }
  void write_state(optim::OptimizerParamState& state, const Dict& values) const override {
    sgd_->write_state(state, values);
  }

 private:
  std::shared_ptr<const OptimizerAdapter> sgd_ = built_in_optimizer_adapters().at(0);
};

TEST(OptimizerAdapterTest, UnknownOptimizersAreNamedUnlessAnAdapterIsGiven) {
  const Net net({"one"});
  UnknownOptimizer optimizer(net.parameters());
  expect_error(ErrorKind::kType, "UnknownOptimizer", [&] { get_optimizer_state_dict(net, optimizer); });
  expect_error(ErrorKind::kType, "UnknownOptimizer",
               [&] { set_optimizer_state_dict(net, optimizer, {{"state", Dict()}}); });
  const StateDictOptions options = {.adapters = {std::make_shared<OwnAdapter>()}};
  Dict state = get_optimizer_state_dict(net, optimizer, options);
  state.at("param_groups").as_list().at(0).as_dict()["lr"] = 3;
  set_optimizer_state_dict(net, optimizer, state, options);
  EXPECT_EQ(optimizer.param_groups()[0].options().get_lr(), 3);
}

}  // namespace
}  // namespace dcp::test

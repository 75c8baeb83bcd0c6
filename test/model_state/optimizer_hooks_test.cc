// Hooks on optimizers; state by positions, as Python's optimizer.state_dict(); loads that are all or nothing.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <memory>

#include "test/model_state/hook_support.h"
#include "torch_dcp/model_state/optimizer_positional_state.h"
#include "torch_dcp/model_state/optimizer_positional_state_internal.h"
#include "torch_dcp/storage/torch_save.h"

namespace dcp::test {
namespace {

OptimizerPtr make_adam(const Net& net, double lr = 0.1) {
  return std::make_unique<optim::Adam>(net.parameters(), optim::AdamOptions(lr));
}

const Dict& state_of(const Dict& state, std::int64_t number) {
  return state.at("state").as_dict().at(number).as_dict();
}

std::vector<std::int64_t> params_of(const Dict& state, std::size_t group) {
  std::vector<std::int64_t> numbers;
  for (const Value& each : state.at("param_groups").as_list().at(group).as_dict().at("params").as_list()) {
    numbers.push_back(each.as_int());
  }
  return numbers;
}

/// AdamW with groups {one.weight, one.bias}, {}, {two.weight, two.bias}.
std::unique_ptr<optim::AdamW> make_groups(const Net& net, double lr) {
  std::vector<optim::OptimizerParamGroup> groups;
  groups.emplace_back(Parameters{net["one.weight"], net["one.bias"]},
                      std::make_unique<optim::AdamWOptions>(optim::AdamWOptions(lr)));
  groups.emplace_back(Parameters{}, std::make_unique<optim::AdamWOptions>(optim::AdamWOptions(lr * 3)));
  groups.emplace_back(Parameters{net["two.weight"], net["two.bias"]},
                      std::make_unique<optim::AdamWOptions>(optim::AdamWOptions(lr * 2).weight_decay(0.3)));
  return std::make_unique<optim::AdamW>(groups, optim::AdamWOptions(lr));
}

// --- by positions ----------------------------------------------------------------------------------------------------

TEST(PositionalStateTest, HasPythonsForm) {
  Net net;
  const auto adamw = make_groups(net, 0.1);
  train(net, *adamw, 2, {"one.bias", "two.weight"});
  const Dict before = everything(net, *adamw);
  const Dict state = state_dict(*adamw);
  EXPECT_EQ(keys(state), (Strings{"state", "param_groups"}));
  std::vector<Key> numbers;
  for (const auto& [key, values] : state.at("state").as_dict()) numbers.push_back(key);
  EXPECT_EQ(numbers, (std::vector<Key>{std::int64_t{1}, std::int64_t{2}})) << "the others were never stepped";
  EXPECT_EQ(keys(state_of(state, 1)), (Strings{"step", "exp_avg", "exp_avg_sq"}));
  EXPECT_TRUE(bit_equal(state_of(state, 1).at("step"), torch::full({}, 2.0f)));
  const auto& typed =
      static_cast<const optim::AdamWParamState&>(*adamw->state().at(net["two.weight"].unsafeGetTensorImpl()));
  EXPECT_TRUE(state_of(state, 2).at("exp_avg").as_tensor().is_same(typed.exp_avg())) << "live";
  EXPECT_EQ(params_of(state, 0), (std::vector<std::int64_t>{0, 1}));
  EXPECT_EQ(params_of(state, 1), (std::vector<std::int64_t>{}));
  EXPECT_EQ(params_of(state, 2), (std::vector<std::int64_t>{2, 3}));
  const Dict& group = state.at("param_groups").as_list().at(2).as_dict();
  EXPECT_EQ(keys(group), (Strings{"lr", "betas", "eps", "weight_decay", "amsgrad", "maximize", "foreach", "capturable",
                                  "differentiable", "fused", "decoupled_weight_decay", "params"}));
  EXPECT_EQ(group.at("weight_decay").as_double(), 0.3);
  EXPECT_EQ(first_difference(everything(net, *adamw), before), "") << "asking changes nothing";
}

TEST(PositionalStateTest, EveryOptimizerGoesOnTheSame) {
  for (const Case& each : cases()) {
    SCOPED_TRACE(each.name);
    Net net, other;
    const OptimizerPtr optimizer = each.make(net.parameters(), 0.05), of_other = each.make(other.parameters(), 0.9);
    train(net, *optimizer, 3);
    train(other, *of_other, 1);
    const auto files = make_memory_file_system();
    torch_save(state_dict(*optimizer), "state.pt", {.file_system = files});
    const Dict stored = torch_load("state.pt", {.file_system = files}).as_dict();
    const LoadReport report = load_state_dict(*of_other, stored);
    EXPECT_TRUE(report.missing.empty() && report.unexpected.empty() && report.converted.empty());
    copy_weights(net, other);
    net.zero_grad();
    other.zero_grad();
    EXPECT_EQ(difference(net, *optimizer, other, *of_other), "");
    train(net, *optimizer, 3);
    train(other, *of_other, 3);
    EXPECT_EQ(difference(net, *optimizer, other, *of_other), "");
  }
}

TEST(PositionalStateTest, GroupsByTheirPlace) {
  Net net, other;
  const auto saved = make_groups(net, 0.1), loaded = make_groups(other, 0.7);
  train(net, *saved, 2);
  const LoadReport report = load_state_dict(*loaded, state_dict(*saved));
  EXPECT_TRUE(report.missing.empty() && report.unexpected.empty());
  copy_weights(net, other);
  net.zero_grad();
  EXPECT_EQ(difference(net, *saved, other, *loaded), "");
  EXPECT_EQ(loaded->param_groups()[1].options().get_lr(), 0.1 * 3);
}

TEST(PositionalStateTest, WhatTorchSaveOfPythonHolds) {
  // As torch.optim.AdamW(..., lr=0.5) after one step has it, with a learning-rate scheduler's entry.
  Net net({"one"});
  Dict state;
  for (const std::int64_t number : {0, 1}) {
    const auto sizes = net.parameters()[static_cast<std::size_t>(number)].sizes();
    state[number] = Dict{{"step", torch::full({}, 1.0f)},
                         {"exp_avg", torch::full(sizes, 0.25 + static_cast<double>(number))},
                         {"exp_avg_sq", torch::full(sizes, 0.5)}};
  }
  const Dict group = {{"lr", 0.5},
                      {"betas", Tuple{0.8, 0.99}},
                      {"eps", 1e-8},
                      {"weight_decay", 0},
                      {"amsgrad", false},
                      {"foreach", None()},
                      {"maximize", false},
                      {"capturable", false},
                      {"differentiable", false},
                      {"fused", None()},
                      {"decoupled_weight_decay", true},
                      {"initial_lr", 0.5},
                      {"params", List{0, 1}}};
  const auto files = make_memory_file_system();
  torch_save(Dict{{"state", state}, {"param_groups", List{group}}}, "adamw.pt", {.file_system = files});
  const Dict stored = torch_load("adamw.pt", {.file_system = files}).as_dict();
  ASSERT_TRUE(std::holds_alternative<std::int64_t>(stored.at("state").as_dict().begin()->first));
  optim::AdamW adamw(net.parameters(), optim::AdamWOptions(7));
  const LoadReport report = load_state_dict(adamw, stored);
  EXPECT_EQ(report.unexpected, Strings{"param_groups.0.initial_lr"});
  EXPECT_EQ(first_difference(state_dict(adamw).at("state"), state), "");
  EXPECT_EQ(adamw.param_groups()[0].options().get_lr(), 0.5);
}

TEST(PositionalStateTest, TheStepAsAnIntegerOrATensor) {
  Net net({"one"});
  const OptimizerPtr trained = make_adam(net);
  train(net, *trained, 3);
  const Dict before = state_dict(*trained);
  for (const Value& step : {Value(3), Value(torch::full({}, 3, torch::kLong)), Value(torch::full({}, 3.0f)),
                            Value(torch::full({}, 3, torch::kDouble))}) {
    Dict state = deep_copy(before);
    for (auto& [number, values] : state.at("state").as_dict()) values.as_dict().at("step") = step;
    const OptimizerPtr other = make_adam(net);
    load_state_dict(*other, state);
    EXPECT_EQ(first_difference(state_dict(*other), before), "");
  }
}

TEST(PositionalStateTest, TwoEntriesForOneParameterAreRefused) {
  Net net;
  const OptimizerPtr adam = make_adam(net);
  train(net, *adam, 1);
  Dict state = deep_copy(state_dict(*adam));
  Dict& values = state.at("state").as_dict();
  Dict other = deep_copy(values.at(0).as_dict());
  other.at("exp_avg").as_tensor().add_(1);
  values["0"] = other;
  expect_error(ErrorKind::kKey, "'state.0'", [&] { load_state_dict(*adam, state); });
}

TEST(PositionalStateTest, KeysThatACheckpointHasSpelled) {
  Net net;
  const OptimizerPtr adam = make_adam(net), other = make_adam(net, 3);
  train(net, *adam, 1);
  Dict spelled = state_dict(*adam);
  Dict state;
  for (const auto& [key, values] : spelled.at("state").as_dict()) state[to_string(key)] = values;
  spelled["state"] = std::move(state);
  load_state_dict(*other, spelled);
  EXPECT_EQ(first_difference(state_dict(*other), state_dict(*adam)), "");
}

TEST(PositionalStateTest, NumbersNeedNotBeThoseOfTheOptimizer) {
  Net net({"one"}), other({"one"});
  const OptimizerPtr adam = make_adam(net), loaded = make_adam(other, 3);
  train(net, *adam, 2);
  Dict given = state_dict(*adam);
  Dict state = {};
  state[std::int64_t{1}] = state_of(given, 0);
  state[std::int64_t{9}] = state_of(given, 1);
  state[std::int64_t{0}] = Dict{{"step", 5}};  // of no parameter
  given["state"] = std::move(state);
  given.at("param_groups").as_list().at(0).as_dict()["params"] = List{1, 9};
  const LoadReport report = load_state_dict(*loaded, given);
  EXPECT_EQ(report.unexpected, Strings{"state.0"});
  EXPECT_EQ(first_difference(state_dict(*loaded), state_dict(*adam)), "");
}

TEST(PositionalStateTest, NeverSteppedParametersStaySo) {
  Net net;
  const OptimizerPtr adam = make_adam(net), other = make_adam(net, 3);
  train(net, *adam, 2, {"two.bias"});
  train(net, *other, 1);
  const LoadReport report = load_state_dict(*other, state_dict(*adam));
  EXPECT_EQ(report.missing, (Strings{"state.0", "state.1", "state.2"}));
  EXPECT_EQ(other->state().size(), 1);
  const OptimizerPtr fresh = make_adam(net, 5);
  load_state_dict(*other, state_dict(*fresh));
  EXPECT_TRUE(other->state().empty());
  EXPECT_EQ(other->param_groups()[0].options().get_lr(), 5);
}

TEST(PositionalStateTest, FaultsAreNamedAndNothingChanges) {
  Net net;
  const auto adamw = make_groups(net, 0.1);
  train(net, *adamw, 2);
  const Dict before = everything(net, *adamw);
  const Dict sound = state_dict(*adamw);
  const auto refused = [&](ErrorKind kind, const Strings& texts, const std::function<void(Dict&)>& spoil) {
    Dict state = deep_copy(sound);
    spoil(state);
    for (const std::string& text : texts) expect_error(kind, text, [&] { load_state_dict(*adamw, state); });
    EXPECT_EQ(first_difference(everything(net, *adamw), before), "");
  };
  const auto group = [](Dict& state, std::size_t g) -> Dict& {
    return state.at("param_groups").as_list().at(g).as_dict();
  };
  refused(ErrorKind::kInvalidArgument, {"'param_groups': 2 groups are given, the optimizer has 3"},
          [](Dict& state) { state.at("param_groups").as_list().pop_back(); });
  refused(ErrorKind::kInvalidArgument,
          {"'param_groups.0.params': lists 3 parameters, the group of the optimizer has 2",
           "'param_groups.2.params': lists 1 parameters"},
          [&](Dict& state) {
            group(state, 0)["params"] = List{0, 1, 2};
            group(state, 2)["params"] = List{3};
          });
  refused(ErrorKind::kKey, {"number 1 is listed twice"}, [&](Dict& state) { group(state, 2)["params"] = List{1, 3}; });
  refused(ErrorKind::kType, {"'param_groups.0.params': a string is given where a parameter's number"},
          [&](Dict& state) { group(state, 0)["params"] = List{"one.weight", "one.bias"}; });
  refused(ErrorKind::kKey, {"'param_groups': is missing"}, [](Dict& state) { state.erase("param_groups"); });
  refused(ErrorKind::kKey,
          {"'param_groups.2.lr': is missing", "'state.3.step': is missing",
           "'state.1.exp_avg': the given tensor has shape [2]"},
          [&](Dict& state) {
            group(state, 2).erase("lr");
            Dict& states = state.at("state").as_dict();
            states.at(std::int64_t{3}).as_dict().erase("step");
            states.at(std::int64_t{1}).as_dict()["exp_avg"] = torch::ones(2);
          });
  Dict partial = deep_copy(sound);
  group(partial, 2).erase("lr");
  EXPECT_EQ(load_state_dict(*adamw, partial, {.strict = false}).missing, Strings{"param_groups.2.lr"});
}

TEST(PositionalStateTest, TensorsStayWhereTheyAre) {
  Net net({"one"});
  const OptimizerPtr adam = make_adam(net);
  train(net, *adam, 1);
  const at::Tensor live = state_of(state_dict(*adam), 0).at("exp_avg").as_tensor();
  Dict given = deep_copy(state_dict(*adam));
  given.at("state").as_dict().at(std::int64_t{0}).as_dict().at("exp_avg").as_tensor().fill_(4);
  load_state_dict(*adam, given);
  EXPECT_TRUE(state_of(state_dict(*adam), 0).at("exp_avg").as_tensor().is_same(live));
  EXPECT_TRUE(bit_equal(live, torch::full({5, 5}, 4.0f)));
}

// --- hooks -----------------------------------------------------------------------------------------------------------

/// Calls that give and take the state of one optimizer, each in its form.
struct Form {
  std::string name;
  std::function<Dict(const Net&, const optim::Optimizer&)> get;
  std::function<void(const Net&, optim::Optimizer&, const Dict&)> set;
  std::string key;  ///< of the first state in the form, in `state` or flattened
};

std::vector<Form> forms() {
  std::vector<Form> all = {{"positions", [](const Net&, const optim::Optimizer& o) { return state_dict(o); },
                            [](const Net&, optim::Optimizer& o, const Dict& s) { load_state_dict(o, s); }, "0"}};
  for (const bool flatten : {false, true}) {
    all.push_back(
        {flatten ? "flattened" : "nested",
         [flatten](const Net& n, const optim::Optimizer& o) { return get_optimizer_state_dict(n, o, form(flatten)); },
         [flatten](const Net& n, optim::Optimizer& o, const Dict& s) {
           set_optimizer_state_dict(n, o, s, form(flatten));
         },
         flatten ? "" : "one.weight"});
  }
  return all;
}

TEST(OptimizerHooksTest, O32_RunOnceInEachFormInTheOrderOfRegistration) {
  for (const Form& form : forms()) {
    SCOPED_TRACE(form.name);
    Net net;
    const OptimizerPtr adam = make_adam(net);
    train(net, *adam, 1);
    Strings log;
    HookHandle hooks;
    for (const char* name : {"a", "b"}) {
      hooks.add(register_state_dict_pre_hook(*adam, [&log, name, &adam](optim::Optimizer& optimizer) {
        EXPECT_EQ(&optimizer, adam.get());
        log.push_back(std::string("save pre ") + name);
      }));
      hooks.add(register_state_dict_post_hook(*adam, [&, name](optim::Optimizer&, Dict& state) {
        log.push_back(std::string("save post ") + name);
        if (form.key.empty()) {
          EXPECT_TRUE(state.contains("state.one.weight.step"));
        } else {
          EXPECT_EQ(to_string(state.at("state").as_dict().begin()->first), form.key);
        }
      }));
      hooks.add(register_load_state_dict_pre_hook(*adam, [&, name](optim::Optimizer&, Dict& state) {
        log.push_back(std::string("load pre ") + name);
        EXPECT_EQ(state.contains("param_groups"), !form.key.empty());
      }));
      hooks.add(register_load_state_dict_post_hook(
          *adam, [&log, name](optim::Optimizer&) { log.push_back(std::string("load post ") + name); }));
    }
    const Dict state = form.get(net, *adam);
    EXPECT_EQ(log, (Strings{"save pre a", "save pre b", "save post a", "save post b"}));
    log.clear();
    form.set(net, *adam, state);
    EXPECT_EQ(log, (Strings{"load pre a", "load pre b", "load post a", "load post b"}));
  }
}

TEST(OptimizerHooksTest, ChangeWhatIsSavedAndLoaded) {
  Net net;
  const OptimizerPtr adam = make_adam(net), other = make_adam(net, 3);
  train(net, *adam, 1);
  const auto on_save = register_state_dict_post_hook(*adam, [](optim::Optimizer&, Dict& state) {
    state["version"] = 2;
    state.at("param_groups").as_list().at(0).as_dict()["lr"] = "a tenth";
  });
  const Dict state = state_dict(*adam);
  EXPECT_EQ(state.at("version").as_int(), 2);
  expect_error(ErrorKind::kType, "param_groups.0.lr", [&] { load_state_dict(*other, state); });
  const auto on_load = register_load_state_dict_pre_hook(*other, [](optim::Optimizer&, Dict& given) {
    given.erase("version");
    given.at("param_groups").as_list().at(0).as_dict()["lr"] = 0.1;
  });
  const LoadReport report = load_state_dict(*other, state);
  EXPECT_TRUE(report.unexpected.empty());
  EXPECT_EQ(other->param_groups()[0].options().get_lr(), 0.1);
  EXPECT_TRUE(state.contains("version")) << "the caller's dict";
  EXPECT_EQ(state.at("param_groups").as_list().at(0).as_dict().at("lr").as_string(), "a tenth");
}

TEST(OptimizerHooksTest, RemovedHandlesDoNotRun) {
  Net net;
  const OptimizerPtr adam = make_adam(net);
  int count = 0;
  {
    const auto hook = register_state_dict_pre_hook(*adam, [&](optim::Optimizer&) { ++count; });
    state_dict(*adam);
  }
  state_dict(*adam);
  EXPECT_EQ(count, 1);
  EXPECT_EQ(attachment_count(), 0);
}

TEST(OptimizerHooksTest, AnExceptionLeavesOptionsAndStateAsTheyWere) {
  for (const Case& each : cases()) {
    for (const Form& form : forms()) {
      SCOPED_TRACE(each.name + ", " + form.name);
      Net net, given;
      const OptimizerPtr optimizer = each.make(net.parameters(), 0.05), of_given = each.make(given.parameters(), 0.5);
      train(net, *optimizer, 3);
      train(given, *of_given, 2);
      const Dict state = form.get(given, *of_given);
      const Dict before = everything(net, *optimizer);
      const std::vector<std::function<HookHandle()>> moments = {
          [&] { return register_state_dict_pre_hook(*optimizer, [](optim::Optimizer&) { throw Thrown(); }); },
          [&] { return register_state_dict_post_hook(*optimizer, [](optim::Optimizer&, Dict&) { throw Thrown(); }); },
          [&] {
            return register_load_state_dict_pre_hook(*optimizer, [](optim::Optimizer&, Dict& dict) {
              dict = {};
              throw Thrown();
            });
          },
          [&] {
            return register_load_state_dict_post_hook(*optimizer, [](optim::Optimizer& o) {
              o.param_groups()[0].options().set_lr(77);
              o.state().clear();
              throw Thrown();
            });
          },
      };
      for (std::size_t i = 0; i < moments.size(); ++i) {
        SCOPED_TRACE(i);
        HookHandle handle = moments[i]();
        const auto call = [&] {
          if (i < 2) {
            form.get(net, *optimizer);
          } else {
            form.set(net, *optimizer, state);
          }
        };
        EXPECT_THROW(call(), Thrown);
        EXPECT_EQ(first_difference(everything(net, *optimizer), before), "");
        handle.remove();
      }
      EXPECT_NO_THROW(form.set(net, *optimizer, state));
      EXPECT_EQ(first_difference(form.get(net, *optimizer), state), "");
    }
  }
}

TEST(OptimizerHooksTest, AFreshOptimizerIsFreshAgainAfterAnException) {
  Net net;
  const OptimizerPtr adam = make_adam(net), fresh = make_adam(net, 3);
  train(net, *adam, 1);
  const auto hook = register_load_state_dict_post_hook(*fresh, [](optim::Optimizer& optimizer) {
    EXPECT_EQ(optimizer.state().size(), 4);
    throw Thrown();
  });
  EXPECT_THROW(load_state_dict(*fresh, state_dict(*adam)), Thrown);
  EXPECT_TRUE(fresh->state().empty());
  EXPECT_EQ(fresh->param_groups()[0].options().get_lr(), 3);
}

/// The built-in adapter of Adam, but it throws at the nth call of one of its methods.
class FailingAdapter : public OptimizerAdapter {
 public:
  FailingAdapter(int* state_countdown, int* options_countdown)
      : state_countdown_(state_countdown), options_countdown_(options_countdown) {}

  bool handles(const optim::Optimizer& optimizer) const override { return adam_->handles(optimizer); }
  std::vector<std::string> option_names() const override { return adam_->option_names(); }
  Dict read_options(const optim::OptimizerOptions& options) const override { return adam_->read_options(options); }
  OptionsResult write_options(optim::OptimizerOptions& options, const Dict& given) const override {
    OptionsResult result = adam_->write_options(options, given);
    if (--*options_countdown_ == 0) throw Thrown();
    return result;
  }
  std::vector<StateField> state_fields(const optim::OptimizerOptions& options) const override {
    return adam_->state_fields(options);
  }
  Dict read_state(const optim::OptimizerParamState& state) const override { return adam_->read_state(state); }
  Dict initial_state(const at::Tensor& parameter, const optim::OptimizerOptions& options) const override {
    return adam_->initial_state(parameter, options);
  }
  std::unique_ptr<optim::OptimizerParamState> make_state() const override { return adam_->make_state(); }
  void write_state(optim::OptimizerParamState& state, const Dict& values) const override {
    adam_->write_state(state, values);
    if (--*state_countdown_ == 0) throw Thrown();
  }

 private:
  std::shared_ptr<const OptimizerAdapter> adam_ = built_in_optimizer_adapters().at(1);
  int* state_countdown_;
  int* options_countdown_;
};

TEST(OptimizerHooksTest, AnAdapterThatThrowsLeavesOptionsAndStateAsTheyWere) {
  Net net, given;
  const OptimizerPtr adam = make_adam(net), of_given = make_adam(given, 3);
  train(net, *adam, 2);
  train(given, *of_given, 3);
  const Dict before = everything(net, *adam), own = deep_copy(get_optimizer_state_dict(net, *adam));
  int state_countdown = 0, options_countdown = 0;
  const auto adapter = std::make_shared<FailingAdapter>(&state_countdown, &options_countdown);
  ASSERT_TRUE(adapter->handles(*adam));
  const Dict positional = state_dict(*of_given), named = get_optimizer_state_dict(given, *of_given);
  int failures = 0;
  for (int nth = 1; nth <= 5; ++nth) {
    for (int* countdown : {&state_countdown, &options_countdown}) {
      for (const bool is_named : {false, true}) {
        state_countdown = options_countdown = -1;
        *countdown = nth;
        try {
          if (is_named) {
            set_optimizer_state_dict(net, *adam, named, {.adapters = {adapter}});
          } else {
            load_state_dict(*adam, positional, {.adapters = {adapter}});
          }
          set_optimizer_state_dict(net, *adam, own);
        } catch (const Thrown&) {
          ++failures;
          EXPECT_EQ(first_difference(everything(net, *adam), before), "") << nth;
        }
      }
    }
  }
  // A state for each of four parameters; options when they are checked, and when they are written.
  EXPECT_EQ(failures, 2 * (4 + 2));
}

// --- calls that were replaced ----------------------------------------------------------------------------------------

TEST(OptimizerPatchTest, TakesThePlaceOfTheCallsAndDoesNotRecurse) {
  Net net;
  const OptimizerPtr adam = make_adam(net);
  train(net, *adam, 1);
  {
    const HookHandle patch =
        attach(*adam,
               OptimizerPatch{[&](const optim::Optimizer& o) { return get_optimizer_state_dict(net, o); },
                              [&](optim::Optimizer& o, const Dict& s) { return set_optimizer_state_dict(net, o, s); }},
               "one only");
    const Dict patched = state_dict(*adam);
    EXPECT_TRUE(patched.at("state").as_dict().contains("one.weight"));
    EXPECT_TRUE(load_state_dict(*adam, patched).missing.empty());
    EXPECT_TRUE(own_state_dict(*adam).at("state").as_dict().contains(std::int64_t{0}));
  }
  EXPECT_TRUE(state_dict(*adam).at("state").as_dict().contains(std::int64_t{0}));
}

}  // namespace
}  // namespace dcp::test

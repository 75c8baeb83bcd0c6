// What RMSprop, Adagrad and LBFGS have that the others have not. What is common to all is in
// test/conformance/optimizer_adapter_suite.h.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <memory>
#include <string>
#include <vector>

#include "test/model_state/optimizer_support.h"
#include "test/support/expect_error.h"

namespace dcp::test {
namespace {

Dict& group_of(Dict& state) { return state.at("param_groups").as_list().at(0).as_dict(); }

Dict& state_of(Dict& state, const std::string& fqn) { return state.at("state").as_dict().at(fqn).as_dict(); }

void expect_refused(const Net& net, optim::Optimizer& optimizer, const Dict& state, ErrorKind kind,
                    const std::string& text, bool flatten = false) {
  const Dict before = everything(net, optimizer);
  expect_error(kind, text, [&] { set_optimizer_state_dict(net, optimizer, state, form(flatten)); });
  EXPECT_EQ(first_difference(everything(net, optimizer), before), "");
}

// --- RMSprop, Adagrad ------------------------------------------------------------------------------------------------

TEST(OtherOptimizersTest, RmspropHasPythonsOptionsAndState) {
  const Net net({"one"});
  optim::RMSprop rmsprop(net.parameters(), optim::RMSpropOptions(0.5).alpha(0.75).momentum(0.25).centered(true));
  train(net, rmsprop, 1);
  const Dict state = get_optimizer_state_dict(net, rmsprop);
  const Dict expected = {{"lr", 0.5},
                         {"momentum", 0.25},
                         {"alpha", 0.75},
                         {"eps", 1e-8},
                         {"centered", true},
                         {"weight_decay", 0.0},
                         {"capturable", false},
                         {"foreach", None()},
                         {"maximize", false},
                         {"differentiable", false},
                         {"params", List{"one.weight", "one.bias"}}};
  EXPECT_EQ(first_difference(state.at("param_groups"), List{expected}), "");
  EXPECT_EQ(keys(state.at("state").as_dict().at("one.bias").as_dict()),
            (std::vector<std::string>{"step", "square_avg", "momentum_buffer", "grad_avg"}));
}

TEST(OtherOptimizersTest, RmspropNeedsWhatTheStoredOptionsUse) {
  const Net net({"one"});
  optim::RMSprop plain(net.parameters(), optim::RMSpropOptions(0.5));
  train(net, plain, 2);
  Dict state = deep_copy(get_optimizer_state_dict(net, plain));
  EXPECT_EQ(keys(state_of(state, "one.bias")), (std::vector<std::string>{"step", "square_avg"}));
  group_of(state)["centered"] = true;
  group_of(state)["momentum"] = 0.5;
  for (const char* name : {"momentum_buffer", "grad_avg"}) {
    expect_refused(net, plain, state, ErrorKind::kKey, std::string("'state.one.bias.") + name + "': is missing");
  }
}

TEST(OtherOptimizersTest, AdagradHasPythonsOptionsAndStateFromTheStart) {
  const Net net({"one"});
  net["one.bias"].set_requires_grad(false);
  optim::Adagrad adagrad(net.parameters(), optim::AdagradOptions(0.5).initial_accumulator_value(0.25));
  const Dict state = get_optimizer_state_dict(net, adagrad);
  const Dict expected = {{"lr", 0.5},
                         {"lr_decay", 0.0},
                         {"eps", 1e-10},
                         {"weight_decay", 0.0},
                         {"initial_accumulator_value", 0.25},
                         {"foreach", None()},
                         {"maximize", false},
                         {"differentiable", false},
                         {"fused", None()},
                         {"params", List{"one.weight", "one.bias"}}};
  EXPECT_EQ(first_difference(state.at("param_groups"), List{expected}), "");
  const Dict frozen = {{"step", torch::zeros({})}, {"sum", torch::full({5}, 0.25)}};
  EXPECT_EQ(first_difference(state.at("state").as_dict().at("one.bias"), frozen), "");
}

TEST(OtherOptimizersTest, AdagradWhereAGroupWasAddedLater) {
  Net net, copy;
  const auto make = [](const Net& of) {
    auto adagrad = std::make_unique<optim::Adagrad>(Parameters{of["one.weight"], of["one.bias"]},
                                                    optim::AdagradOptions(0.5).initial_accumulator_value(0.25));
    adagrad->add_param_group(optim::OptimizerParamGroup(Parameters{of["two.weight"], of["two.bias"]}));
    return adagrad;
  };
  const OptimizerPtr adagrad = make(net), of_copy = make(copy);
  ASSERT_EQ(adagrad->state().size(), 2) << "LibTorch makes no state of what is added, and cannot step it";
  const Dict state = get_optimizer_state_dict(net, *adagrad);
  EXPECT_TRUE(bit_equal(state.at("state").as_dict().at("two.bias").as_dict().at("sum"), torch::full({5}, 0.25)));
  set_optimizer_state_dict(copy, *of_copy, state);
  EXPECT_EQ(of_copy->state().size(), 4);
  train(copy, *of_copy, 2);
}

TEST(OtherOptimizersTest, AdagradStepsWithWhatIsNotStored) {
  const Net net;
  optim::Adagrad adagrad(net.parameters(), optim::AdagradOptions(0.5).initial_accumulator_value(0.25));
  train(net, adagrad, 2);
  Dict state = deep_copy(get_optimizer_state_dict(net, adagrad));
  state.at("state").as_dict().erase("two.bias");
  state_of(state, "one.bias").erase("sum");
  Net copy;
  optim::Adagrad of_copy(copy.parameters(), optim::AdagradOptions(0.5));
  train(copy, of_copy, 1);
  StateDictOptions lenient;
  lenient.strict = false;
  const LoadReport report = set_optimizer_state_dict(copy, of_copy, state, lenient);
  EXPECT_EQ(report.missing, (std::vector<std::string>{"state.one.bias.sum", "state.two.bias"}));
  const Dict initial = {{"step", torch::zeros({})}, {"sum", torch::full({5}, 0.25)}};
  const Dict now = deep_copy(get_optimizer_state_dict(copy, of_copy));
  for (const char* fqn : {"one.bias", "two.bias"}) {
    EXPECT_EQ(first_difference(now.at("state").as_dict().at(fqn), initial), "") << fqn;
  }
  train(copy, of_copy, 1);
}

// --- LBFGS -----------------------------------------------------------------------------------------------------------

std::unique_ptr<optim::LBFGS> make_lbfgs(const Parameters& parameters, double lr = 0.5) {
  return std::make_unique<optim::LBFGS>(parameters, optim::LBFGSOptions(lr).history_size(3).max_iter(4));
}

TEST(OtherOptimizersTest, LbfgsHasPythonsOptionsAndState) {
  const Net net({"one"});
  const auto lbfgs = make_lbfgs(net.parameters());
  train(net, *lbfgs, 2);
  const Dict state = get_optimizer_state_dict(net, *lbfgs);
  const Dict expected = {{"lr", 0.5},
                         {"max_iter", 4},
                         {"max_eval", 5},
                         {"tolerance_grad", 1e-7},
                         {"tolerance_change", 1e-9},
                         {"history_size", 3},
                         {"line_search_fn", None()},
                         {"maximize", false},
                         {"params", List{"one.weight", "one.bias"}}};
  EXPECT_EQ(first_difference(state.at("param_groups"), List{expected}), "");
  EXPECT_EQ(keys(state.at("state").as_dict()), std::vector<std::string>{"one.weight"});
  const Dict& values = state.at("state").as_dict().at("one.weight").as_dict();
  EXPECT_EQ(keys(values), (std::vector<std::string>{"func_evals", "n_iter", "al", "d", "t", "old_dirs", "old_stps",
                                                    "ro", "H_diag", "prev_flat_grad", "prev_loss"}));
  EXPECT_EQ(values.at("n_iter").as_int(), 8);
  EXPECT_EQ(values.at("t").kind(), ValueKind::kDouble);
  EXPECT_EQ(values.at("prev_loss").kind(), ValueKind::kDouble);
  EXPECT_EQ(values.at("al").as_list().size(), 3);
  EXPECT_EQ(values.at("d").as_tensor().sizes(), c10::IntArrayRef({30}));
  EXPECT_EQ(values.at("old_dirs").as_list().size(), 3);
  EXPECT_EQ(values.at("ro").as_list().at(0).as_tensor().dim(), 0);
}

TEST(OtherOptimizersTest, LbfgsHasTwoCountersBeforeItsFirstIteration) {
  const Net net({"one"});
  const auto lbfgs = make_lbfgs(net.parameters());
  const Dict fresh = deep_copy(get_optimizer_state_dict(net, *lbfgs));
  EXPECT_EQ(first_difference(fresh.at("state"), Dict{{"one.weight", Dict{{"func_evals", 0}, {"n_iter", 0}}}}), "");
  lbfgs->step([&] {  // nothing is left to be done
    for (const at::Tensor& parameter : net.parameters()) parameter.mutable_grad() = torch::zeros_like(parameter);
    return torch::zeros({});
  });
  const Dict evaluated = get_optimizer_state_dict(net, *lbfgs);
  EXPECT_EQ(first_difference(evaluated.at("state"), Dict{{"one.weight", Dict{{"func_evals", 1}, {"n_iter", 0}}}}), "");
  set_optimizer_state_dict(net, *lbfgs, fresh);
  EXPECT_TRUE(lbfgs->state().empty());
  set_optimizer_state_dict(net, *lbfgs, evaluated);
  EXPECT_EQ(first_difference(get_optimizer_state_dict(net, *lbfgs), evaluated), "");
}

TEST(OtherOptimizersTest, LbfgsAfterOneIterationHasAWholeNumberAsPythonHasIt) {
  const Net net({"one"});
  Net copy({"one"});
  optim::LBFGS lbfgs(net.parameters(), optim::LBFGSOptions(0.5).max_iter(1));
  optim::LBFGS of_copy(copy.parameters(), optim::LBFGSOptions(0.25).max_iter(1));
  train(net, lbfgs, 1);
  copy_weights(net, copy);
  const Dict state = stored_form(get_optimizer_state_dict(net, lbfgs));
  const Dict& values = state.at("state").as_dict().at("one.weight").as_dict();
  EXPECT_EQ(values.at("H_diag").as_int(), 1);
  EXPECT_FALSE(values.contains("al"));
  EXPECT_TRUE(values.at("old_dirs").as_list().empty());
  set_optimizer_state_dict(copy, of_copy, state);
  train(net, lbfgs, 2);
  train(copy, of_copy, 2);
  EXPECT_EQ(first_difference(everything(copy, of_copy).at("one.bias"), everything(net, lbfgs).at("one.bias")), "");
}

TEST(OtherOptimizersTest, LbfgsWithItsParametersInAnotherOrder) {
  for (const bool flatten : {false, true}) {
    const Net net({"one"});
    const auto lbfgs = make_lbfgs(net.parameters());
    train(net, *lbfgs, 2);
    const auto other = make_lbfgs({net["one.bias"], net["one.weight"]});
    const Dict stored = stored_form(get_optimizer_state_dict(net, *lbfgs, form(flatten)));
    const LoadReport report = set_optimizer_state_dict(net, *other, stored, form(flatten));
    EXPECT_TRUE(report.missing.empty() && report.unexpected.empty());
    const Dict before = get_optimizer_state_dict(net, *lbfgs), after = get_optimizer_state_dict(net, *other);
    const Dict& saved = before.at("state").as_dict().at("one.weight").as_dict();
    const Dict& set = after.at("state").as_dict().at("one.bias").as_dict();
    const auto swapped = [](const at::Tensor& vector) {
      return torch::cat({vector.slice(0, 25), vector.slice(0, 0, 25)});
    };
    EXPECT_TRUE(bit_equal(set.at("d"), swapped(saved.at("d").as_tensor())));
    EXPECT_TRUE(
        bit_equal(set.at("old_stps").as_list().at(2), swapped(saved.at("old_stps").as_list().at(2).as_tensor())));
    EXPECT_TRUE(bit_equal(set.at("ro"), saved.at("ro")));
    train(net, *other, 1);
  }
}

TEST(OtherOptimizersTest, LbfgsOfOtherParametersIsRefused) {
  const Net net({"one"}), wide;
  const auto lbfgs = make_lbfgs(net.parameters()), of_wide = make_lbfgs(wide.parameters());
  train(net, *lbfgs, 1);
  train(wide, *of_wide, 1);
  expect_refused(wide, *of_wide, get_optimizer_state_dict(net, *lbfgs), ErrorKind::kKey,
                 "the stored one has [one.weight, one.bias], that of the optimizer [one.weight, one.bias, two.weight");
  expect_refused(net, *lbfgs, get_optimizer_state_dict(wide, *of_wide), ErrorKind::kKey, "'param_groups.0.params'");
  Dict flat = get_optimizer_state_dict(net, *lbfgs, form(true));
  flat.erase("param_groups.one.weight.params");
  expect_refused(net, *lbfgs, flat, ErrorKind::kKey, "'param_groups.one.weight.params'", true);
  Dict twice = get_optimizer_state_dict(net, *lbfgs, form(true));
  twice["param_groups.one.weight.params"] = List{"one.weight", "one.bias", "one.bias"};
  expect_refused(net, *lbfgs, twice, ErrorKind::kKey, "'param_groups.one.weight.params'", true);
}

TEST(OtherOptimizersTest, LbfgsThatNeverSteppedIsNoPlaceForAHistory) {
  const Net net({"one"}), other({"one"});
  const auto lbfgs = make_lbfgs(net.parameters()), of_other = make_lbfgs(other.parameters());
  train(net, *lbfgs, 2);
  const Place place;
  place.save({{"optim", get_optimizer_state_dict(net, *lbfgs)}});
  Dict state = {{"optim", get_optimizer_state_dict(other, *of_other)}};
  FileSystemReader reader("ckpt", {.file_system = place.files});
  EXPECT_FALSE(load(state, reader).unexpected.empty());
  expect_refused(other, *of_other, state.at("optim").as_dict(), ErrorKind::kKey,
                 "'state.one.weight.d': is missing, though iterations are counted");
}

TEST(OtherOptimizersTest, LbfgsTakesNoHistoryThatLibTorchCouldNotUse) {
  const Net net({"one"});
  const auto lbfgs = make_lbfgs(net.parameters());
  train(net, *lbfgs, 2);
  const Dict sound = get_optimizer_state_dict(net, *lbfgs);
  const auto changed = [&](const std::function<void(Dict&)>& change) {
    Dict state = deep_copy(sound);
    change(state_of(state, "one.weight"));
    return state;
  };
  const auto of_group = [&](const std::string& option, const Value& value) {
    Dict state = deep_copy(sound);
    group_of(state)[option] = value;
    return state;
  };
  expect_refused(net, *lbfgs, changed([](Dict& s) { s.at("ro").as_list().pop_back(); }), ErrorKind::kInvalidArgument,
                 "'state.one.weight.ro': has 2 entries, old_dirs has 3");
  expect_refused(net, *lbfgs, changed([](Dict& s) { s.at("al").as_list().pop_back(); }), ErrorKind::kInvalidArgument,
                 "'state.one.weight.al': has 2 entries, history_size is 3");
  expect_refused(net, *lbfgs, changed([](Dict& s) { s.at("ro").as_list().at(1) = None(); }), ErrorKind::kType,
                 "'state.one.weight.ro': has a None");
  expect_refused(net, *lbfgs, of_group("history_size", 2), ErrorKind::kInvalidArgument,
                 "'state.one.weight.old_stps': has 3 entries, more than history_size, 2");
  expect_refused(net, *lbfgs, of_group("history_size", 0), ErrorKind::kInvalidArgument, "needs a history");
  expect_refused(net, *lbfgs, of_group("max_iter", -1), ErrorKind::kInvalidArgument, "'param_groups.0.max_iter'");
  expect_refused(net, *lbfgs, of_group("max_eval", None()), ErrorKind::kType, "'param_groups.0.max_eval'");
  expect_refused(net, *lbfgs, of_group("line_search_fn", "armijo"), ErrorKind::kUnsupported, "'armijo'");
  expect_refused(net, *lbfgs, of_group("maximize", true), ErrorKind::kUnsupported, "'param_groups.0.maximize'");
  const Dict searching = of_group("line_search_fn", "strong_wolfe");
  set_optimizer_state_dict(net, *lbfgs, searching);
  EXPECT_EQ(first_difference(get_optimizer_state_dict(net, *lbfgs), searching), "");
}

TEST(OtherOptimizersTest, LbfgsReportsStateOfOthersThanItsFirstParameter) {
  const Net net({"one"});
  const auto lbfgs = make_lbfgs(net.parameters());
  train(net, *lbfgs, 1);
  Dict state = deep_copy(get_optimizer_state_dict(net, *lbfgs));
  state.at("state").as_dict()["one.bias"] = Dict{{"n_iter", 3}};
  EXPECT_EQ(set_optimizer_state_dict(net, *lbfgs, state).unexpected, std::vector<std::string>{"state.one.bias"});
}

}  // namespace
}  // namespace dcp::test

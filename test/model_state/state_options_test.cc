// Options of the calls named get_ and set_, in one process.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "test/model_state/hook_support.h"
#include "test/model_state/wrapped_support.h"
#include "test/support/memory_counter.h"
#include "torch_dcp/model_state/extra_state.h"
#include "torch_dcp/model_state/model_state_dict.h"
#include "torch_dcp/model_state/optimizer_positional_state.h"
#include "torch_dcp/model_state/random_state.h"
#include "torch_dcp/model_state/state_dict_options.h"
#include "torch_dcp/model_state/training_state.h"

namespace dcp::test {
namespace {

StateDictOptions with(const std::function<void(StateDictOptions&)>& change) {
  StateDictOptions options;
  change(options);
  return options;
}

// --- what is legal ---------------------------------------------------------------------------------------------------

TEST(StateDictOptionsTest, DefaultsArePythons) {
  const StateDictOptions options;
  EXPECT_FALSE(options.full_state_dict || options.cpu_offload || options.ignore_frozen_params ||
               options.broadcast_from_rank0 || options.flatten_optimizer_state_dict);
  EXPECT_TRUE(options.keep_submodule_prefixes && options.strict);
}

TEST(StateDictOptionsTest, OneErrorNamesEveryIllegalField) {
  const Net net;
  optim::Adam adam(net.parameters(), 0.1);
  StateDictOptions options = {.broadcast_from_rank0 = true};
  options.bucket_bytes = 0;
  options.device = at::kMeta;
  options.adapters = {nullptr};
  options.wrappers = {{"", {}, {}}};
  const StateDictCall call = {.is_getter = false, .optimizers = {&adam, nullptr, &adam}};
  for (const char* fault :
       {"key 'broadcast_from_rank0': needs process_group or communicator", "key 'bucket_bytes': is 0",
        "key 'device': is meta", "key 'adapters': holds a null", "key 'wrappers': holds one without",
        "key 'optimizers': holds a null pointer", "key 'optimizers': holds an optimizer twice"}) {
    expect_error(ErrorKind::kInvalidArgument, fault, [&] { verify_options(net, options, call); });
  }
  expect_error(ErrorKind::kInvalidArgument, "8 faults", [&] { verify_options(net, options, call); });
  expect_error(ErrorKind::kInvalidArgument, "is for setters", [&] { get_model_state_dict(net, options); });
  expect_error(ErrorKind::kInvalidArgument, "needs full_state_dict", [&] {
    Net other;
    set_model_state_dict(other, {}, options);
  });
}

TEST(StateDictOptionsTest, ACallForOptimizersNeedsOne) {
  Net net;
  expect_error(ErrorKind::kState, "'optimizers'", [&] { get_optimizer_state_dict(net, ConstOptimizerRefs()); });
  expect_error(ErrorKind::kState, "'optimizers'", [&] { set_optimizer_state_dict(net, OptimizerRefs(), {}); });
  EXPECT_TRUE(get_state_dict(net, ConstOptimizerRefs()).second.empty()) << "for the model alone";
}

TEST(StateDictOptionsTest, BroadcastsComeFromRank0) {
  const Net net;
  const auto options = with([](StateDictOptions& o) { o.full_state_dict = o.broadcast_from_rank0 = true; });
  expect_error(ErrorKind::kInvalidArgument, "needs process_group or communicator",
               [&] { verify_options(net, options, {.is_getter = false}); });
  StateDictOptions legal = options;
  legal.communicator = std::make_shared<Communicator>(Communicator::single());
  verify_options(net, legal, {.is_getter = false});
}

// --- the model -------------------------------------------------------------------------------------------------------

TEST(StateDictOptionsTest, O24_e_FrozenParametersMayBeLeftOutByTheirCleanNames) {
  const auto make = [] {
    const auto net = std::make_shared<nn::Module>();
    const nn::Linear base(3, 3);
    base->weight.set_requires_grad(false);
    net->register_module("base", DistributedDataParallel(base.ptr()));
    net->register_module("head", nn::Linear(3, 1));
    return net;
  };
  const auto net = make();
  const auto options = with([](StateDictOptions& o) { o.ignore_frozen_params = true; });
  const Dict state = get_model_state_dict(*net, options);
  EXPECT_EQ(keys(state), (Strings{"base.bias", "head.weight", "head.bias"}));
  const auto other = make();
  const LoadReport report = set_model_state_dict(*other, deep_copy(state), options);
  EXPECT_TRUE(report.missing.empty() && report.unexpected.empty());
  EXPECT_EQ(first_difference(get_model_state_dict(*other, options), state), "");
  expect_error(ErrorKind::kKey, "'base.weight': is missing", [&] { set_model_state_dict(*other, state); });
  set_model_state_dict(*other, deep_copy(get_model_state_dict(*net)), options);
  EXPECT_EQ(first_difference(get_model_state_dict(*other), get_model_state_dict(*net)), "") << "given ones are taken";
}

struct TwoImpl : nn::Module {
  TwoImpl() : a(2, 2), b(2, 2) {
    register_module("a", a);
    register_module("b", b);
    w = register_parameter("w", torch::ones(2));
  }
  nn::Linear a, b;
  at::Tensor w;
};
TORCH_MODULE(Two);

TEST(StateDictOptionsTest, SubmodulesAndTheirPrefixes) {
  Two two, other;
  const auto stripped = with([](StateDictOptions& o) { o.keep_submodule_prefixes = false; });
  EXPECT_EQ(keys(get_model_state_dict(*two, {}, {two->a.get()})), (Strings{"a.weight", "a.bias"}));
  EXPECT_EQ(keys(get_model_state_dict(*two, stripped, {two->a.get()})), (Strings{"weight", "bias"}));
  EXPECT_EQ(get_model_state_dict(*two, {}, {two.get()}).size(), 5U) << "the root is everything";
  EXPECT_EQ(keys(get_model_state_dict(*two, {}, {two->b.get(), two->a.get()})),
            (Strings{"a.weight", "a.bias", "b.weight", "b.bias"}))
      << "the order is the module's";
  for (const char* fault : {"'weight': would be the name of both 'a.weight' and 'b.weight'", "'bias': would be"}) {
    expect_error(ErrorKind::kKey, fault, [&] { get_model_state_dict(*two, stripped, {two->a.get(), two->b.get()}); });
  }
  expect_error(ErrorKind::kKey, "not in the module", [&] { get_model_state_dict(*two, {}, {other->a.get()}); });

  for (const StateDictOptions& options : {StateDictOptions(), stripped}) {
    const Dict before = tensors_of(*other);
    const Dict given = deep_copy(get_model_state_dict(*two, options, {two->a.get()}));
    const LoadReport report = set_model_state_dict(*other, given, options, {other->a.get()});
    EXPECT_TRUE(report.missing.empty() && report.unexpected.empty());
    EXPECT_EQ(first_difference(tensors_of(*other->a), tensors_of(*two->a)), "");
    EXPECT_EQ(first_difference(tensors_of(*other).at("b.weight"), before.at("b.weight")), "") << "the rest stays";
    other = Two();
  }
  Dict more = deep_copy(get_model_state_dict(*two, {}, {two->a.get()}));
  more["b.weight"] = torch::ones({2, 2});
  expect_error(ErrorKind::kKey, "'b.weight': is unexpected",
               [&] { set_model_state_dict(*other, more, {}, {other->a.get()}); });
  const Dict before = deep_copy(get_model_state_dict(*other));
  const LoadReport report = set_model_state_dict(*other, more, {.strict = false}, {other->a.get()});
  EXPECT_EQ(report.unexpected, Strings{"b.weight"});
  EXPECT_EQ(first_difference(get_model_state_dict(*other).at("b.weight"), before.at("b.weight")), "");
}

TEST(StateDictOptionsTest, StatesKeyedByModule) {
  Two two, other;
  ModuleStates states(two->a.get(), deep_copy(get_model_state_dict(*other->a)));
  states.add(two->b.get(), deep_copy(get_model_state_dict(*other->b))).add(two.get(), {{"w", torch::full(2, 7.0f)}});
  const LoadReport report = set_model_state_dict(*two, states);
  EXPECT_TRUE(report.missing.empty() && report.unexpected.empty());
  EXPECT_EQ(first_difference(tensors_of(*two->b), tensors_of(*other->b)), "");
  EXPECT_EQ(first_difference(two->w.detach(), torch::full(2, 7.0f)), "");
  expect_error(ErrorKind::kKey, "'states[0]'",
               [&] { set_model_state_dict(*two, ModuleStates(other->a.get(), Dict())); });
  states.add(two.get(), {{"a.bias", torch::ones(2)}});
  expect_error(ErrorKind::kKey, "'a.bias': is in the states of two", [&] { set_model_state_dict(*two, states); });
}

TEST(StateDictOptionsTest, EmptyDicts) {
  Net net;
  optim::Adam adam(net.parameters(), 0.1);
  const StateDictOptions lenient = {.strict = false};
  expect_error(ErrorKind::kState, "of the module is empty", [&] { set_model_state_dict(net, {}); });
  expect_error(ErrorKind::kState, "of the optimizers is empty", [&] { set_optimizer_state_dict(net, adam, {}); });
  expect_error(ErrorKind::kState, "of the optimizers is empty",
               [&] { set_state_dict(net, adam, get_model_state_dict(net), {}); });
  const Dict before = everything(net, adam);
  EXPECT_TRUE(set_model_state_dict(net, {}, lenient).missing.empty()) << "nothing to do";
  EXPECT_TRUE(set_optimizer_state_dict(net, adam, {}, lenient).missing.empty());
  EXPECT_EQ(first_difference(everything(net, adam), before), "");
  const Dict optimizer = deep_copy(get_optimizer_state_dict(net, adam));
  set_state_dict(net, adam, {}, optimizer);  // An empty model dict: optimizers alone.
  const nn::ReLU nothing;
  expect_error(ErrorKind::kState, "of the module is empty", [&] { get_model_state_dict(*nothing); });
  EXPECT_TRUE(get_model_state_dict(*nothing, lenient).empty());
}

TEST(StateDictOptionsTest, AModuleOnTheMetaDeviceGetsMemory) {
  const auto make = [](c10::Device device) {
    const auto net = std::make_shared<nn::Module>();
    net->register_parameter("w", torch::ones({2, 3}, at::TensorOptions(device)));
    net->register_buffer("b", torch::ones(3, at::TensorOptions(device).dtype(at::kLong)));
    return net;
  };
  for (const bool full : {false, true}) {
    SCOPED_TRACE(full);
    const auto net = make(at::kMeta);
    at::Tensor held = net->parameters().front();
    optim::Adam adam(net->parameters(), 0.1);
    const Dict given = {{"w", torch::full({2, 3}, 5.0)}, {"b", torch::full(3, 6)}};
    const auto source = make(at::kCPU);
    optim::Adam of_source(source->parameters(), 0.2);
    source->parameters().front().mutable_grad() = torch::ones({2, 3});
    of_source.step();
    const Dict of_optimizer = deep_copy(get_optimizer_state_dict(*source, of_source));
    set_state_dict(*net, adam, given, of_optimizer, {.full_state_dict = full});
    EXPECT_TRUE(held.is_cpu() && held.requires_grad()) << "who holds it sees it";
    EXPECT_EQ(first_difference(Value(deep_copy(get_model_state_dict(*net))),
                               Value(Dict{{"w", torch::full({2, 3}, 5.0f)}, {"b", torch::full(3, 6)}})),
              "");
    EXPECT_EQ(first_difference(get_optimizer_state_dict(*net, adam), of_optimizer), "");
    held.sum().backward();
    adam.step();
    EXPECT_NE(first_difference(held.detach(), torch::full({2, 3}, 5.0f)), "");
  }
  const auto net = make(at::kCPU);
  expect_error(ErrorKind::kUnsupported, "meta device",
               [&] { set_model_state_dict(*net, {{"w", torch::ones({2, 3}, at::kMeta)}, {"b", torch::full(3, 6)}}); });
}

TEST(StateDictOptionsTest, AMetaModuleIsMetaAgainAfterAFailure) {
  const auto net = std::make_shared<nn::Module>();
  net->register_parameter("w", torch::ones(3, at::kMeta));
  const HookHandle handle = register_load_state_dict_post_hook(*net, [](nn::Module&, LoadReport&) { throw Thrown(); });
  EXPECT_THROW(set_model_state_dict(*net, {{"w", torch::ones(3)}}), Thrown);
  EXPECT_TRUE(net->parameters().front().is_meta());
}

// --- optimizers ------------------------------------------------------------------------------------------------------

/// Two optimizers over the layers of a net: the second has two groups, of which the last is empty.
struct Pair {
  explicit Pair(const Net& net, double lr) {
    first = std::make_unique<optim::Adam>(Parameters{net["one.weight"], net["one.bias"]}, optim::AdamOptions(lr));
    second = std::make_unique<optim::SGD>(
        std::vector<optim::OptimizerParamGroup>{
            optim::OptimizerParamGroup({net["two.bias"], net["two.weight"]},
                                       std::make_unique<optim::SGDOptions>(optim::SGDOptions(lr * 2).momentum(0.9))),
            optim::OptimizerParamGroup({}, std::make_unique<optim::SGDOptions>(lr * 3))},
        optim::SGDOptions(lr));
  }
  std::vector<optim::Optimizer*> both() const { return {first.get(), second.get()}; }
  OptimizerPtr first, second;
};

TEST(SeveralOptimizersTest, AreMergedAndSplit) {
  for (const bool flatten : {false, true}) {
    SCOPED_TRACE(flatten);
    const StateDictOptions options = form(flatten);
    const Net net, other;
    const Pair pair(net, 0.1), of_other(other, 0.7);
    train(net, *pair.first, 2);
    train(net, *pair.second, 3);
    const Dict state = deep_copy(get_optimizer_state_dict(net, pair.both(), options));
    if (!flatten) {
      EXPECT_EQ(keys(state.at("state").as_dict()), (Strings{"one.weight", "one.bias", "two.bias", "two.weight"}));
      EXPECT_EQ(state.at("param_groups").as_list().size(), 3U);
    }
    // The order of the optimizers and of their parameters is the other's own.
    const std::vector<optim::Optimizer*> turned = {of_other.second.get(), of_other.first.get()};
    const LoadReport report = set_optimizer_state_dict(other, turned, state, options);
    EXPECT_TRUE(report.missing.empty() && report.unexpected.empty()) << report.unexpected.size();
    const auto copied = [&](const OptimizerPtr& a, const OptimizerPtr& b) {
      return first_difference(get_optimizer_state_dict(other, *b, options), get_optimizer_state_dict(net, *a, options));
    };
    EXPECT_EQ(copied(pair.first, of_other.first), "");
    EXPECT_EQ(copied(pair.second, of_other.second), "");
    if (!flatten) {
      EXPECT_DOUBLE_EQ(of_other.second->param_groups()[1].options().get_lr(), 0.1 * 3) << "the empty group";
    }
    Dict more = state;
    const std::string name = flatten ? "state.three.exp_avg" : "three";
    (flatten ? more : more.at("state").as_dict())[name] = flatten ? Value(torch::ones(2)) : Value(Dict());
    EXPECT_EQ(set_optimizer_state_dict(other, of_other.both(), more, options).unexpected,
              Strings{flatten ? "state.three.exp_avg" : "state.three"});
    if (!flatten) more.at("state").as_dict().erase("two.bias");
    if (flatten) more.erase("state.two.bias.momentum_buffer");
    const Dict before = everything(other, *of_other.first);
    expect_error(ErrorKind::kKey, "'state.two.bias",
                 [&] { set_optimizer_state_dict(other, of_other.both(), more, options); });
    EXPECT_EQ(first_difference(everything(other, *of_other.first), before), "") << "none changes if one cannot";
  }
}

TEST(SeveralOptimizersTest, AParameterOfTwoIsAnError) {
  Net net;
  optim::SGD a({net["one.weight"]}, 0.1), b({net["one.weight"], net["one.bias"]}, 0.1);
  const char* text = "'one.weight': is a parameter of two optimizers";
  expect_error(ErrorKind::kKey, text, [&] { get_optimizer_state_dict(net, {&a, &b}); });
  const Dict state = get_optimizer_state_dict(net, b);
  expect_error(ErrorKind::kKey, text, [&] { set_optimizer_state_dict(net, {&a, &b}, state); });
}

TEST(StateDictOptionsTest, FallsBackToPositionsOnlyWhenNotStrict) {
  const Net net({"one", "two"}), renamed({"three", "four"});
  const auto groups = [](const Net& n, const char* a, const char* b, double lr) {
    return std::vector<optim::OptimizerParamGroup>{
        optim::OptimizerParamGroup({n[std::string(a) + ".weight"], n[std::string(a) + ".bias"]},
                                   std::make_unique<optim::AdamOptions>(lr)),
        optim::OptimizerParamGroup({n[std::string(b) + ".weight"], n[std::string(b) + ".bias"]},
                                   std::make_unique<optim::AdamOptions>(lr * 2))};
  };
  optim::Adam adam(groups(net, "one", "two", 0.1), 0.5), other(groups(renamed, "three", "four", 0.3), 0.5);
  const Dict state = deep_copy(get_optimizer_state_dict(net, adam));
  expect_error(ErrorKind::kKey, "'param_groups.four.bias': is missing",
               [&] { set_optimizer_state_dict(renamed, other, state); });
  EXPECT_DOUBLE_EQ(other.param_groups()[1].options().get_lr(), 0.6);
  const LoadReport report = set_optimizer_state_dict(renamed, other, state, {.strict = false});
  EXPECT_DOUBLE_EQ(other.param_groups()[0].options().get_lr(), 0.1);
  EXPECT_DOUBLE_EQ(other.param_groups()[1].options().get_lr(), 0.2);
  EXPECT_EQ(std::count(report.missing.begin(), report.missing.end(), "param_groups.four.bias"), 1);
  EXPECT_EQ(std::count(report.unexpected.begin(), report.unexpected.end(), "state.one.weight"), 1);
}

TEST(StateDictOptionsTest, NumbersForParametersPass) {
  const Net net, other;
  optim::Adam adam(net.parameters(), 0.1), of_other(other.parameters(), 0.2);
  train(net, adam, 2);
  const Dict numbered = deep_copy(state_dict(adam));
  const LoadReport report = set_optimizer_state_dict(other, of_other, numbered);
  EXPECT_TRUE(report.missing.empty() && report.unexpected.empty());
  EXPECT_EQ(first_difference(state_dict(of_other), numbered), "");
  optim::SGD second({other["one.weight"]}, 0.1);
  optim::SGD third({other["one.bias"]}, 0.1);
  expect_error(ErrorKind::kInvalidArgument, "belongs to one optimizer",
               [&] { set_optimizer_state_dict(other, {&second, &third}, numbered); });
}

TEST(StateDictOptionsTest, ATiedParameterIsFoundUnderAnyOfItsNames) {
  const auto make = [](const char* first, const char* second) {
    const auto net = std::make_shared<nn::Module>();
    const nn::Linear tied(2, 2);
    net->register_module(first, tied);
    net->register_module(second, tied);
    return net;
  };
  const auto net = make("a", "b"), other = make("b", "a");
  for (const bool flatten : {false, true}) {
    SCOPED_TRACE(flatten);
    const auto unique = [](const nn::Module& module) {
      Parameters parameters;
      for (const ModuleTensor& entry : unique_parameters(module)) parameters.push_back(entry.tensor);
      return parameters;
    };
    optim::Adam adam(unique(*net), 0.1), of_other(unique(*other), 0.2);
    for (at::Tensor& parameter : net->parameters()) parameter.mutable_grad() = torch::ones_like(parameter);
    adam.step();
    const Dict state = deep_copy(get_optimizer_state_dict(*net, adam, form(flatten)));
    const LoadReport report = set_optimizer_state_dict(*other, of_other, state, form(flatten));
    EXPECT_TRUE(report.missing.empty() && report.unexpected.empty());
    EXPECT_EQ(first_difference(state_dict(of_other).at("state"), state_dict(adam).at("state")), "");
    EXPECT_DOUBLE_EQ(of_other.param_groups()[0].options().get_lr(), 0.1);
  }
}

TEST(StateDictOptionsTest, SubmodulesLimitOptimizersToo) {
  for (const bool flatten : {false, true}) {
    for (const bool keep : {true, false}) {
      SCOPED_TRACE(c10::str(flatten, " ", keep));
      Two two, other;
      StateDictOptions options = form(flatten);
      options.keep_submodule_prefixes = keep;
      optim::Adam adam(two->parameters(), 0.1), of_other(other->parameters(), 0.2);
      for (const auto& net : {two, other}) {
        for (at::Tensor& parameter : net->parameters()) parameter.mutable_grad() = torch::ones_like(parameter);
      }
      adam.step();
      of_other.step();
      of_other.step();
      const auto [model, optimizer] = get_state_dict(*two, adam, options, {two->a.get()});
      if (!flatten) {
        EXPECT_EQ(keys(optimizer.at("state").as_dict()), keys(model));
      }
      const Dict all_before = deep_copy(get_optimizer_state_dict(*other, of_other));
      const LoadReport report =
          set_state_dict(*other, of_other, deep_copy(model), deep_copy(optimizer), options, {other->a.get()});
      EXPECT_TRUE(report.missing.empty() && report.unexpected.empty());
      const Dict all = get_optimizer_state_dict(*other, of_other), source = get_optimizer_state_dict(*two, adam);
      for (const char* name : {"a.weight", "a.bias"}) {
        EXPECT_EQ(first_difference(all.at("state").as_dict().at(name), source.at("state").as_dict().at(name)), "");
      }
      for (const char* name : {"w", "b.weight", "b.bias"}) {
        EXPECT_EQ(first_difference(all.at("state").as_dict().at(name), all_before.at("state").as_dict().at(name)), "");
      }
    }
  }
}

// --- all or nothing --------------------------------------------------------------------------------------------------

/// All that a failing load must leave alone.
struct Watch {
  Watch(const Net& net, const optim::Optimizer& optimizer) : net(net), optimizer(optimizer) {
    for (const at::Tensor& parameter : net.parameters()) gradients.push_back(parameter.grad());
    before = everything(net, optimizer);
  }
  void expect_unchanged() const {
    EXPECT_EQ(first_difference(everything(net, optimizer), before), "");
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      EXPECT_TRUE(net.parameters()[i].grad().is_same(gradients[i])) << "the very gradient";
    }
  }
  const Net& net;
  const optim::Optimizer& optimizer;
  std::vector<at::Tensor> gradients;
  Dict before;
};

TEST(TransactionTest, BothAreCheckedBeforeEitherChanges) {
  Net net, source;
  optim::Adam adam(net.parameters(), 0.1), of_source(source.parameters(), 0.2);
  train(source, of_source, 2);
  train(net, adam, 1);
  const Watch watch(net, adam);
  auto [model, optimizer] = get_state_dict(source, of_source);
  model.erase("one.bias");
  model["two.bias"] = torch::ones(3);
  optimizer.at("state").as_dict().at("one.weight").as_dict()["exp_avg"] = torch::ones(7);
  for (const char* fault : {"'one.bias': is missing", "'two.bias': the given tensor has shape [3]",
                            "'state.one.weight.exp_avg': the given tensor has shape [7]"}) {
    expect_error(ErrorKind::kShape, fault, [&] { set_state_dict(net, adam, model, optimizer); });
  }
  watch.expect_unchanged();
}

TEST(TransactionTest, WhatHooksThrowTakesEverythingBack) {
  Net net, source;
  optim::Adam adam(net.parameters(), 0.1), of_source(source.parameters(), 0.2);
  train(source, of_source, 2);
  train(net, adam, 1);
  const auto [model, optimizer] = get_state_dict(source, of_source);
  const Watch watch(net, adam);
  const auto spoil = [&] {
    for (at::Tensor& parameter : net.parameters()) {
      parameter.grad().detach().fill_(3);
      parameter.mutable_grad() = at::Tensor();
    }
    throw Thrown();
  };
  {
    const HookHandle hook = register_load_state_dict_post_hook(net, [&](nn::Module&, LoadReport&) { spoil(); });
    EXPECT_THROW(set_state_dict(net, adam, model, optimizer), Thrown);
    watch.expect_unchanged();
    EXPECT_THROW(set_model_state_dict(net, model), Thrown);
    watch.expect_unchanged();
  }
  {
    const HookHandle hook = register_load_state_dict_post_hook(adam, [&](optim::Optimizer&) { spoil(); });
    EXPECT_THROW(set_state_dict(net, adam, model, optimizer), Thrown);
    watch.expect_unchanged();
    EXPECT_THROW(set_optimizer_state_dict(net, adam, optimizer), Thrown);
    watch.expect_unchanged();
  }
  {
    const HookHandle hook = register_load_state_dict_pre_hook(adam, [](optim::Optimizer&, Dict&) { throw Thrown(); });
    EXPECT_THROW(set_state_dict(net, adam, model, optimizer), Thrown);
    watch.expect_unchanged();
  }
  set_state_dict(net, adam, model, optimizer);
  EXPECT_EQ(first_difference(get_optimizer_state_dict(net, adam), optimizer), "");
}

TEST(TransactionTest, AnExtraStateThatCannotBeSetTakesTheOptimizerBack) {
  Net net;
  optim::Adam adam(net.parameters(), 0.1);
  bool fails = true;
  const HookHandle handle = register_extra_state(
      net, [] { return Value(1); },
      [&](const Value&) {
        if (fails) throw Thrown();
      });
  train(net, adam, 1);
  const auto [model, optimizer] = get_state_dict(net, adam);
  const Dict given_model = deep_copy(model), given_optimizer = deep_copy(optimizer);
  train(net, adam, 2);
  const Watch watch(net, adam);
  EXPECT_THROW(set_state_dict(net, adam, given_model, given_optimizer), Thrown);
  watch.expect_unchanged();
  fails = false;
  set_state_dict(net, adam, given_model, given_optimizer);
  EXPECT_EQ(first_difference(get_optimizer_state_dict(net, adam), given_optimizer), "");
}

TEST(TransactionTest, TheGivenDictIsNeverChanged) {
  const auto net = std::make_shared<nn::Module>();
  net->register_module("inner", DistributedDataParallel(nn::Linear(2, 2).ptr()));
  const Dict given = deep_copy(get_model_state_dict(*net)), copy = deep_copy(given);
  for (const bool full : {false, true}) {
    set_model_state_dict(*net, given, {.full_state_dict = full});
    EXPECT_EQ(first_difference(given, copy), "");
  }
}

// --- costs -----------------------------------------------------------------------------------------------------------

TEST(StateDictCostTest, AskingForTenThousandParametersCopiesNothing) {
  const auto net = std::make_shared<nn::Module>();
  for (int i = 0; i < 100; ++i) {
    const auto layer = std::make_shared<nn::Module>();
    for (int k = 0; k < 100; ++k) layer->register_parameter("p" + std::to_string(k), torch::zeros(4096));
    net->register_module("l" + std::to_string(i), DistributedDataParallel(layer));
  }
  const std::int64_t bytes_of_tensors = std::int64_t{10000} * 4096 * 4;
  const testing::PeakMemory memory;
  const Dict state = get_model_state_dict(*net);
  EXPECT_LT(memory.allocated_bytes(), bytes_of_tensors / 4);
  ASSERT_EQ(state.size(), 10000U);
  EXPECT_TRUE(state.at("l99.p99").as_tensor().is_same(net->named_parameters()["l99.module.p99"]));
}

}  // namespace
}  // namespace dcp::test

// State of modules in Python's form: extra state, buffers that are no state, modules on the stack, and loads that are
// all or nothing.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>
#include <memory>
#include <optional>

#include "test/model_state/hook_support.h"
#include "test/support/memory_counter.h"
#include "torch_dcp/checkpoint/load.h"
#include "torch_dcp/model_state/extra_state.h"
#include "torch_dcp/model_state/fqn.h"
#include "torch_dcp/model_state/model_state_dict.h"
#include "torch_dcp/tensor/device_mesh.h"
#include "torch_dcp/tensor/dtensor.h"

namespace dcp::test {
namespace {

/// A leaf that counts, and writes its counter into its state.
struct CountingImpl : LeafImpl, HasExtraState {
  using LeafImpl::LeafImpl;
  Value get_extra_state() const override { return Dict{{"count", count}, {"history", history}}; }
  void set_extra_state(const Value& state) override {
    count = state.as_dict().at("count").as_int();
    if (fails_after_count) throw Thrown();
    history.copy_(state.as_dict().at("history").as_tensor());
  }
  std::int64_t count = 0;
  at::Tensor history = torch::zeros(2);
  bool fails_after_count = false;
};
TORCH_MODULE(Counting);

/// first, second: leaves that count.
struct TwoCountersImpl : nn::Module {
  TwoCountersImpl() {
    register_module("first", first);
    register_module("second", second);
  }
  void set(std::int64_t value) {
    for (Counting& counting : std::vector<Counting>{first, second}) {
      counting->count = value;
      counting->history.fill_(static_cast<double>(value));
      counting->w.detach().fill_(static_cast<double>(value));
    }
  }
  Counting first, second;
};
TORCH_MODULE(TwoCounters);

Dict everything_in(const TwoCountersImpl& module) {
  return {{"tensors", tensors_of(module)},
          {"first", deep_copy(module.first->get_extra_state())},
          {"second", deep_copy(module.second->get_extra_state())}};
}

// --- extra state -----------------------------------------------------------------------------------------------------

TEST(ExtraStateTest, IsReadAndWrittenUnderPythonsKey) {
  TwoCounters module, other;
  module->set(3);
  const Dict state = state_dict(*module);
  EXPECT_EQ(keys(state),
            (Strings{"first.w", "first.b", "first._extra_state", "second.w", "second.b", "second._extra_state"}));
  EXPECT_EQ(state.at("first._extra_state").as_dict().at("count").as_int(), 3);
  const LoadReport report = load_state_dict(*other, state);
  EXPECT_TRUE(report.missing.empty() && report.unexpected.empty());
  EXPECT_EQ(first_difference(everything_in(*other), everything_in(*module)), "");
}

TEST(ExtraStateTest, IsRegisteredForModulesOfAnyClass) {
  nn::Sequential module(nn::Linear(2, 2), nn::ReLU());
  std::string text = "saved";
  {
    const auto extra = register_extra_state(
        *module->ptr(0), [&] { return Value(text); }, [&](const Value& state) { text = state.as_string(); });
    Dict state = get_model_state_dict(*module);
    EXPECT_EQ(keys(state), (Strings{"0.weight", "0.bias", "0._extra_state"}));
    text = "other";
    set_model_state_dict(*module, state);
    EXPECT_EQ(text, "saved");
    state["0._extra_state"] = "given";
    load_state_dict(*module, state);
    EXPECT_EQ(text, "given");
  }
  EXPECT_EQ(keys(state_dict(*module)), (Strings{"0.weight", "0.bias"}));
}

TEST(ExtraStateTest, OfTheRootAndBeforeTheChildren) {
  Tree tree;
  const auto extra = register_extra_state(*tree, [] { return Value(1); }, [](const Value&) {});
  EXPECT_EQ(keys(state_dict(*tree, {.prefix = "m."})),
            (Strings{"m.w", "m.b", "m._extra_state", "m.c.w", "m.c.b", "m.c.d.w", "m.c.d.b", "m.e.w", "m.e.b"}));
}

TEST(ExtraStateTest, MissingAndUnexpectedAreNamed) {
  TwoCounters module;
  module->set(3);
  Dict state = deep_copy(state_dict(*module));
  state.erase("second._extra_state");
  state["_extra_state"] = 5;
  for (const char* fault : {"2 faults", "'second._extra_state': is missing", "'_extra_state': is unexpected"}) {
    expect_error(ErrorKind::kKey, fault, [&] { load_state_dict(*module, state); });
  }
  module->set(4);
  const LoadReport report = load_state_dict(*module, state, {.strict = false});
  EXPECT_EQ(report.missing, Strings{"second._extra_state"});
  EXPECT_EQ(report.unexpected, Strings{"_extra_state"});
  EXPECT_EQ(module->first->count, 3);
  EXPECT_EQ(module->second->count, 4);
}

TEST(ExtraStateTest, AModuleHasOneOnly) {
  Counting counting;
  Leaf leaf;
  const auto get = [] { return Value(1); };
  const auto set = [](const Value&) {};
  expect_error(ErrorKind::kKey, "extra state already", [&] { (void)register_extra_state(*counting, get, set); });
  auto extra = register_extra_state(*leaf, get, set);
  expect_error(ErrorKind::kKey, "LeafImpl has extra state already",
               [&] { (void)register_extra_state(*leaf, get, set); });
  extra.remove();
  EXPECT_TRUE(register_extra_state(*leaf, get, set));
  expect_error(ErrorKind::kInvalidArgument, "getter and a setter",
               [&] { (void)register_extra_state(*leaf, get, nullptr); });
}

TEST(ExtraStateTest, AFailingSetterTakesEverythingBack) {
  TwoCounters module, given;
  module->set(3);
  given->set(7);
  const Dict before = everything_in(*module);
  module->second->fails_after_count = true;
  // The first one was set, and the second to a half, when it fails; then it fails again when it is set back.
  expect_error(ErrorKind::kState, "'second._extra_state': ", [&] { load_state_dict(*module, state_dict(*given)); });
  EXPECT_EQ(first_difference(everything_in(*module), before), "") << "what can be put back";
  expect_error(ErrorKind::kState, "thrown by the test\nAfter this, the module could not be put back",
               [&] { load_state_dict(*module, state_dict(*given)); });
}

TEST(ExtraStateTest, AnExceptionOfASetterPassesUnchanged) {
  TwoCounters module, given;
  module->set(3);
  given->set(7);
  const auto extra = register_extra_state(*module, [] { return Value(1); }, [](const Value&) { throw Thrown(); });
  Dict state = state_dict(*given);
  state["_extra_state"] = 2;
  const Dict before = everything_in(*module);
  EXPECT_THROW(load_state_dict(*module, state), Thrown);
  EXPECT_EQ(first_difference(everything_in(*module), before), "");
}

TEST(ExtraStateTest, AFailingPostHookTakesItBack) {
  TwoCounters module, given;
  module->set(3);
  given->set(7);
  const Dict before = everything_in(*module);
  const auto hook = register_load_state_dict_post_hook(*module->second, [&](nn::Module&, LoadReport&) {
    EXPECT_EQ(module->first->count, 7);
    throw Thrown();
  });
  EXPECT_THROW(load_state_dict(*module, state_dict(*given)), Thrown);
  EXPECT_EQ(first_difference(everything_in(*module), before), "");
}

TEST(ExtraStateTest, NothingIsSetIfAnythingIsWrong) {
  TwoCounters module, given;
  given->set(7);
  Dict state = state_dict(*given);
  state["second.b"] = torch::ones(9);
  const Dict before = everything_in(*module);
  expect_error(ErrorKind::kShape, "second.b", [&] { load_state_dict(*module, state); });
  EXPECT_EQ(first_difference(everything_in(*module), before), "");
}

TEST(ExtraStateTest, PassesThroughACheckpoint) {
  TwoCounters module, other;
  module->set(3);
  const Place place;
  place.save({{"model", state_dict(*module)}});
  FileSystemReader reader("ckpt", {.file_system = place.files});
  load_state_dict(*other, load_keys(reader).at("model").as_dict());
  EXPECT_EQ(first_difference(everything_in(*other), everything_in(*module)), "");
}

// --- buffers that are no state ---------------------------------------------------------------------------------------

struct CachingImpl : nn::Module, HasNonPersistentBuffers {
  CachingImpl() {
    register_buffer("table", torch::ones(2));
    cache = register_buffer("cache", torch::full({2}, 5));
  }
  std::set<std::string> non_persistent_buffers() const override { return names; }
  at::Tensor forward(const at::Tensor& input) { return input; }
  std::set<std::string> names = {"cache"};
  at::Tensor cache;
};
TORCH_MODULE(Caching);

TEST(NonPersistentBuffersTest, OfAClassOfOnesOwn) {
  Caching caching;
  nn::Sequential module(caching);
  const Dict state = state_dict(*module);
  EXPECT_EQ(keys(state), Strings{"0.table"});
  EXPECT_TRUE(load_state_dict(*module, state).missing.empty());
  Dict more = state;
  more["0.cache"] = torch::zeros(2);
  expect_error(ErrorKind::kKey, "'0.cache': is unexpected", [&] { load_state_dict(*module, more); });
  load_state_dict(*module, more, {.strict = false});
  EXPECT_TRUE(bit_equal(caching->cache, torch::full({2}, 5)));
  caching->names = {"cash"};
  for (const bool loads : {false, true}) {
    expect_error(ErrorKind::kKey, "'0.cash': the module has no such buffer", [&] {
      if (loads) {
        load_state_dict(*module, state);
      } else {
        state_dict(*module);
      }
    });
  }
}

struct Convolutional : nn::Module {
  Convolutional() {
    register_parameter("scale", torch::ones(1));
    register_buffer("table", torch::ones(2));
    cache = register_buffer("cache", torch::full({2}, 5));
    nn::Sequential net(nn::Conv2d(1, 2, 3), nn::BatchNorm2d(2));
    net->register_module("2", nn::Sequential(nn::ReLU(), nn::Linear(8, 2)).ptr());
    register_module("net", net);
  }
  at::Tensor cache;
};

TEST(NonPersistentBuffersTest, O31_NamesOfAModuleOnTheStack) {
  Convolutional module, other;
  const HookHandle hooks = register_non_persistent_buffers(module, {"cache"});
  const HookHandle of_other = register_non_persistent_buffers(other, {"cache"});
  const Strings names = {"scale",
                         "table",
                         "net.0.weight",
                         "net.0.bias",
                         "net.1.weight",
                         "net.1.bias",
                         "net.1.running_mean",
                         "net.1.running_var",
                         "net.1.num_batches_tracked",
                         "net.2.1.weight",
                         "net.2.1.bias"};
  const Dict state = state_dict(module);
  EXPECT_EQ(keys(state), names);
  EXPECT_EQ(keys(get_model_state_dict(module)), names);
  EXPECT_TRUE(state.at("net.0.weight").as_tensor().is_same(module.named_parameters()["net.0.weight"])) << "live";
  const Place place;
  place.save({{"model", state}});
  Dict loaded = {{"model", deep_copy(state_dict(other))}};
  place.load(loaded);
  other.cache.fill_(6);
  const LoadReport report = load_state_dict(other, loaded.at("model").as_dict());
  EXPECT_TRUE(report.missing.empty() && report.unexpected.empty());
  EXPECT_EQ(first_difference(state_dict(other), state), "");
  EXPECT_TRUE(bit_equal(other.cache, torch::full({2}, 6)));
}

TEST(NonPersistentBuffersTest, RegisteredNamesMustBeBuffersOfTheModuleItself) {
  Tree tree;
  for (const char* fault : {"2 faults", "'c.b': the module itself has no such buffer", "'w': the module itself"}) {
    expect_error(ErrorKind::kKey, fault, [&] { (void)register_non_persistent_buffers(*tree, {"b", "w", "c.b"}); });
  }
  EXPECT_EQ(attachment_count(), 0);
  {
    HookHandle hooks = register_non_persistent_buffers(*tree, {"b"});
    hooks.add(register_non_persistent_buffers(*tree->d, {"b"}));
    EXPECT_EQ(keys(state_dict(*tree)), (Strings{"w", "c.w", "c.b", "c.d.w", "e.w", "e.b"}));
  }
  EXPECT_EQ(keys(state_dict(*tree)), tree_names());
}

TEST(ModuleStateTest, NullTensorsAndChildrenAreSkipped) {
  Leaf leaf;
  leaf->register_parameter("none", at::Tensor(), /*requires_grad=*/false);
  leaf->register_buffer("nothing", at::Tensor());
  leaf->register_module("child", std::shared_ptr<nn::Module>());
  const Dict state = state_dict(*leaf);
  EXPECT_EQ(keys(state), (Strings{"w", "b"}));
  EXPECT_TRUE(load_state_dict(*leaf, state).missing.empty());
}

TEST(ModuleStateTest, OneNameForTwoTensorsIsAnError) {
  Leaf leaf;
  leaf->register_module("x", Leaf());
  leaf->register_parameter("y", torch::ones(1));
  leaf->register_buffer("y", torch::zeros(1));
  expect_error(ErrorKind::kKey, "'y': names several tensors", [&] { state_dict(*leaf); });
  expect_error(ErrorKind::kKey, "'y': names several tensors",
               [&] { load_state_dict(*leaf, Dict(), {.strict = false}); });
}

// --- loads -----------------------------------------------------------------------------------------------------------

TEST(LoadStateDictTest, CopiesInPlaceByTheDtypePolicy) {
  Leaf leaf;
  const at::Tensor w = leaf->w;
  const Dict wide = {{"w", torch::full({2}, 1.5, torch::kDouble)}, {"b", torch::full({3}, 2.0)}};
  expect_error(ErrorKind::kType, "'w': the given tensor is float64", [&] { load_state_dict(*leaf, wide); });
  const LoadReport report = load_state_dict(*leaf, wide, {.dtype_policy = DtypePolicy::kAny});
  EXPECT_EQ(report.converted, (std::vector<DtypeConversion>{{"w", "float64", "float32"}}));
  EXPECT_TRUE(bit_equal(w, torch::full({2}, 1.5f)));
  EXPECT_TRUE(w.requires_grad());
  EXPECT_TRUE(leaf->w.is_same(w));
}

TEST(LoadStateDictTest, AllFaultsAreNamedAndNothingChanges) {
  TwoCounters module;
  module->set(2);
  const auto hook = register_load_state_dict_post_hook(*module, [](nn::Module&, LoadReport&) { FAIL() << "runs"; });
  const Dict before = everything_in(*module);
  Dict state = deep_copy(state_dict(*module));
  state["first.w"] = torch::ones({2, 1});
  state["first.b"] = torch::ones(3, torch::kDouble);
  state["second.w"] = 4;
  state["second.b"] = DTensor(torch::ones(3), DeviceMesh::make({1}, 0), {Placement::shard(0)}, {3});
  state.erase("first._extra_state");
  state["more"] = 1;
  state[std::int64_t{7}] = 1;
  for (const char* fault :
       {"7 faults", "'first.w': the given tensor has shape [2, 1], the current one [2]",
        "'first.b': the given tensor is float64", "'second.w': a plain tensor is needed, a int is given",
        "'second.b': a plain tensor is needed, a DTensor", "'first._extra_state': is missing", "'more': is unexpected",
        "'7': is unexpected"}) {
    expect_error(ErrorKind::kShape, fault, [&] { load_state_dict(*module, state); });
  }
  EXPECT_EQ(first_difference(everything_in(*module), before), "");
}

TEST(LoadStateDictTest, EveryMissingNameIsNamed) {
  Tree tree;
  const Dict before = tensors_of(*tree);
  Dict state = tensors_of(*Tree(5));
  const Strings missing = {"w", "c.b", "c.d.w", "e.b"};
  for (const std::string& name : missing) state.erase(name);
  for (const std::string& name : missing) {
    expect_error(ErrorKind::kKey, "'" + name + "': is missing", [&] { load_state_dict(*tree, state); });
  }
  expect_error(ErrorKind::kKey, "4 faults", [&] { load_state_dict(*tree, state); });
  EXPECT_EQ(first_difference(tensors_of(*tree), before), "");
  EXPECT_EQ(load_state_dict(*tree, state, {.strict = false}).missing, missing);
}

TEST(LoadStateDictTest, ItsOwnStateChangesNothing) {
  Tree tree;
  const Dict before = tensors_of(*tree);
  const LoadReport report = load_state_dict(*tree, state_dict(*tree));
  EXPECT_TRUE(report.missing.empty() && report.unexpected.empty() && report.converted.empty());
  EXPECT_EQ(first_difference(tensors_of(*tree), before), "");
}

TEST(LoadStateDictTest, TakesNoMemoryOfTheStatesSizeWithoutPostHooks) {
  constexpr std::int64_t kNumel = 4 << 20;
  nn::Linear big(nn::LinearOptions(kNumel / 64, 64).bias(false));
  const Dict given = {{"weight", torch::ones({64, kNumel / 64})}};
  const auto pre = register_load_state_dict_pre_hook(*big, [](const LoadPreHookArgs&) {});
  const auto memory_of_load = [&] {
    const testing::PeakMemory memory;
    load_state_dict(*big, given);
    return memory.bytes();
  };
  EXPECT_LT(memory_of_load(), 1 << 20);
  const auto post = register_load_state_dict_post_hook(*big, [](nn::Module&, LoadReport&) {});
  EXPECT_GE(memory_of_load(), kNumel * 4) << "the counter sees tensors";
}

TEST(LoadStateDictTest, AssignTakesTheGivenMemory) {
  Leaf leaf;
  const at::Tensor w = leaf->w;
  const at::Tensor given = torch::full({2}, 3.0, torch::kDouble);
  const LoadReport report = load_state_dict(*leaf, {{"w", given}, {"b", torch::ones(3)}},
                                            {.dtype_policy = DtypePolicy::kExact, .assign = true});
  EXPECT_TRUE(report.converted.empty());
  EXPECT_TRUE(leaf->w.is_same(w)) << "an optimizer's parameter stays the same";
  EXPECT_TRUE(w.requires_grad());
  EXPECT_EQ(w.scalar_type(), torch::kDouble);
  EXPECT_EQ(w.const_data_ptr(), given.const_data_ptr());
  EXPECT_TRUE(bit_equal(w, given));
  w.sum().backward();
  EXPECT_TRUE(bit_equal(w.grad(), torch::ones(2, torch::kDouble)));
}

TEST(LoadStateDictTest, AssignRefusesBeforeTheFirstChange) {
  Leaf leaf;
  const Dict before = tensors_of(*leaf);
  const Dict state = {{"w", torch::ones(2, torch::kLong)}, {"b", torch::ones(3, torch::kMeta)}};
  for (const char* fault : {"'w': the given tensor is int64", "'b': the given tensor, on meta"}) {
    expect_error(ErrorKind::kType, fault, [&] { load_state_dict(*leaf, state, {.assign = true}); });
  }
  expect_error(ErrorKind::kShape, "'b'",
               [&] { load_state_dict(*leaf, {{"w", torch::ones(2)}, {"b", torch::ones(1)}}, {.assign = true}); });
  EXPECT_EQ(first_difference(tensors_of(*leaf), before), "");
}

TEST(LoadStateDictTest, AssignIsTakenBackWithTheMemory) {
  Leaf leaf;
  const Dict before = tensors_of(*leaf);
  const void* const memory = leaf->w.const_data_ptr();
  const auto hook = register_load_state_dict_post_hook(*leaf, [](nn::Module&, LoadReport&) { throw Thrown(); });
  const Dict given = {{"w", torch::ones(2, torch::kDouble)}, {"b", torch::zeros(3)}};
  EXPECT_THROW(load_state_dict(*leaf, given, {.assign = true}), Thrown);
  EXPECT_EQ(first_difference(tensors_of(*leaf), before), "");
  EXPECT_EQ(leaf->w.const_data_ptr(), memory);
}

TEST(LoadStateDictTest, TiedTensors) {
  nn::Linear shared(2, 2);
  nn::Sequential module(shared, shared);
  Dict state = deep_copy(state_dict(*module));
  state.at("1.weight").as_tensor().add_(1);
  expect_error(ErrorKind::kInvalidArgument, "'1.weight': is one tensor with 0.weight",
               [&] { load_state_dict(*module, state); });
  for (const bool assign : {false, true}) {
    load_state_dict(*module, state, {.strict = false, .assign = assign});
    EXPECT_TRUE(bit_equal(shared->weight, state.at("0.weight").as_tensor()));
  }
}

}  // namespace
}  // namespace dcp::test

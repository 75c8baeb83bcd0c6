// Patched objects, a whole training under one key, objects that save themselves into archives, random generators.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <memory>
#include <tuple>

#include "test/model_state/hook_support.h"
#include "test/model_state/wrapped_support.h"
#include "torch_dcp/model_state/app_state.h"
#include "torch_dcp/model_state/archive_adapter.h"
#include "torch_dcp/model_state/model_state_dict.h"
#include "torch_dcp/model_state/optimizer_positional_state.h"
#include "torch_dcp/model_state/patch.h"
#include "torch_dcp/model_state/random_state.h"
#include "torch_dcp/model_state/training_state.h"
#include "torch_dcp/state_dict/per_rank.h"

namespace dcp::test {
namespace {

// --- patches ---------------------------------------------------------------------------------------------------------

TEST(PatchTest, AModuleGivesWhatTheOptionsSayUntilTheHandleDies) {
  DistributedDataParallel net(nn::Linear(2, 2).ptr());
  {
    const HookHandle handle = patch_model_state_dict(*net, {.strict = false});
    EXPECT_EQ(keys(state_dict(*net, {.prefix = "ignored."})), (Strings{"weight", "bias"}));
    EXPECT_EQ(keys(get_model_state_dict(*net)), (Strings{"weight", "bias"})) << "does not recurse";
    const LoadReport report = load_state_dict(*net, {{"weight", torch::ones({2, 2})}}, {.strict = true});
    EXPECT_EQ(report.missing, Strings{"bias"}) << "the options of the patch count";
    expect_error(ErrorKind::kKey, "patched already", [&] { std::ignore = patch_model_state_dict(*net); });
  }
  EXPECT_EQ(keys(state_dict(*net)), (Strings{"module.weight", "module.bias"}));
  EXPECT_EQ(attachment_count(), 0);
}

TEST(PatchTest, EachOptimizerGivesTheStateOfAll) {
  Net net, other;
  optim::Adam a({net["one.weight"], net["one.bias"]}, 0.1);
  optim::SGD b({net["two.weight"], net["two.bias"]}, optim::SGDOptions(0.2).momentum(0.9));
  train(net, a, 2);
  train(net, b, 2);
  HookHandle handle = patch_optimizer_state_dict(net, {&a, &b}, {.flatten_optimizer_state_dict = true});
  const Dict merged = get_optimizer_state_dict(net, {&a, &b}, {.flatten_optimizer_state_dict = true});
  EXPECT_EQ(first_difference(state_dict(a), merged), "");
  EXPECT_EQ(first_difference(state_dict(b), merged), "");
  const Dict stored = deep_copy(merged);
  train(net, a, 1);
  train(net, b, 1);
  load_state_dict(b, stored);
  EXPECT_EQ(first_difference(state_dict(a), stored), "") << "all are loaded through one";
  optim::SGD c({net["one.weight"]}, 0.1);
  expect_error(ErrorKind::kKey, "patched already", [&] { std::ignore = patch_optimizer_state_dict(net, {&c, &a}); });
  EXPECT_NO_THROW(patch_optimizer_state_dict(net, c).remove()) << "nothing stays of the failed patch";
  handle.remove();
  EXPECT_TRUE(state_dict(a).contains("param_groups"));
  EXPECT_EQ(attachment_count(), 0);
}

TEST(PatchTest, TheModuleMayDieFirst) {
  auto net = std::make_shared<nn::Module>();
  const at::Tensor parameter = net->register_parameter("w", torch::ones(2));
  optim::SGD sgd({parameter}, 0.1);
  const HookHandle handle = patch_optimizer_state_dict(*net, sgd);
  net.reset();
  expect_error(ErrorKind::kState, "is gone", [&] { state_dict(sgd); });
  expect_error(ErrorKind::kState, "is gone", [&] { load_state_dict(sgd, {}); });
  auto patched = std::make_shared<nn::Module>();
  const HookHandle of_module = patch_model_state_dict(*patched);
  patched.reset();
}

TEST(PatchTest, ABroadcastCountsForTheLoadOnly) {
  nn::Linear net(2, 2);
  StateDictOptions options = {.full_state_dict = true, .broadcast_from_rank0 = true};
  expect_error(ErrorKind::kInvalidArgument, "'broadcast_from_rank0'",
               [&] { std::ignore = patch_model_state_dict(*net, options); });
  options.communicator = std::make_shared<Communicator>(Communicator::single());
  const HookHandle handle = patch_model_state_dict(*net, options);
  const Dict state = deep_copy(state_dict(*net));
  load_state_dict(*net, state);
}

// --- a whole training ------------------------------------------------------------------------------------------------

struct Counter : Stateful {
  Dict state_dict() override { return {{"n", n}}; }
  void load_state_dict(const Dict& state) override {
    if (fails) throw Thrown();
    n = state.at("n").as_int();
  }
  std::int64_t n = 0;
  bool fails = false;
};

struct Training {
  explicit Training(double lr = 0.1, const StateDictOptions& options = {})
      : adam(net.parameters(), lr), app(std::make_shared<AppState>(net, adam, options)) {
    app->add("counter", counter).add("epoch", 0).add("name", "run");
  }
  Net net;
  optim::Adam adam;
  std::shared_ptr<Counter> counter = std::make_shared<Counter>();
  std::shared_ptr<AppState> app;
};

TEST(AppStateTest, PassesThroughACheckpointUnderOneKey) {
  alone_and_on_two_ranks([](const Place& place) {
    Training saved, resumed(0.7);
    train(saved.net, saved.adam, 3);
    saved.counter->n = 5;
    saved.app->set_value("epoch", 2);
    place.save({{"app", saved.app}});
    Dict state = {{"app", resumed.app}};
    place.load(state);
    EXPECT_EQ(first_difference(get_model_state_dict(resumed.net), get_model_state_dict(saved.net)), "");
    EXPECT_EQ(first_difference(get_optimizer_state_dict(resumed.net, resumed.adam),
                               get_optimizer_state_dict(saved.net, saved.adam)),
              "");
    EXPECT_EQ(resumed.counter->n, 5);
    EXPECT_EQ(resumed.app->value("epoch").as_int(), 2);
    train(saved.net, saved.adam, 2);
    train(resumed.net, resumed.adam, 2);
    EXPECT_EQ(difference(resumed.net, resumed.adam, saved.net, saved.adam), "") << "goes on the same";
  });
}

TEST(AppStateTest, PartsThatAreMissing) {
  Training training;
  const Dict sound = deep_copy(training.app->state_dict());
  EXPECT_EQ(keys(sound), (Strings{"model", "optim", "extra"}));
  for (const char* name : {"model", "optim"}) {
    Dict state = sound;
    state.erase(name);
    expect_error(ErrorKind::kKey, c10::str("'", name, "': is missing"), [&] { training.app->load_state_dict(state); });
  }
  Dict state = sound;
  state.at("extra").as_dict().erase("epoch");
  state.at("extra").as_dict()["more"] = 1;
  expect_error(ErrorKind::kKey, "'extra.epoch': is missing", [&] { training.app->load_state_dict(state); });
  Training lenient(0.1, {.strict = false});
  lenient.app->load_state_dict(state);
  EXPECT_EQ(lenient.app->report().missing, Strings{"extra.epoch"});
  EXPECT_EQ(lenient.app->report().unexpected, Strings{"extra.more"});
  lenient.app->load_state_dict({});
  EXPECT_EQ(lenient.app->report().missing.front(), "model");
  expect_error(ErrorKind::kKey, "added twice", [&] { training.app->add("epoch", 1); });
  expect_error(ErrorKind::kInvalidArgument, "null", [&] { training.app->add("n", std::shared_ptr<Counter>()); });
}

TEST(AppStateTest, AnObjectThatThrowsLeavesTheModuleAsItWas) {
  Training training;
  const Dict state = deep_copy(training.app->state_dict());
  train(training.net, training.adam, 1);
  training.app->set_value("epoch", 9);
  const Dict before = everything(training.net, training.adam);
  training.counter->fails = true;
  EXPECT_THROW(training.app->load_state_dict(state), Thrown);
  EXPECT_EQ(first_difference(everything(training.net, training.adam), before), "");
  EXPECT_EQ(training.app->value("epoch").as_int(), 9);
}

TEST(AppStateTest, WithoutOptimizers) {
  nn::Linear net(2, 2), other(2, 2);
  AppState app(*net, OptimizerRefs()), of_other(*other, OptimizerRefs());
  EXPECT_EQ(keys(app.state_dict()), Strings{"model"});
  of_other.load_state_dict(deep_copy(app.state_dict()));
  EXPECT_EQ(first_difference(get_model_state_dict(*other), get_model_state_dict(*net)), "");
}

// --- archives --------------------------------------------------------------------------------------------------------

std::vector<std::size_t> next(torch::data::samplers::RandomSampler& sampler, std::size_t count) {
  return sampler.next(count).value();
}

TEST(ArchiveAdapterTest, ASamplerGoesOnWhereItWas) {
  torch::data::samplers::RandomSampler sampler(20), other(20);
  next(sampler, 7);
  const Place place;
  place.save({{"sampler", archive_stateful(sampler)}});
  Dict state = {{"sampler", archive_stateful(other)}};
  place.load(state);
  EXPECT_EQ(other.index(), 7U);
  EXPECT_EQ(next(other, 13), next(sampler, 13));
}

/// Saves a tensor of any size; fails half-way if told so.
struct Archived {
  at::Tensor value = torch::zeros(1);
  bool fails = false;
  void save(torch::serialize::OutputArchive& archive) const { archive.write("value", value, /*is_buffer=*/true); }
  void load(torch::serialize::InputArchive& archive) {
    archive.read("value", value, /*is_buffer=*/true);
    if (std::exchange(fails, false)) throw Thrown();
  }
};

TEST(ArchiveAdapterTest, SizesMayDifferAndFailuresLeaveTheOldState) {
  Archived saved{torch::arange(1000)}, loaded{torch::full(3, 4)};
  const Dict state = archive_stateful(saved)->state_dict();
  EXPECT_EQ(state.at("archive").kind(), ValueKind::kBytes);
  const auto adapter = archive_stateful(loaded);
  loaded.fails = true;
  EXPECT_THROW(adapter->load_state_dict(state), Thrown);
  EXPECT_EQ(first_difference(loaded.value, torch::full(3, 4)), "");
  adapter->load_state_dict(state);
  EXPECT_EQ(first_difference(loaded.value, saved.value), "");
  expect_error(ErrorKind::kKey, "archive", [&] { adapter->load_state_dict({}); });
  expect_error(ErrorKind::kType, "", [&] { adapter->load_state_dict({{"archive", 1}}); });
  expect_error(ErrorKind::kCorruptData, "cannot read the archive of 3 bytes",
               [&] { adapter->load_state_dict({{"archive", Bytes{1, 2, 3}}}); });
  EXPECT_EQ(first_difference(loaded.value, saved.value), "");
  expect_error(ErrorKind::kInvalidArgument, "function", [] { ArchiveAdapter({}, {}); });
}

// --- random generators -----------------------------------------------------------------------------------------------

TEST(RandomStateTest, EachRankHasItsOwnEntry) {
  RandomState state;
  torch::manual_seed(3);
  const Dict stored = deep_copy(state.state_dict());
  EXPECT_EQ(stored.at("cpu").as_tensor().numel(), 5056);
  EXPECT_EQ(stored.contains("cuda"), torch::cuda::device_count() > 0);
  const at::Tensor drawn = torch::rand(4);
  state.load_state_dict(stored);
  EXPECT_EQ(first_difference(torch::rand(4), drawn), "");
  expect_error(ErrorKind::kKey, "cpu", [&] { state.load_state_dict({{"cuda", List()}}); });
  expect_error(ErrorKind::kShape, "[7]",
               [&] { state.load_state_dict({{"cpu", torch::zeros(7, at::kByte)}, {"cuda", List()}}); });

  const Place place;
  const auto [key, entry] = per_rank_random_state(2);
  EXPECT_EQ(key, per_rank_key("rng", 2));
  state.load_state_dict(stored);
  place.save({{key, entry}});
  torch::rand(9);
  Dict loading = {{key, entry}};
  place.load(loading);
  EXPECT_EQ(first_difference(torch::rand(4), drawn), "");
  expect_error(ErrorKind::kInvalidArgument, "", [] { per_rank_random_state(-1); });
}

}  // namespace
}  // namespace dcp::test

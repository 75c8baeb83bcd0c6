#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include "test/checkpoint/checkpoint_support.h"
#include "test/support/expect_error.h"
#include "test/support/fault_injecting_file_system.h"
#include "torch_dcp/plan/default_save_planner.h"
#include "torch_dcp/plan/plan_cache.h"
#include "torch_dcp/plan/renaming_load_planner.h"
#include "torch_dcp/state_dict/stateful.h"

// Options of planning, through whole saves and loads.

namespace dcp::test {
namespace {

void expect_same(const StateDict& state, const StateDict& wanted, const std::string& what = "") {
  EXPECT_EQ(first_difference(state, wanted), "") << what;
}

TEST(SavePlanning, ReplicatedTensorsSplitOverTheirHoldersLoadOnAnyNumberOfRanks) {
  const at::Tensor large = counted({1000, 60});
  const at::Tensor turned = counted({60, 900}, at::kBFloat16);
  const auto state_of = [&](RankContext& ranks) {
    const auto mesh = DeviceMesh::make({2, 2}, ranks.rank());
    return StateDict{{"w", large.clone()},
                     {"t", turned.t()},
                     {"h", DTensor::distribute(large, mesh, {Placement::replicate(), Placement::shard(0)})},
                     {"small", counted({4})},
                     {"n", 3}};
  };
  const auto files = make_memory_file_system();
  run_ranks(4, [&](RankContext& ranks) {
    SavePlannerOptions planner_options;
    planner_options.split_replicated_bytes = 10'000;
    SaveOptions options;
    options.planner = std::make_shared<DefaultSavePlanner>(planner_options);
    const Metadata metadata = place_of(ranks, files).save_with(state_of(ranks), "c", options);
    EXPECT_GT(std::get<TensorStorageMetadata>(*metadata.state_dict_metadata.find("w")).chunks.size(), 1u);
    EXPECT_GT(std::get<TensorStorageMetadata>(*metadata.state_dict_metadata.find("h")).chunks.size(), 2u);
  });
  std::vector<double> bytes;
  for (const auto& [name, content] : contents_of(*files, "c")) {
    if (name.ends_with(".distcp")) bytes.push_back(static_cast<double>(content.size()));
  }
  ASSERT_EQ(bytes.size(), 4u);
  const double mean = (bytes[0] + bytes[1] + bytes[2] + bytes[3]) / 4;
  EXPECT_LE(*std::max_element(bytes.begin(), bytes.end()) / mean, 1.05);

  expect_same(Place{files}.rebuild("c", {"w", "t", "n"}), {{"w", large}, {"t", turned.t()}, {"n", 3}});
  run_ranks(3, [&](RankContext& ranks) {
    StateDict state = {{"w", split_pattern({1000, 60}, ranks, 1)},
                       {"h", pattern({1000, 60})},
                       {"t", split_pattern({900, 60}, ranks, 0, at::kBFloat16)}};
    place_of(ranks, files).load(state, "c");
    expect_same(state, {{"w", split(large, ranks, 1)}, {"h", large}, {"t", split(turned.t(), ranks)}});
  });
}

TEST(SavePlanning, APlanCacheSavesTheExchangeAndNothingElse) {
  const auto files = make_memory_file_system();
  run_ranks(3, [&](RankContext& ranks) {
    const Place place = place_of(ranks, files);
    SaveOptions options;
    options.plan_cache = std::make_shared<SavePlanCache>();
    const auto state_of = [&](int round) {
      StateDict state = {{"round", round}, {"w", split(counted({50, 3}) + round, ranks)}};
      for (int i = 0; i < 30; ++i) state["t" + std::to_string(i)] = counted({i + 1}) * round;
      return state;
    };
    std::string last_save;
    for (int round = 0; round < 4; ++round) {
      // A planner of its own each time, as `save` makes it.
      const Metadata metadata = place.save_with(state_of(round), round % 2 == 0 ? "a" : "b", options);
      ASSERT_TRUE(metadata.storage_meta && metadata.storage_meta->save_id);
      EXPECT_NE(*metadata.storage_meta->save_id, last_save);
      EXPECT_EQ(metadata.storage_meta->checkpoint_id, round % 2 == 0 ? "a" : "b");
      last_save = *metadata.storage_meta->save_id;
      const SavePlanCache::Use& use = options.plan_cache->last_use();
      EXPECT_EQ(use.sent_plan, round == 0);
      EXPECT_EQ(use.planned_anew, round == 0 && ranks.rank() == 0);
      if (round > 0) {
        EXPECT_LT(use.sent_bytes, 80u);
        EXPECT_LT(use.received_bytes, 80u);
      }
    }
    expect_same(place.rebuild("b", {"round", "t7"}), {{"round", 3}, {"t7", counted({8}) * 3}});
    StateDict state = {{"w", split_pattern({50, 3}, ranks)}};
    place.load(state, "a");
    expect_same(state, {{"w", split(counted({50, 3}) + 2, ranks)}});

    // A tensor of another dtype on one rank: that rank alone sends, and what is stored is right.
    StateDict changed = state_of(4);
    if (ranks.rank() == 1) changed["of rank 1"] = counted({2}, at::kBFloat16);
    const Metadata metadata = place.save_with(changed, "a", options);
    EXPECT_EQ(options.plan_cache->last_use().sent_plan, ranks.rank() == 1);
    EXPECT_EQ(std::get<TensorStorageMetadata>(*metadata.state_dict_metadata.find("of rank 1")).properties.dtype,
              at::kBFloat16);
    expect_same(place.rebuild("a", {"of rank 1"}), {{"of rank 1", counted({2}, at::kBFloat16)}});
  });
}

TEST(SavePlanning, ASaveThatFailedLeavesAnEmptyPlanCacheOnEveryRank) {
  const auto files = std::make_shared<FaultInjectingFileSystem>(make_memory_file_system());
  ErrorsByRank errors(3);
  run_ranks(3, [&](RankContext& ranks) {
    const Place place = place_of(ranks, files);
    SaveOptions options;
    options.plan_cache = std::make_shared<SavePlanCache>();
    const StateDict state = {{"w", split(counted({50, 3}), ranks)}, {"t", counted({5})}};
    place.save_with(state, "c", options);
    StateDict broken = state;
    if (ranks.rank() == 2) broken["bad"] = std::shared_ptr<Stateful>();
    errors.run(ranks.rank(), [&] { place.save_with(broken, "c", options); });
    // One rank has a new object, as after a restart.
    if (ranks.rank() == 1) options.plan_cache = std::make_shared<SavePlanCache>();
    place.save_with(state, "c", options);
    EXPECT_TRUE(options.plan_cache->last_use().sent_plan);
    place.save_with(state, "c", options);
    EXPECT_FALSE(options.plan_cache->last_use().sent_plan);
    // A coordinator that was started again.
    if (ranks.rank() == 0) options.plan_cache = std::make_shared<SavePlanCache>();
    place.save_with(state, "c", options);
    EXPECT_TRUE(options.plan_cache->last_use().sent_plan);
    StateDict loaded = {{"w", split_pattern({50, 3}, ranks)}, {"t", pattern({5})}};
    place.load(loaded, "c");
    expect_same(loaded, state);
  });
  errors.expect({2});
}

TEST(SavePlanning, RanksWithAPlanCacheAndRanksWithoutSaveTogether) {
  // Each bit says which ranks have one; the coordinator is rank 0.
  for (const int with_cache : {0b001, 0b010, 0b110, 0b101}) {
    SCOPED_TRACE(with_cache);
    const auto files = make_memory_file_system();
    run_ranks(3, [&](RankContext& ranks) {
      const Place place = place_of(ranks, files);
      SaveOptions options;
      if ((with_cache >> ranks.rank() & 1) != 0) options.plan_cache = std::make_shared<SavePlanCache>();
      for (int round = 1; round < 4; ++round) {
        const StateDict state = {{"w", split(counted({50, 3}) * round, ranks)}, {"t", counted({5}) * round}};
        place.save_with(state, "c", options);
        StateDict loaded = {{"w", split_pattern({50, 3}, ranks)}, {"t", pattern({5})}};
        place.load(loaded, "c");
        expect_same(loaded, state);
        const bool is_known = round > 1 && (with_cache & 1) != 0;  // by the coordinator
        if (options.plan_cache) {
          EXPECT_EQ(options.plan_cache->last_use().sent_plan, !is_known);
        }
      }
    });
  }
}

TEST(SavePlanning, PlanCachesWorkWithoutCollectivesAndAlone) {
  const auto files = make_memory_file_system();
  run_ranks(2, [&](RankContext& ranks) {
    SaveOptions options;
    options.process_group = ranks.unconnected_group();
    options.use_collectives = false;
    options.plan_cache = std::make_shared<SavePlanCache>();
    for (int round = 0; round < 2; ++round) {
      Place{files}.save_with({{"w", split(counted({8}) + round, ranks)}}, "parts", options);
      EXPECT_EQ(options.plan_cache->last_use().planned_anew, round == 0);
    }
  });
  expect_same(Place{files}.rebuild("parts"), {{"w", counted({8}) + 1}});
}

/// Has a number, and counts how often it was given one.
class Numbered final : public Stateful {
 public:
  Dict state_dict() override { return {{"n", number}, {"asked", asked++}, {"t", tensor}}; }
  void load_state_dict(const Dict& state) override {
    ++given;
    number = state.at("n").as_int();
  }
  std::int64_t number = 0;
  std::int64_t asked = 0;
  int given = 0;
  at::Tensor tensor = pattern({2});
};

TEST(SavePlanning, AStatefulOfWhichNothingIsWantedIsLeftAlone) {
  const Place place;
  place.save({{"a", Dict{{"n", 1}, {"asked", 0}, {"t", counted({2})}}},
              {"b", Dict{{"n", 2}, {"asked", 0}, {"t", counted({2})}}}},
             "c");
  const auto a = std::make_shared<Numbered>();
  const auto b = std::make_shared<Numbered>();
  StateDict state = {{"a", a}, {"b", b}};
  KeyRenaming renaming;
  renaming.is_wanted = [](const std::string& key) { return !key.starts_with("a."); };
  LoadOptions options;
  options.planner = std::make_shared<RenamingLoadPlanner>(renaming);
  place.load(state, "c", options);
  EXPECT_EQ(a->given, 0);
  EXPECT_EQ(b->given, 1);
  EXPECT_EQ(b->number, 2);
  expect_same({{"t", a->tensor}}, {{"t", pattern({2})}});
  // Not if a part of it is.
  renaming.is_wanted = [](const std::string& key) { return key == "a.n"; };
  options.planner = std::make_shared<RenamingLoadPlanner>(renaming);
  place.load(state, "c", options);
  EXPECT_EQ(a->given, 1);
  EXPECT_EQ(a->number, 1);
  EXPECT_EQ(b->given, 1);
}

TEST(SavePlanning, AStatefulUnderTwoKeysHasOneState) {
  const Place place;
  const auto both = [](std::int64_t first, std::int64_t second) {
    const auto of = [](std::int64_t n) { return Dict{{"n", n}, {"asked", 0}, {"t", counted({2})}}; };
    return StateDict{{"a", of(first)}, {"b", of(second)}, {"x", 1}};
  };
  place.save(both(5, 5), "same");
  place.save(both(5, 6), "other");
  const auto object = std::make_shared<Numbered>();
  StateDict state = {{"a", object}, {"b", object}, {"x", 0}};
  place.load(state, "same");
  EXPECT_EQ(object->given, 1);
  EXPECT_EQ(object->number, 5);
  state["x"] = 0;
  expect_error(ErrorKind::kKey, "keys 'a' and 'b' are one Stateful, and their loaded states differ",
               [&] { place.load(state, "other"); });
  EXPECT_EQ(object->given, 1);
  EXPECT_EQ(state.at("x").as_int(), 0);
}

// Planners of the program's own, each of which replaces one thing.

/// Stores floating-point tensors as bfloat16.
class HalvingPlanner final : public DefaultSavePlanner {
 public:
  using DefaultSavePlanner::DefaultSavePlanner;
  SavePlan create_local_plan() override {
    SavePlan plan = DefaultSavePlanner::create_local_plan();
    for (WriteItem& item : plan.items) {
      if (item.is_tensor() && c10::isFloatingType(item.properties.dtype)) item.properties.dtype = at::kBFloat16;
    }
    return plan;
  }
  at::Tensor resolve_tensor(const WriteItem& item) const override {
    return DefaultSavePlanner::resolve_tensor(item).to(item.properties.dtype);
  }
  std::optional<Bytes> fingerprint() const override { return default_fingerprint(); }
};

/// Puts all keys below one.
class NestingPlanner final : public DefaultSavePlanner {
 public:
  void set_up(const StateDict& state, const SavePlannerContext& context) override {
    nested_ = {{"below", state}};
    DefaultSavePlanner::set_up(nested_, context);
  }

 private:
  StateDict nested_;
};

TEST(SavePlanning, SubclassesReplaceOneStep) {
  const auto files = make_memory_file_system();
  const at::Tensor large = counted({200, 40}) * 1.001;
  run_ranks(3, [&](RankContext& ranks) {
    const Place place = place_of(ranks, files);
    SavePlannerOptions planner_options;
    planner_options.split_replicated_bytes = 1000;
    SaveOptions halving;
    halving.planner = std::make_shared<HalvingPlanner>(planner_options);
    halving.plan_cache = std::make_shared<SavePlanCache>();
    halving.check_replicas = true;
    for (int round = 0; round < 2; ++round) {
      place.save_with({{"w", split(large, ranks)}, {"r", large}, {"i", counted({3}, at::kLong)}}, "half", halving);
      EXPECT_EQ(halving.plan_cache->last_use().sent_plan, round == 0);
    }
    SaveOptions nesting;
    nesting.planner = std::make_shared<NestingPlanner>();
    place.save_with({{"w", split(large, ranks)}, {"n", 4}}, "nested", nesting);
  });
  const at::Tensor half = large.to(at::kBFloat16);
  expect_same(Place{files}.rebuild("half"), {{"w", half}, {"r", half}, {"i", counted({3}, at::kLong)}});
  expect_same(Place{files}.rebuild("nested"), {{"below", Dict{{"w", large}, {"n", 4}}}});
}

TEST(SavePlanning, ARenamingPlannerLoadsUnderOtherNamesOnAllRanks) {
  const auto files = make_memory_file_system();
  run_ranks(2, [&](RankContext& ranks) {
    const Place place = place_of(ranks, files);
    place.save({{"model", Dict{{"w", split(counted({9, 2}), ranks)}, {"head", counted({3})}}}, {"step", 5}}, "c");
    KeyRenaming renaming;
    renaming.keys = {{"classifier", "model.head"}};
    renaming.prefixes = {{"backbone", "model"}};
    renaming.is_wanted = [](const std::string& key) { return key != "new"; };
    LoadOptions options;
    options.planner = std::make_shared<RenamingLoadPlanner>(renaming);
    StateDict state = {{"backbone", Dict{{"w", split_pattern({9, 2}, ranks, 1)}}},
                       {"classifier", pattern({3})},
                       {"new", pattern({2})},
                       {"step", 0}};
    const LoadReport report = place.load(state, "c", options);
    EXPECT_EQ(report.skipped, std::vector<std::string>{"new"});
    EXPECT_TRUE(report.unexpected.empty() && report.missing.empty());
    expect_same(state, {{"backbone", Dict{{"w", split(counted({9, 2}), ranks, 1)}}},
                        {"classifier", counted({3})},
                        {"new", pattern({2})},
                        {"step", 5}});
  });
  expect_same(Place{files}.rebuild("c", {"*.h?ad", "st*"}), {{"model", Dict{{"head", counted({3})}}}, {"step", 5}});
}

}  // namespace
}  // namespace dcp::test

#include "torch_dcp/plan/plan_cache.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "test/plan/plan_support.h"
#include "torch_dcp/plan/default_save_planner.h"
#include "torch_dcp/plan/plan_exchange.h"
#include "torch_dcp/plan/wire.h"

namespace dcp {
namespace {

using test::expect_error_with;

template <typename T>
Bytes encoded(const T& value) {
  ByteWriter out;
  encode(out, value);
  return std::move(out).take();
}

/// Sends a message: what arrives was bytes.
template <typename T>
T sent(const T& value, std::size_t& byte_count) {
  const Bytes bytes = encoded(value);
  byte_count += bytes.size();
  ByteReader in(bytes);
  T received;
  decode(in, received);
  in.expect_end();
  return received;
}

/// What one save of all ranks gave, and what it took.
struct Outcome {
  std::vector<SavePlan> plans;  ///< by rank
  Metadata metadata;
  int round_count = 0;
  int global_plan_count = 0;
  std::vector<std::size_t> sent;  ///< bytes by rank
  std::vector<std::size_t> received;
};

/// Ranks that save again and again, without a group: messages are handed over as bytes.
struct Ranks {
  explicit Ranks(std::size_t count, int coordinator = 0) : coordinator(coordinator), states(count), caches(count) {
    for (std::size_t rank = 0; rank < count; ++rank) {
      caches[rank] = std::make_unique<SavePlanCache>();
      planners.push_back(std::make_unique<DefaultSavePlanner>());
      states[rank] = state_of(static_cast<int>(rank), static_cast<int>(count));
    }
  }

  static StateDict state_of(int rank, int world_size) {
    const auto mesh = DeviceMesh::make({world_size}, rank);
    StateDict state = {{"step", 1}};
    for (int i = 0; i < 20; ++i) {
      state["layer" + std::to_string(i)] = Dict{
          {"sharded", DTensor::empty({64, 3}, at::kFloat, mesh, {Placement::shard(0)})}, {"replicated", at::ones({5})}};
    }
    return state;
  }

  Dict& layer(std::size_t rank, int number) { return states[rank].at("layer" + std::to_string(number)).as_dict(); }

  /// \param fails  After the plans were exchanged.
  Outcome save(bool fails = false) {
    const std::size_t count = states.size();
    Outcome outcome;
    outcome.sent.resize(count);
    outcome.received.resize(count);
    ++save_number;
    std::vector<std::unique_ptr<SavePlanExchange>> exchanges;
    std::vector<SavePlanOffer> offers;
    for (std::size_t rank = 0; rank < count; ++rank) {
      SavePlannerContext context{StorageMeta{"here", "save" + std::to_string(save_number), {}}, static_cast<int>(rank),
                                 static_cast<int>(count), static_cast<int>(rank) == coordinator, true};
      planners[rank]->set_up(states[rank], context);
      exchanges.push_back(std::make_unique<SavePlanExchange>(caches[rank].get()));  // null: a rank without one
      const SavePlan local = planners[rank]->create_local_plan();
      offers.push_back(
          sent(exchanges[rank]->offer(local, planners[rank]->fingerprint(), context, coordinator), outcome.sent[rank]));
    }
    outcome.plans.resize(count);
    for (bool is_done = false; !is_done;) {
      ++outcome.round_count;
      const std::vector<SavePlanAnswer> answers = answer(*exchanges[leader()], std::move(offers), outcome);
      offers.clear();
      std::size_t accepted = 0;
      for (std::size_t rank = 0; rank < count; ++rank) {
        std::optional<SavePlan> plan = exchanges[rank]->accept(sent(answers[rank], outcome.received[rank]));
        if (plan) {
          ++accepted;
          outcome.plans[rank] = *std::move(plan);
        } else {
          offers.push_back(sent(exchanges[rank]->offer_all(), outcome.sent[rank]));
        }
      }
      EXPECT_TRUE(accepted == 0 || accepted == count);
      is_done = accepted == count;
      if (outcome.round_count > 2) return outcome;
    }
    EXPECT_LE(outcome.round_count, 2);
    outcome.metadata = exchanges[leader()]->take_metadata();
    for (std::size_t rank = 0; rank < count; ++rank) {
      if (caches[rank] == nullptr) continue;
      EXPECT_EQ(caches[rank]->last_use().sent_bytes, outcome.sent[rank]);
      EXPECT_EQ(caches[rank]->last_use().received_bytes, outcome.received[rank]);
      if (!fails) exchanges[rank]->keep();
    }
    return outcome;
  }

  std::vector<SavePlanAnswer> answer(SavePlanExchange& exchange, std::vector<SavePlanOffer> offers, Outcome& outcome) {
    return exchange.answer(
        std::move(offers),
        [&](std::vector<SavePlan> plans) {
          ++outcome.global_plan_count;
          return planners[leader()]->create_global_plan(std::move(plans));
        },
        [&](std::vector<SavePlan> plans) {
          for (SavePlan& plan : plans) plan.storage_data = "tag" + std::to_string(save_number);
          if (change_prepared) change_prepared(plans);
          return plans;
        });
  }

  std::size_t leader() const { return static_cast<std::size_t>(coordinator); }

  /// Saves, and expects what a save without caches gives.
  Outcome save_and_compare() {
    Outcome outcome = save();
    const std::size_t count = states.size();
    std::vector<SavePlan> plans;
    std::vector<std::unique_ptr<DefaultSavePlanner>> fresh;
    for (std::size_t rank = 0; rank < count; ++rank) {
      const SavePlannerContext context{{}, static_cast<int>(rank), static_cast<int>(count), rank == 0, true};
      fresh.push_back(std::make_unique<DefaultSavePlanner>());
      fresh[rank]->set_up(states[rank], context);
      plans.push_back(fresh[rank]->create_local_plan());
    }
    auto [global_plans, metadata] = fresh[0]->create_global_plan(std::move(plans));
    for (std::size_t rank = 0; rank < count; ++rank) {
      global_plans[rank].storage_data = "tag" + std::to_string(save_number);
      EXPECT_EQ(encoded(outcome.plans[rank]), encoded(global_plans[rank])) << "rank " << rank;
    }
    outcome.metadata.storage_meta.reset();
    EXPECT_EQ(encoded(outcome.metadata), encoded(metadata));
    return outcome;
  }

  int coordinator;
  int save_number = 0;
  std::vector<StateDict> states;
  std::vector<std::unique_ptr<SavePlanCache>> caches;
  std::vector<std::unique_ptr<DefaultSavePlanner>> planners;
  std::function<void(std::vector<SavePlan>&)> change_prepared;
};

constexpr std::size_t kFew = 80;  // bytes

void expect_few(const Outcome& outcome) {
  EXPECT_EQ(outcome.round_count, 1);
  EXPECT_EQ(outcome.global_plan_count, 0);
  for (std::size_t rank = 0; rank < outcome.sent.size(); ++rank) {
    EXPECT_LT(outcome.sent[rank], kFew) << "rank " << rank;
    EXPECT_LT(outcome.received[rank], kFew) << "rank " << rank;
  }
}

TEST(PlanCache, TheSecondSaveExchangesAFewBytes) {
  for (const int coordinator : {0, 2}) {
    Ranks ranks(3, coordinator);
    const Outcome first = ranks.save_and_compare();
    EXPECT_EQ(first.global_plan_count, 1);
    for (const std::size_t bytes : first.sent) EXPECT_GT(bytes, 500u);
    for (int i = 0; i < 3; ++i) expect_few(ranks.save_and_compare());
    EXPECT_FALSE(ranks.caches[1]->last_use().sent_plan);
    EXPECT_FALSE(ranks.caches[1]->last_use().received_plan);
    EXPECT_FALSE(ranks.caches[ranks.leader()]->last_use().planned_anew);
  }
}

TEST(PlanCache, OnlyRanksThatChangedSendTheirPlans) {
  Ranks ranks(4);
  ranks.save();
  ranks.states[2]["of rank 2"] = at::ones({3});
  const Outcome outcome = ranks.save_and_compare();
  EXPECT_EQ(outcome.global_plan_count, 1);
  EXPECT_EQ(outcome.round_count, 1);
  for (std::size_t rank = 0; rank < 4; ++rank) EXPECT_EQ(outcome.sent[rank] > kFew, rank == 2) << rank;
  EXPECT_LT(outcome.received[0], kFew) << "its part has stayed the same";
  EXPECT_TRUE(outcome.metadata.state_dict_metadata.contains("of rank 2"));
  expect_few(ranks.save_and_compare());
}

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}

TEST(PlanCache, EveryPropertyCounts) {
  struct Change {
    const char* what;
    bool must_be_refused;  ///< since ranks then disagree about a key, which nobody would see from what was cached
    std::function<void(Ranks&)> apply;
  };
  const std::vector<Change> changes = {
      {"dtype", true, [](Ranks& ranks) { ranks.layer(1, 3)["replicated"] = at::ones({5}, at::kBFloat16); }},
      {"size", true, [](Ranks& ranks) { ranks.layer(1, 3)["replicated"] = at::ones({6}); }},
      {"kind", true, [](Ranks& ranks) { ranks.layer(1, 3)["replicated"] = 5; }},
      {"gone", false, [](Ranks& ranks) { ranks.layer(1, 3).erase("replicated"); }},
      {"new", false, [](Ranks& ranks) { ranks.layer(1, 3)["more"] = 1; }},
      {"gradient", false,
       [](Ranks& ranks) { ranks.layer(1, 3)["replicated"] = at::ones({5}).set_requires_grad(true); }},
      {"strides", false, [](Ranks& ranks) { ranks.layer(1, 3)["replicated"] = at::ones({10}).slice(0, 0, 10, 2); }},
      {"placements", false,
       [](Ranks& ranks) {
         ranks.layer(1, 3)["replicated"] =
             DTensor(at::ones({5}), DeviceMesh::make({2}, 1), {Placement::replicate()}, {5});
       }},
      {"options", false,
       [](Ranks& ranks) {
         SavePlannerOptions options;
         options.split_replicated_bytes = 1000;
         ranks.planners[1] = std::make_unique<DefaultSavePlanner>(options);
       }},
  };
  for (const auto& [what, must_be_refused, apply] : changes) {
    SCOPED_TRACE(what);
    Ranks ranks(2);
    ranks.save();
    apply(ranks);
    if (must_be_refused) {
      EXPECT_NE(error_of([&] { ranks.save(); }).find("'layer3.replicated'"), std::string::npos);
      continue;
    }
    const Outcome outcome = ranks.save();
    EXPECT_GT(outcome.sent[1], 500u);
    EXPECT_LT(outcome.sent[0], kFew);
    EXPECT_EQ(outcome.global_plan_count, 1);
    ranks.save_and_compare();
  }
}

TEST(PlanCache, ANewDtypeOnAllRanksIsInTheMetadata) {
  Ranks ranks(2);
  ranks.save();
  for (std::size_t rank = 0; rank < 2; ++rank) ranks.layer(rank, 0)["replicated"] = at::ones({5}, at::kBFloat16);
  const Outcome outcome = ranks.save_and_compare();
  const auto& entry = *outcome.metadata.state_dict_metadata.find("layer0.replicated");
  EXPECT_EQ(std::get<TensorStorageMetadata>(entry).properties.dtype, at::kBFloat16);
}

TEST(PlanCache, ValuesMayChangeAsTheyLike) {
  Ranks ranks(2);
  ranks.save();
  for (std::size_t rank = 0; rank < 2; ++rank) {
    ranks.states[rank]["step"] = 2;
    ranks.layer(rank, 1)["replicated"] = at::zeros({5});
  }
  expect_few(ranks.save_and_compare());
}

TEST(PlanCache, ARankThatLostItsCacheSendsItsPlanAlone) {
  Ranks ranks(3);
  ranks.save();
  ranks.caches[1] = std::make_unique<SavePlanCache>();
  const Outcome outcome = ranks.save_and_compare();
  EXPECT_EQ(outcome.round_count, 1);
  EXPECT_GT(outcome.sent[1], 500u);
  EXPECT_GT(outcome.received[1], kFew);
  EXPECT_LT(outcome.sent[0], kFew);
  EXPECT_LT(outcome.received[2], kFew);
  ranks.caches[2]->clear();
  ranks.save_and_compare();
  expect_few(ranks.save_and_compare());
}

TEST(PlanCache, RanksWithoutOneSendTheirPlansEachTimeAndTheOthersDoNot) {
  Ranks ranks(3);
  ranks.caches[1].reset();
  ranks.save_and_compare();
  for (int i = 0; i < 2; ++i) {
    const Outcome outcome = ranks.save_and_compare();
    EXPECT_EQ(outcome.round_count, 1);
    EXPECT_EQ(outcome.global_plan_count, 1);
    EXPECT_GT(outcome.sent[1], 500u);
    EXPECT_GT(outcome.received[1], kFew);
    for (const std::size_t rank : {0, 2}) {
      EXPECT_LT(outcome.sent[rank], kFew);
      EXPECT_LT(outcome.received[rank], kFew);
    }
  }
  // It gets one, another loses it; a coordinator that lost its own asks also the rank that has none.
  ranks.caches[1] = std::make_unique<SavePlanCache>();
  ranks.save_and_compare();
  expect_few(ranks.save_and_compare());
  ranks.caches[2].reset();
  ranks.caches[0] = std::make_unique<SavePlanCache>();
  EXPECT_EQ(ranks.save_and_compare().round_count, 2);
  EXPECT_EQ(ranks.save_and_compare().round_count, 1);
}

TEST(PlanCache, WithoutTheCoordinatorsAllPlansAreSent) {
  Ranks ranks(3);
  ranks.save_and_compare();
  ranks.caches[0].reset();
  EXPECT_EQ(ranks.save_and_compare().round_count, 2) << "the others do not know yet";
  for (int i = 0; i < 2; ++i) {
    const Outcome outcome = ranks.save_and_compare();
    EXPECT_EQ(outcome.round_count, 1);
    for (const std::size_t bytes : outcome.sent) EXPECT_GT(bytes, 500u);
  }
  for (auto& cache : ranks.caches) cache.reset();
  EXPECT_EQ(ranks.save_and_compare().round_count, 1);
  EXPECT_EQ(ranks.save_and_compare().global_plan_count, 1);
}

TEST(PlanCache, ACoordinatorThatLostItsCacheAsksAllForTheirPlans) {
  Ranks ranks(3);
  ranks.save();
  ranks.caches[0] = std::make_unique<SavePlanCache>();
  const Outcome outcome = ranks.save_and_compare();
  EXPECT_EQ(outcome.round_count, 2);
  EXPECT_EQ(outcome.global_plan_count, 1);
  for (const std::size_t bytes : outcome.sent) EXPECT_GT(bytes, 500u);
  EXPECT_TRUE(ranks.caches[1]->last_use().sent_plan);
  expect_few(ranks.save_and_compare());
}

TEST(PlanCache, CachesOfDifferentSavesAreNeverMixed) {
  // Rank 1 comes back with what it remembered before the others' last save.
  Ranks ranks(3);
  ranks.save();
  std::unique_ptr<SavePlanCache> old = std::move(ranks.caches[1]);
  ranks.caches[1] = std::make_unique<SavePlanCache>();
  for (std::size_t rank = 0; rank < 3; ++rank) ranks.states[rank]["new"] = at::ones({7});
  ranks.save_and_compare();
  ranks.caches[1] = std::move(old);
  ranks.states[1].erase("new");
  const Outcome outcome = ranks.save_and_compare();
  EXPECT_EQ(outcome.round_count, 2) << "its plan is the remembered one, but not what the coordinator has of it";
  expect_few(ranks.save_and_compare());
}

TEST(PlanCache, AfterASaveThatFailedAllIsSentAgain) {
  Ranks ranks(2);
  ranks.save();
  ranks.save(/*fails=*/true);
  const Outcome outcome = ranks.save_and_compare();
  EXPECT_EQ(outcome.round_count, 1);
  for (const std::size_t bytes : outcome.sent) EXPECT_GT(bytes, 500u);
  expect_few(ranks.save_and_compare());
}

TEST(PlanCache, OtherNumbersOfRanksOrAnotherCoordinatorStartAnew) {
  Ranks ranks(2);
  ranks.save();
  Ranks more(3);
  more.caches[0] = std::move(ranks.caches[0]);
  more.caches[1] = std::move(ranks.caches[1]);
  const Outcome outcome = more.save_and_compare();
  EXPECT_EQ(outcome.round_count, 1);
  for (const std::size_t bytes : outcome.sent) EXPECT_GT(bytes, 500u);
  more.coordinator = 1;
  for (const std::size_t bytes : more.save().sent) EXPECT_GT(bytes, 500u);
  expect_few(more.save());
}

TEST(PlanCache, StoragesThatChangeItemsAreNotRemembered) {
  Ranks ranks(2);
  ranks.change_prepared = [](std::vector<SavePlan>& plans) { std::swap(plans[0].items[0], plans[0].items[1]); };
  ranks.save();
  EXPECT_EQ(ranks.save().global_plan_count, 1);
  EXPECT_TRUE(ranks.caches[1]->last_use().sent_plan);
  // Once it leaves them alone they are, and what it does later is told.
  ranks.change_prepared = nullptr;
  ranks.save_and_compare();
  expect_few(ranks.save_and_compare());
  ranks.change_prepared = [](std::vector<SavePlan>& plans) { std::swap(plans[0].items[0], plans[0].items[1]); };
  const Outcome changed = ranks.save();
  EXPECT_TRUE(ranks.caches[0]->last_use().received_plan);
  EXPECT_FALSE(ranks.caches[1]->last_use().received_plan);
  EXPECT_EQ(changed.plans[1].storage_data, "tag5");
}

/// Leaves out what its name says.
class SkippingPlanner final : public DefaultSavePlanner {
 public:
  SavePlan create_local_plan() override {
    SavePlan plan = DefaultSavePlanner::create_local_plan();
    std::erase_if(plan.items, [this](const WriteItem& item) { return item.index.fqn.ends_with(skipped); });
    return plan;
  }
  std::optional<Bytes> fingerprint() const override { return default_fingerprint(); }
  std::string skipped;
};

TEST(PlanCache, PlannersThatOverrideAStepAreServed) {
  Ranks ranks(2);
  std::vector<SkippingPlanner*> planners;
  for (auto& planner : ranks.planners) {
    auto skipping = std::make_unique<SkippingPlanner>();
    planners.push_back(skipping.get());
    planner = std::move(skipping);
  }
  const auto skip = [&](const char* name) {
    for (SkippingPlanner* planner : planners) planner->skipped = name;
  };
  skip(".replicated");
  EXPECT_EQ(ranks.save().metadata.state_dict_metadata.size(), 21u);
  expect_few(ranks.save());
  skip("step");
  EXPECT_EQ(ranks.save().metadata.state_dict_metadata.size(), 40u);
  // Another class, the same plan: a class may plan globally in its own way.
  skip("nothing");
  ranks.save();
  ranks.planners[0] = std::make_unique<DefaultSavePlanner>();
  EXPECT_EQ(ranks.save_and_compare().global_plan_count, 1);
}

/// Plans globally in a way of its own that nothing tells of.
class SecretivePlanner final : public DefaultSavePlanner {
 public:
  std::pair<std::vector<SavePlan>, Metadata> create_global_plan(std::vector<SavePlan> plans) override {
    auto planned = DefaultSavePlanner::create_global_plan(std::move(plans));
    planned.second.version = version;
    return planned;
  }
  std::string version = "1";
};

TEST(PlanCache, APlannerOfAnotherClassIsAskedEachTimeUnlessItSaysWhatItDependsOn) {
  Ranks ranks(2);
  auto owned = std::make_unique<SecretivePlanner>();
  SecretivePlanner& planner = *owned;
  ranks.planners[0] = std::move(owned);
  EXPECT_EQ(ranks.save().metadata.version, "1");
  planner.version = "2";
  EXPECT_EQ(ranks.save().metadata.version, "2");
}

TEST(PlanCache, PlannersWithoutAFingerprintPlanEachTime) {
  Ranks ranks(2);
  ranks.planners[1] = std::make_unique<SecretivePlanner>();
  EXPECT_FALSE(ranks.planners[1]->fingerprint());
  ranks.save_and_compare();
  const Outcome outcome = ranks.save_and_compare();
  EXPECT_EQ(outcome.global_plan_count, 1);
  EXPECT_GT(outcome.sent[1], 500u);
  EXPECT_LT(outcome.sent[0], kFew);
}

TEST(PlanCache, ForeignMessagesAreRefused) {
  const Bytes answer = encoded(SavePlanAnswer());
  for (std::size_t size = 0; size < answer.size(); ++size) {
    const Bytes cut(answer.begin(), answer.begin() + static_cast<std::ptrdiff_t>(size));
    expect_error_with(ErrorKind::kCorruptData, {}, [&] {
      ByteReader in(cut);
      SavePlanAnswer decoded;
      decode(in, decoded);
    });
  }
  Bytes wrong = answer;
  wrong[0] = 3;
  ByteReader in(wrong);
  SavePlanAnswer decoded;
  expect_error_with(ErrorKind::kCorruptData, {"3", "kind"}, [&] { decode(in, decoded); });

  SavePlanCache cache;
  SavePlanExchange exchange(&cache);
  std::vector<SavePlanOffer> offers = {{"", Bytes{0, 1}}};
  expect_error_with(ErrorKind::kCorruptData, {}, [&] {
    exchange.answer(
        offers, [](std::vector<SavePlan> plans) { return std::pair(std::move(plans), Metadata()); },
        [](std::vector<SavePlan> plans) { return plans; });
  });
}

}  // namespace
}  // namespace dcp

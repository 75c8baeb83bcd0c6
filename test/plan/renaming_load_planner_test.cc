#include "torch_dcp/plan/renaming_load_planner.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <map>

#include "test/plan/plan_support.h"
#include "torch_dcp/plan/default_save_planner.h"
#include "torch_dcp/plan/key_pattern_internal.h"
#include "torch_dcp/state_dict/equal.h"

namespace dcp {
namespace {

using test::expect_error_with;

/// What one rank saved, never written.
struct Saved {
  explicit Saved(StateDict state, SavePlannerOptions options = {}) : values(std::move(state)), planner(options) {
    planner.set_up(values, {});
    std::vector<SavePlan> plans;
    plans.push_back(planner.create_local_plan());
    auto [global_plans, global_metadata] = planner.create_global_plan(std::move(plans));
    metadata = std::move(global_metadata);
    for (const WriteItem& item : global_plans[0].items) {
      metadata.storage_data.insert(item.index, {"file", 0, 1, {}});
      items.insert(item.index, item);
    }
  }

  StateDict values;
  DefaultSavePlanner planner;
  Metadata metadata;
  OrderedMap<MetadataIndex, WriteItem, MetadataIndexHash> items;
};

LoadReport load_with(LoadPlanner& planner, StateDict& state, const Saved& saved) {
  planner.set_up(state, saved.metadata, {});
  const LoadPlan plan = planner.finish_plan(planner.create_local_plan());
  for (const ReadItem& item : plan.items) {
    const WriteItem* stored = saved.items.find(item.storage_index);
    EXPECT_NE(stored, nullptr) << to_string(item.storage_index);
    if (stored == nullptr) continue;
    if (item.type == ReadItemType::kByteIo) {
      planner.load_object(item, saved.planner.resolve_object(*stored));
      continue;
    }
    at::Tensor from = saved.planner.resolve_tensor(*stored);
    for (std::size_t dim = 0; dim < item.lengths.size(); ++dim) {
      from = from.narrow(static_cast<std::int64_t>(dim), item.storage_offsets[dim], item.lengths[dim]);
    }
    const at::Tensor to = planner.resolve_tensor(item);
    to.copy_(from);
    planner.commit_tensor(item, to);
  }
  planner.commit_objects();
  return planner.report();
}

LoadReport load_renamed(StateDict& state, const Saved& saved, KeyRenaming renaming, LoadPlannerOptions options = {}) {
  RenamingLoadPlanner planner(std::move(renaming), options);
  return load_with(planner, state, saved);
}

StateDict stored_model() {
  return {
      {"model", Dict{{"net", Dict{{"w", at::ones({2, 3})}, {"b", at::full({3}, 2.0)}}}, {"head", at::full({1}, 3.0)}}},
      {"step", 7}};
}

at::Tensor zeros(at::IntArrayRef sizes) { return at::zeros(sizes); }

TEST(RenamingLoadPlanner, ExactKeysPrefixesAndAFunction) {
  const Saved saved(stored_model());
  StateDict state = {{"encoder", Dict{{"w", zeros({2, 3})}, {"b", zeros({3})}}}, {"top", zeros({1})}, {"counter", 0}};
  KeyRenaming renaming;
  renaming.keys = {{"top", "model.head"}};
  renaming.prefixes = {{"encoder", "model.net"}};
  renaming.rename = [](const std::string& key) { return key == "counter" ? "step" : key; };
  const LoadReport report = load_renamed(state, saved, renaming);
  EXPECT_EQ(first_difference(state, StateDict{{"encoder", Dict{{"w", at::ones({2, 3})}, {"b", at::full({3}, 2.0)}}},
                                              {"top", at::full({1}, 3.0)},
                                              {"counter", 7}}),
            "");
  EXPECT_TRUE(report.missing.empty() && report.unexpected.empty() && report.skipped.empty());
}

TEST(RenamingLoadPlanner, TheLongestPrefixDecidesAndEndsAtADot) {
  const Saved saved({{"a", Dict{{"x", 1}}}, {"b", Dict{{"y", 2}}}, {"nets", 3}});
  StateDict state = {{"net", Dict{{"x", 0}, {"deep", Dict{{"y", 0}}}}}, {"nets", 0}};
  KeyRenaming renaming;
  renaming.prefixes = {{"net", "a"}, {"net.deep", "b"}};
  load_renamed(state, saved, renaming);
  EXPECT_EQ(first_difference(state, StateDict{{"net", Dict{{"x", 1}, {"deep", Dict{{"y", 2}}}}}, {"nets", 3}}), "");
}

TEST(RenamingLoadPlanner, PrefixesComeAndGo) {
  const Saved wrapped({{"module", Dict{{"w", 1}, {"v", 2}}}});
  StateDict plain = {{"w", 0}, {"v", 0}};
  KeyRenaming add;
  add.prefixes = {{"", "module"}};
  load_renamed(plain, wrapped, add);
  EXPECT_EQ(first_difference(plain, StateDict{{"w", 1}, {"v", 2}}), "");

  const Saved bare({{"w", 3}, {"v", 4}});
  StateDict nested = {{"module", Dict{{"w", 0}, {"v", 0}}}};
  KeyRenaming remove;
  remove.prefixes = {{"module", ""}};
  load_renamed(nested, bare, remove);
  EXPECT_EQ(first_difference(nested, StateDict{{"module", Dict{{"w", 3}, {"v", 4}}}}), "");
}

TEST(RenamingLoadPlanner, WhatIsNotWantedStaysAndIsReported) {
  const Saved saved(stored_model());
  StateDict state = {{"model", Dict{{"net", Dict{{"w", zeros({9})}, {"b", zeros({3})}}}, {"extra", zeros({1})}}},
                     {"step", "of another kind"}};
  KeyRenaming renaming;
  renaming.is_wanted = [](const std::string& key) { return key == "model.net.b"; };
  const LoadReport report = load_renamed(state, saved, renaming);
  EXPECT_EQ(report.skipped, (std::vector<std::string>{"model.net.w", "model.extra", "step"}));
  EXPECT_EQ(report.unexpected, (std::vector<std::string>{"model.net.w", "model.head", "step"}));
  EXPECT_TRUE(report.missing.empty());
  EXPECT_EQ(
      first_difference(state, StateDict{{"model", Dict{{"net", Dict{{"w", zeros({9})}, {"b", at::full({3}, 2.0)}}},
                                                       {"extra", zeros({1})}}},
                                        {"step", "of another kind"}}),
      "");
}

TEST(RenamingLoadPlanner, SwappedKeysAreNoCollision) {
  const Saved saved({{"a", 1}, {"b", 2}});
  StateDict state = {{"a", 0}, {"b", 0}};
  KeyRenaming renaming;
  renaming.keys = {{"a", "b"}, {"b", "a"}};
  load_renamed(state, saved, renaming);
  EXPECT_EQ(first_difference(state, StateDict{{"a", 2}, {"b", 1}}), "");
}

TEST(RenamingLoadPlanner, CollisionsNameBothDestinationsAndTheStoredKey) {
  const Saved saved({{"a", 1}, {"b", 2}});
  StateDict state = {{"a", 0}, {"b", 0}, {"c", 0}, {"d", 0}};
  KeyRenaming renaming;
  renaming.keys = {{"c", "a"}, {"d", "b"}};
  expect_error_with(ErrorKind::kKey,
                    {"2 faults", "'c': would be loaded from 'a', from which 'a' is",
                     "'d': would be loaded from 'b', from which 'b' is"},
                    [&] { load_renamed(state, saved, renaming); });
  renaming.is_wanted = [](const std::string& key) { return key == "c" || key == "d"; };
  load_renamed(state, saved, renaming);
  EXPECT_EQ(first_difference(state, StateDict{{"a", 0}, {"b", 0}, {"c", 1}, {"d", 2}}), "");
}

TEST(RenamingLoadPlanner, RulesThatDecideNothingAreNamedUnlessAllowed) {
  const Saved saved({{"a", 1}, {"b", Dict{{"x", 2}}}});
  StateDict state = {{"a", 0}, {"b", Dict{{"x", 0}}}};
  KeyRenaming renaming;
  renaming.keys = {{"typo", "a"}, {"b.x", "b.x"}};
  renaming.prefixes = {{"b", "other"}, {"nothing", "a"}};
  expect_error_with(ErrorKind::kKey, {"3 faults", "'typo'", "'b'", "'nothing'"},
                    [&] { load_renamed(state, saved, renaming); });
  renaming.allow_unused = true;
  load_renamed(state, saved, renaming);
  EXPECT_EQ(first_difference(state, StateDict{{"a", 1}, {"b", Dict{{"x", 2}}}}), "");
}

TEST(RenamingLoadPlanner, ErrorsNameBothKeysAndNothingIsChanged) {
  const Saved saved(stored_model());
  StateDict state = {{"w", zeros({3, 2})}, {"gone", zeros({1})}, {"step", zeros({1})}, {"b", at::zeros({3}, at::kInt)}};
  KeyRenaming renaming;
  renaming.keys = {{"w", "model.net.w"}, {"gone", "model.gone"}, {"b", "model.net.b"}};
  RenamingLoadPlanner planner(renaming);
  planner.set_up(state, saved.metadata, {});
  expect_error_with(ErrorKind::kShape,
                    {"4 faults", "'w': stored size [2, 3]", "(it is to be loaded from 'model.net.w')",
                     "'gone': missing in the checkpoint (it is to be loaded from 'model.gone')",
                     "'step': an object is stored", "'b': stored dtype float32"},
                    [&] { planner.create_local_plan(); });
  EXPECT_EQ(planner.report().missing, std::vector<std::string>{"gone"});
}

TEST(RenamingLoadPlanner, PartialLeavesWhatIsMissingUnderItsStoredName) {
  const Saved saved(stored_model());
  StateDict state = {{"w", zeros({2, 3})}, {"step", 0}};
  KeyRenaming renaming;
  renaming.keys = {{"w", "model.nothing"}};
  LoadPlannerOptions options;
  options.partial = true;
  const LoadReport report = load_renamed(state, saved, renaming, options);
  EXPECT_EQ(report.missing, std::vector<std::string>{"w"});
  EXPECT_EQ(first_difference(state, StateDict{{"w", zeros({2, 3})}, {"step", 7}}), "");
}

TEST(RenamingLoadPlanner, ServesSeveralLoads) {
  const Saved saved({{"a", 1}, {"b", 2}});
  KeyRenaming renaming;
  renaming.keys = {{"x", "a"}};
  RenamingLoadPlanner planner(renaming);
  for (int round = 0; round < 2; ++round) {
    StateDict state = {{"x", 0}, {"b", 0}};
    load_with(planner, state, saved);
    EXPECT_EQ(first_difference(state, StateDict{{"x", 1}, {"b", 2}}), "");
  }
}

/// As PyTorch up to 2.3 stored mappings without tensors: `a` is one object.
Saved old_form() {
  SavePlannerOptions options;
  options.flatten = FlattenRule::kUpTo2_3;
  return Saved({{"a", Dict{{"b", 1}, {"c", 2}}}, {"w", at::ones({2})}}, options);
}

StateDict old_form_destination() { return {{"a", Dict{{"b", 0}, {"c", 0}}}, {"w", zeros({2})}}; }

TEST(RenamingLoadPlanner, OldKeysAreTakenWhole) {
  const Saved saved = old_form();
  StateDict state = old_form_destination();
  const LoadReport report = load_renamed(state, saved, {});
  EXPECT_EQ(first_difference(state, StateDict{{"a", Dict{{"b", 1}, {"c", 2}}}, {"w", at::ones({2})}}), "");
  EXPECT_TRUE(report.unexpected.empty());

  StateDict without = old_form_destination();
  KeyRenaming none_of_it;
  none_of_it.is_wanted = [](const std::string& key) { return key == "w"; };
  const LoadReport skipped = load_renamed(without, saved, none_of_it);
  EXPECT_EQ(first_difference(without, StateDict{{"a", Dict{{"b", 0}, {"c", 0}}}, {"w", at::ones({2})}}), "");
  EXPECT_EQ(skipped.skipped, (std::vector<std::string>{"a.b", "a.c"}));
}

TEST(RenamingLoadPlanner, OldKeysOfWhichSomeAreNotWantedOrRenamedAreRefused) {
  const Saved saved = old_form();
  StateDict state = old_form_destination();
  KeyRenaming some;
  some.is_wanted = [](const std::string& key) { return key != "a.b"; };
  expect_error_with(ErrorKind::kKey, {"1 fault", "key 'a.b': is not wanted", "the checkpoint has 'a' as one object"},
                    [&] { load_renamed(state, saved, some); });
  KeyRenaming renamed;
  renamed.keys = {{"a.b", "w"}};
  expect_error_with(ErrorKind::kKey, {"1 fault", "key 'a.b': is to be loaded from 'w'", "'a' as one object"},
                    [&] { load_renamed(state, saved, renamed); });
  LoadPlannerOptions partial;
  partial.partial = true;
  const LoadReport report = load_renamed(state, saved, some, partial);
  EXPECT_EQ(report.missing, std::vector<std::string>{"a.c"});
  EXPECT_EQ(first_difference(state, StateDict{{"a", Dict{{"b", 0}, {"c", 0}}}, {"w", at::ones({2})}}), "");
}

TEST(RenamingLoadPlanner, TheFunctionIsAskedForWantedDestinationsAlone) {
  const Saved saved = old_form();
  StateDict state = {{"a", Dict{{"b", 0}, {"c", 0}}}, {"v", zeros({2})}, {"other", 0}};
  const std::map<std::string, std::string> all = {{"a.b", "a.b"}, {"a.c", "a.c"}, {"v", "w"}};
  KeyRenaming renaming;
  renaming.rename = [&](const std::string& key) { return all.at(key); };
  renaming.is_wanted = [](const std::string& key) { return key != "other"; };
  load_renamed(state, saved, renaming);
  EXPECT_EQ(first_difference(state, StateDict{{"a", Dict{{"b", 1}, {"c", 2}}}, {"v", at::ones({2})}, {"other", 0}}),
            "");
}

// One step of the default planner replaced.

class HalvingPlanner final : public DefaultLoadPlanner {
 public:
  void commit_tensor(const ReadItem& item, const at::Tensor& tensor) override {
    tensor.mul_(0.5);
    DefaultLoadPlanner::commit_tensor(item, tensor);
  }
};

TEST(LoadPlanner, ASubclassMayReplaceOneStep) {
  const Saved saved({{"w", at::full({2}, 4.0)}});
  StateDict state = {{"w", zeros({2})}};
  HalvingPlanner planner;
  load_with(planner, state, saved);
  EXPECT_TRUE(state.at("w").as_tensor().equal(at::full({2}, 2.0)));
}

// Patterns in place of keys.

TEST(KeyPattern, MatchesAKeyOrAPrefixThatEndsAtADot) {
  const auto selects = [](const char* pattern, const char* key) { return KeyPattern(pattern).selects(key); };
  EXPECT_TRUE(selects("*.weight", "layers.0.attn.weight"));
  EXPECT_FALSE(selects("*.weight", "weight"));
  EXPECT_FALSE(selects("*.weight", "layers.0.weights"));
  EXPECT_TRUE(selects("*.attn", "layers.0.attn.weight"));
  EXPECT_FALSE(selects("*.att", "layers.0.attn.weight"));
  EXPECT_TRUE(selects("layers.?", "layers.3.bias"));
  EXPECT_FALSE(selects("layers.?", "layers.13.bias"));
  EXPECT_TRUE(selects("layers.??", "layers.13.bias"));
  EXPECT_TRUE(selects("*", ""));
  EXPECT_TRUE(selects("*", "a"));
  EXPECT_FALSE(selects("?", ""));
  EXPECT_TRUE(selects("a*b*c", "a.b.b.xc.d"));
  EXPECT_FALSE(selects("a*b*c", "acb"));
  EXPECT_TRUE(selects("**", "a.b"));
  EXPECT_TRUE(selects("?.x", "..x"));
}

TEST(KeyPattern, LongKeysTakeLinearTime) {
  const std::string key(std::size_t{1} << 20, 'a');
  EXPECT_FALSE(KeyPattern("*a*a*a*a*b").selects(key));
  EXPECT_FALSE(KeyPattern("*x").selects(std::string(std::size_t{1} << 20, '.')));
}

TEST(Rebuild, TakesPatterns) {
  const Saved saved({{"m", Dict{{"0.weight", 1}, {"0.bias", 2}, {"1.weight", 3}}},
                     {"list", List{at::ones({1}), Dict{{"a*b", 4}}}},
                     {"n", 5}});
  const auto rebuild = [&](std::set<std::string> keys) {
    RebuildLoadPlanner planner(std::move(keys));
    StateDict state;
    load_with(planner, state, saved);
    return state;
  };
  EXPECT_EQ(first_difference(rebuild({"*.weight"}), StateDict{{"m", Dict{{"0.weight", 1}, {"1.weight", 3}}}}), "");
  EXPECT_EQ(first_difference(rebuild({"m.0*", "?"}),
                             StateDict{{"m", Dict{{"0.weight", 1}, {"0.bias", 2}, {"1.weight", 3}}}, {"n", 5}}),
            "")
      << "'?' is like the prefix 'm', too";
  EXPECT_EQ(first_difference(rebuild({"list.1.a*b"}), StateDict{{"list", List{Value(), Dict{{"a*b", 4}}}}}), "");
  expect_error_with(ErrorKind::kKey, {"2 faults", "'*.wait': no key", "'x'"}, [&] { rebuild({"n", "*.wait", "x"}); });
}

}  // namespace
}  // namespace dcp

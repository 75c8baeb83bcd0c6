// Hooks on modules: moments, order, prefixes, what they may change, exceptions, lifetime, threads.

#include "torch_dcp/model_state/hooks.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <thread>

#include "test/model_state/hook_support.h"
#include "torch_dcp/model_state/extra_state.h"
#include "torch_dcp/model_state/model_state_dict.h"
#include "torch_dcp/model_state/module_state_dict_internal.h"
#include "torch_dcp/model_state/training_state.h"

namespace dcp::test {
namespace {

/// Notes the moments of state-dict calls on a module.
class Moments {
 public:
  explicit Moments(Strings& log) : log_(log) {}

  void watch(nn::Module& module, const std::string& name) {
    handles_.add(register_state_dict_pre_hook(module, [this, name](nn::Module&, const std::string& prefix) {
      log_.push_back("save pre " + name + " '" + prefix + "'");
    }));
    handles_.add(
        register_state_dict_post_hook(module, [this, name](nn::Module&, Dict& state, const std::string& prefix) {
          log_.push_back("save post " + name + " '" + prefix + "' " + std::to_string(state.size()));
        }));
    handles_.add(register_load_state_dict_pre_hook(module, [this, name](const LoadPreHookArgs& args) {
      log_.push_back("load pre " + name + " '" + args.prefix + "' " + std::to_string(args.state.size()));
    }));
    handles_.add(register_load_state_dict_post_hook(
        module, [this, name](nn::Module&, LoadReport&) { log_.push_back("load post " + name); }));
  }

 private:
  Strings& log_;
  HookHandle handles_;
};

TEST(HooksTest, O32_RunAtPythonsMomentsInTheOrderOfRegistration) {
  Tree tree;
  Strings log;
  Moments moments(log);
  moments.watch(*tree, "root");
  moments.watch(*tree->c, "c1");
  moments.watch(*tree->c, "c2");
  moments.watch(*tree->d, "d");
  const Dict state = state_dict(*tree);
  EXPECT_EQ(keys(state), tree_names());
  // The post hook of c has the root's own entries, its own and those of its child; e is not there yet.
  EXPECT_EQ(log,
            (Strings{"save pre root ''", "save pre c1 'c.'", "save pre c2 'c.'", "save pre d 'c.d.'",
                     "save post d 'c.d.' 6", "save post c1 'c.' 6", "save post c2 'c.' 6", "save post root '' 8"}));
  log.clear();
  load_state_dict(*tree, state);
  // Each sees the entries below its prefix.
  EXPECT_EQ(log, (Strings{"load pre root '' 8", "load pre c1 'c.' 4", "load pre c2 'c.' 4", "load pre d 'c.d.' 2",
                          "load post d", "load post c1", "load post c2", "load post root"}));
}

TEST(HooksTest, PrefixOfTheCallIsInFront) {
  Tree tree;
  Strings log;
  Moments moments(log);
  moments.watch(*tree, "root");
  moments.watch(*tree->d, "d");
  const Dict state = state_dict(*tree, {.prefix = "p."});
  EXPECT_EQ(keys(state).front(), "p.w");
  EXPECT_EQ(keys(state).back(), "p.e.b");
  EXPECT_EQ(log,
            (Strings{"save pre root 'p.'", "save pre d 'p.c.d.'", "save post d 'p.c.d.' 6", "save post root 'p.' 8"}));
}

TEST(HooksTest, RunOnceInTheCallsThatAreBuiltOnThese) {
  Tree tree;
  Strings log;
  Moments moments(log);
  moments.watch(*tree->e, "e");
  const Dict state = get_model_state_dict(*tree);
  EXPECT_EQ(log, (Strings{"save pre e 'e.'", "save post e 'e.' 8"}));
  log.clear();
  set_model_state_dict(*tree, state);
  EXPECT_EQ(log, (Strings{"load pre e 'e.' 2", "load post e"}));
}

TEST(HooksTest, APreHookRunsBeforeTheModulesOwnEntriesAreTaken) {
  Tree tree;
  const auto late = register_state_dict_pre_hook(*tree->c, [](nn::Module& module, const std::string&) {
    if (!module.named_buffers(false).contains("late")) module.register_buffer("late", torch::ones(1));
  });
  EXPECT_TRUE(state_dict(*tree).contains("c.late"));
  Tree other;
  const auto too = register_load_state_dict_pre_hook(*other->c, [](const LoadPreHookArgs& args) {
    if (!args.module.named_buffers(false).contains("late")) args.module.register_buffer("late", torch::zeros(1));
  });
  load_state_dict(*other, state_dict(*tree));
  EXPECT_TRUE(bit_equal(other->c->named_buffers()["late"], torch::ones(1)));
}

TEST(HooksTest, ATiedModuleRunsThemUnderEachOfItsNames) {
  Leaf leaf;
  nn::Sequential twice(leaf, leaf);
  Strings log;
  Moments moments(log);
  moments.watch(*leaf, "leaf");
  const Dict state = state_dict(*twice);
  EXPECT_EQ(log,
            (Strings{"save pre leaf '0.'", "save post leaf '0.' 2", "save pre leaf '1.'", "save post leaf '1.' 4"}));
  log.clear();
  load_state_dict(*twice, state);
  EXPECT_EQ(log, (Strings{"load pre leaf '0.' 2", "load pre leaf '1.' 2", "load post leaf", "load post leaf"}));
}

// --- what hooks may change -------------------------------------------------------------------------------------------

HookHandle rename_on_save(nn::Module& module) {
  return register_state_dict_post_hook(module, [](nn::Module&, Dict& state, const std::string& prefix) {
    const Value w = state.at(prefix + "w");
    state[prefix + "w2"] = w;
    state.erase(prefix + "w");
  });
}

HookHandle rename_on_load(nn::Module& module) {
  return register_load_state_dict_pre_hook(module, [](const LoadPreHookArgs& args) {
    const Value w = args.state.at(args.prefix + "w2");
    args.state[args.prefix + "w"] = w;
    args.state.erase(args.prefix + "w2");
  });
}

TEST(HooksTest, O32_ANameIsChangedAndChangedBack) {
  Tree tree(1), other(5);
  const auto on_save = rename_on_save(*tree->c);
  const Dict state = state_dict(*tree);
  EXPECT_TRUE(state.contains("c.w2"));
  EXPECT_FALSE(state.contains("c.w"));
  expect_error(ErrorKind::kKey, "'c.w': is missing", [&] { load_state_dict(*other, state); });
  const auto on_load = rename_on_load(*other->c);
  const Strings before = keys(state);
  const LoadReport report = load_state_dict(*other, state);
  EXPECT_TRUE(report.missing.empty() && report.unexpected.empty());
  EXPECT_EQ(keys(state), before) << "the caller's dict";
  EXPECT_EQ(first_difference(tensors_of(*other), tensors_of(*tree)), "");
}

TEST(HooksTest, ALoadPreHookOfTheRootChangesWhatItsChildrenSee) {
  Tree tree(1), other(5);
  const auto rename = register_load_state_dict_pre_hook(*other, [](const LoadPreHookArgs& args) {
    const Value w = args.state.at("c.d.w");
    args.state["c.d.w2"] = w;
    args.state.erase("c.d.w");
    args.state.erase("e.b");
    args.state["e.more"] = 1;
  });
  const auto back = rename_on_load(*other->d);
  const LoadReport report = load_state_dict(*other, state_dict(*tree), {.strict = false});
  EXPECT_EQ(report.missing, Strings{"e.b"});
  EXPECT_EQ(report.unexpected, Strings{"e.more"});
  EXPECT_TRUE(bit_equal(other->d->w, tree->d->w));
}

TEST(HooksTest, ALoadPreHookSeesStrictAndMayEditTheNames) {
  Tree tree;
  std::vector<bool> seen;
  const auto hook = register_load_state_dict_pre_hook(*tree->e, [&](const LoadPreHookArgs& args) {
    seen.push_back(args.strict);
    args.missing.clear();
    args.unexpected.push_back("more");
  });
  Dict state = state_dict(*tree);
  state.erase("w");
  expect_error(ErrorKind::kKey, "1 fault:\n  key 'more': is unexpected", [&] { load_state_dict(*tree, state); });
  EXPECT_EQ(load_state_dict(*tree, state, {.strict = false}).unexpected, Strings{"more"});
  EXPECT_EQ(seen, (std::vector<bool>{true, false}));
}

TEST(HooksTest, ErrorsOfLoadPreHooksAreNamedWithAllOthersAndNothingChanges) {
  Tree tree;
  const Dict before = tensors_of(*tree);
  const auto add = [](const LoadPreHookArgs& args) {
    args.errors.add(ErrorKind::kUnsupported, args.prefix + "w", "the hook says no");
  };
  HookHandle hooks = register_load_state_dict_pre_hook(*tree->c, add);
  hooks.add(register_load_state_dict_pre_hook(*tree->e, add));
  Dict state = deep_copy(state_dict(*tree));
  for (auto& [key, value] : state) value.as_tensor().fill_(9);
  expect_error(ErrorKind::kUnsupported, "'e.w': the hook says no",
               [&] { load_state_dict(*tree, state, {.strict = false}); });
  state["b"] = torch::ones(7);
  state["more"] = 1;
  state.erase("c.d.w");
  for (const char* fault : {"5 faults", "'c.w': the hook says no", "'e.w': the hook says no",
                            "'b': the given tensor has", "'more': is unexpected", "'c.d.w': is missing"}) {
    expect_error(ErrorKind::kShape, fault, [&] { load_state_dict(*tree, state); });
  }
  EXPECT_EQ(first_difference(tensors_of(*tree), before), "");
}

TEST(HooksTest, O32_ALoadPostHookDecidesOnTheNames) {
  Tree tree(1), other(5);
  const Dict before = tensors_of(*other);
  Dict state = state_dict(*tree);
  state.erase("c.w");
  {
    const auto forgive = register_load_state_dict_post_hook(*other->c, [](nn::Module&, LoadReport& report) {
      EXPECT_EQ(report.missing, Strings{"c.w"});
      report.missing.clear();
    });
    EXPECT_TRUE(load_state_dict(*other, state).missing.empty());
    EXPECT_TRUE(bit_equal(other->e->w, tree->e->w));
    EXPECT_TRUE(bit_equal(other->c->w, before.at("c.w")));
  }
  Tree third(7);
  const Dict of_third = tensors_of(*third);
  const auto blame = register_load_state_dict_post_hook(*third->e, [&](nn::Module& module, LoadReport& report) {
    EXPECT_TRUE(bit_equal(module.named_parameters()["w"], tree->e->w)) << "everything is loaded then";
    report.missing.push_back("blamed");
  });
  expect_error(ErrorKind::kKey, "'blamed': is missing", [&] { load_state_dict(*third, state_dict(*tree)); });
  EXPECT_EQ(first_difference(tensors_of(*third), of_third), "");
  EXPECT_EQ(load_state_dict(*third, state_dict(*tree), {.strict = false}).missing, Strings{"blamed"});
  EXPECT_EQ(first_difference(tensors_of(*third), tensors_of(*tree)), "");
}

TEST(HooksTest, NamesThatNoPostHookForgivesAreTakenBack) {
  Tree tree(1), other(5);
  const Dict before = tensors_of(*other);
  int runs = 0;
  const auto idle = register_load_state_dict_post_hook(*other, [&](nn::Module&, LoadReport&) { ++runs; });
  Dict state = state_dict(*tree);
  state["more"] = 1;
  expect_error(ErrorKind::kKey, "'more': is unexpected", [&] { load_state_dict(*other, state); });
  EXPECT_EQ(runs, 1);
  EXPECT_EQ(first_difference(tensors_of(*other), before), "");
}

// --- exceptions ------------------------------------------------------------------------------------------------------

TEST(HooksTest, O32_AnExceptionPassesUnchangedAndTheNextCallWorks) {
  Tree tree(1), other(5);
  const Dict state = state_dict(*tree);
  const Dict before = tensors_of(*other);
  bool is_armed = true;
  const auto fire = [&] {
    if (is_armed) throw Thrown();
  };
  const std::vector<std::function<HookHandle(nn::Module&)>> moments = {
      [&](nn::Module& m) { return register_state_dict_pre_hook(m, [&](nn::Module&, const std::string&) { fire(); }); },
      [&](nn::Module& m) {
        return register_state_dict_post_hook(m, [&](nn::Module&, Dict&, const std::string&) { fire(); });
      },
      [&](nn::Module& m) { return register_load_state_dict_pre_hook(m, [&](const LoadPreHookArgs&) { fire(); }); },
      [&](nn::Module& m) {
        return register_load_state_dict_post_hook(m, [&](nn::Module& module, LoadReport& report) {
          if (!is_armed) return;
          module.named_parameters()["w"].detach().fill_(3);
          module.named_buffers()["b"].fill_(4);
          report.missing.clear();
          fire();
        });
      },
  };
  for (std::size_t i = 0; i < moments.size(); ++i) {
    for (nn::Module* place : std::initializer_list<nn::Module*>{other.get(), other->c.get(), other->d.get()}) {
      SCOPED_TRACE(i);
      const HookHandle handle = moments[i](*place);
      is_armed = true;
      const auto call = [&] {
        if (i < 2) {
          state_dict(*other);
        } else {
          load_state_dict(*other, state, {.strict = false});
        }
      };
      EXPECT_THROW(call(), Thrown);
      EXPECT_EQ(first_difference(tensors_of(*other), before), "");
      is_armed = false;
      EXPECT_NO_THROW(call());
      load_state_dict(*other, before);
    }
  }
}

TEST(HooksTest, O32_SettingsAreAsBeforeAfterAnException) {
  Tree tree;
  optim::Adam adam(tree->parameters(), optim::AdamOptions(0.5));
  const auto plain = [&] {
    const auto [model, optimizer] = get_state_dict(*tree, adam);
    return Dict{{"model", deep_copy(model)}, {"optimizer", deep_copy(optimizer)}};
  };
  const Dict before = plain();
  StateDictOptions other = {.full_state_dict = true, .cpu_offload = true, .flatten_optimizer_state_dict = true};
  other.keep_submodule_prefixes = false;
  HookHandle hooks =
      register_state_dict_post_hook(*tree->d, [](nn::Module&, Dict&, const std::string&) { throw Thrown(); });
  hooks.add(register_load_state_dict_post_hook(*tree->d, [](nn::Module&, LoadReport&) { throw Thrown(); }));
  for (const bool grad_mode : {true, false}) {
    const torch::AutoGradMode mode(grad_mode);
    EXPECT_THROW(get_state_dict(*tree, adam, other, {tree->c.get()}), Thrown);
    EXPECT_EQ(torch::GradMode::is_enabled(), grad_mode);
    EXPECT_THROW(set_model_state_dict(*tree, before.at("model").as_dict(), {.strict = false}), Thrown);
    EXPECT_EQ(torch::GradMode::is_enabled(), grad_mode);
  }
  hooks.remove();
  EXPECT_EQ(first_difference(plain(), before), "") << "names, forms and kinds of a call are of that call alone";
  EXPECT_TRUE(tree->w.requires_grad());
}

TEST(HooksTest, O32_RemovedHandlesDoNotRun) {
  Tree tree;
  Strings log;
  auto moments = std::make_unique<Moments>(log);
  moments->watch(*tree, "root");
  moments->watch(*tree->c, "c");
  Moments kept(log);
  kept.watch(*tree->c, "kept");
  moments.reset();
  const Dict state = state_dict(*tree);
  load_state_dict(*tree, state);
  EXPECT_EQ(log, (Strings{"save pre kept 'c.'", "save post kept 'c.' 6", "load pre kept 'c.' 4", "load post kept"}));
}

TEST(HooksTest, AnExceptionOfTheLibraryKeepsItsKind) {
  Tree tree;
  const auto hook = register_load_state_dict_post_hook(
      *tree, [](nn::Module&, LoadReport&) { DCP_THROW(kUnsupported, "by the hook"); });
  expect_error(ErrorKind::kUnsupported, "by the hook", [&] { load_state_dict(*tree, state_dict(*tree)); });
}

TEST(HooksTest, WhatAPostHookDidToTensorsThatWereNotLoadedIsPutBackToo) {
  Tree tree(1);
  const at::Tensor cache = tree->c->register_buffer("cache", torch::zeros(2));
  const auto hook = register_load_state_dict_post_hook(*tree->c, [&](nn::Module&, LoadReport&) {
    cache.fill_(8);
    throw Thrown();
  });
  EXPECT_THROW(load_state_dict(*tree, Dict(), {.strict = false}), Thrown);
  EXPECT_TRUE(bit_equal(cache, torch::zeros(2)));
}

// --- handles and lifetime --------------------------------------------------------------------------------------------

HookHandle count_on_save(nn::Module& module, int& count) {
  return register_state_dict_post_hook(module, [&count](nn::Module&, Dict&, const std::string&) { ++count; });
}

TEST(HooksTest, WhatAPostHookDidToDtypesAndShapesIsPutBackToo) {
  Tree tree;
  const Dict before = tensors_of(*tree);
  const at::Tensor held = tree->w;
  const auto hook = register_load_state_dict_post_hook(*tree, [&](nn::Module& module, LoadReport&) {
    module.to(torch::kDouble);
    tree->b.set_data(torch::ones({1}));
    throw Thrown();
  });
  EXPECT_THROW(load_state_dict(*tree, tensors_of(*Tree(5))), Thrown);
  EXPECT_EQ(first_difference(tensors_of(*tree), before), "");
  EXPECT_TRUE(tree->w.is_same(held));
}

TEST(HooksTest, ATensorThatCannotBeWrittenDoesNotHideTheException) {
  Leaf leaf;
  leaf->register_buffer("mask", torch::zeros({1, 4}).expand({8, 4}));
  const auto left_out = register_non_persistent_buffers(*leaf, {"mask"});
  const auto hook = register_load_state_dict_post_hook(*leaf, [](nn::Module&, LoadReport&) { throw Thrown(); });
  const Dict before = tensors_of(*leaf);
  EXPECT_THROW(load_state_dict(*leaf, tensors_of(*Leaf(3))), Thrown);
  EXPECT_EQ(first_difference(tensors_of(*leaf), before), "");
}

TEST(HooksTest, ExtraStateThatCannotBeComparedIsPutBackAllTheSame) {
  Leaf leaf;
  Value extra = torch::eye(2).to_sparse();
  std::size_t calls = 0;
  const auto registered = register_extra_state(
      *leaf, [&] { return extra; },
      [&](const Value& given) {
        extra = given;
        ++calls;
      });
  const auto hook = register_load_state_dict_post_hook(*leaf, [](nn::Module&, LoadReport&) { throw Thrown(); });
  Dict state = tensors_of(*Leaf(3));
  state["_extra_state"] = torch::zeros({2, 2}).to_sparse();
  EXPECT_THROW(load_state_dict(*leaf, state), Thrown);
  EXPECT_EQ(calls, 2u);
  EXPECT_TRUE(extra.as_tensor().to_dense().equal(torch::eye(2)));
}

TEST(HookHandleTest, EndsWhatItOwns) {
  ASSERT_EQ(attachment_count(), 0);
  Leaf leaf;
  int first = 0, second = 0;
  HookHandle handle = count_on_save(*leaf, first);
  EXPECT_TRUE(handle);
  EXPECT_EQ(attachment_count(), 1);
  state_dict(*leaf);
  HookHandle moved = std::move(handle);
  EXPECT_FALSE(handle);  // NOLINT
  handle.remove();
  state_dict(*leaf);
  EXPECT_EQ(first, 2);
  moved = count_on_save(*leaf, second);  // ends the first
  state_dict(*leaf);
  EXPECT_EQ(first, 2);
  EXPECT_EQ(second, 1);
  moved.add(count_on_save(*leaf, first));
  EXPECT_EQ(attachment_count(), 2);
  state_dict(*leaf);
  EXPECT_EQ(first, 3);
  EXPECT_EQ(second, 2);
  moved.remove();
  EXPECT_FALSE(moved);
  moved.remove();
  state_dict(*leaf);
  EXPECT_EQ(first, 3);
  EXPECT_EQ(second, 2);
  EXPECT_EQ(attachment_count(), 0);
}

TEST(HookHandleTest, EmptyFunctionsAreRefused) {
  Leaf leaf;
  optim::SGD sgd({leaf->w}, optim::SGDOptions(0.1));
  const auto refused = [](const std::function<HookHandle()>& call) {
    expect_error(ErrorKind::kInvalidArgument, "empty function", [&] { (void)call(); });
  };
  refused([&] { return register_state_dict_pre_hook(*leaf, nullptr); });
  refused([&] { return register_state_dict_post_hook(*leaf, nullptr); });
  refused([&] { return register_load_state_dict_pre_hook(*leaf, nullptr); });
  refused([&] { return register_load_state_dict_post_hook(*leaf, nullptr); });
  refused([&] { return register_state_dict_pre_hook(sgd, nullptr); });
  refused([&] { return register_state_dict_post_hook(sgd, nullptr); });
  refused([&] { return register_load_state_dict_pre_hook(sgd, nullptr); });
  refused([&] { return register_load_state_dict_post_hook(sgd, nullptr); });
  EXPECT_EQ(attachment_count(), 0);
}

/// A module that a shared pointer owns, at an address of the test's choice.
std::shared_ptr<LeafImpl> leaf_at(void* address) {
  return std::shared_ptr<LeafImpl>(new (address) LeafImpl, [](LeafImpl* leaf) { leaf->~LeafImpl(); });
}

TEST(HookLifetimeTest, HooksOfADeadModuleDoNotRunForAnotherAtItsAddress) {
  alignas(LeafImpl) std::byte memory[sizeof(LeafImpl)];
  int first = 0, second = 0;
  auto module = leaf_at(memory);
  const HookHandle handle = count_on_save(*module, first);
  state_dict(*module);
  ASSERT_EQ(first, 1);
  module.reset();
  module = leaf_at(memory);
  state_dict(*module);
  EXPECT_EQ(first, 1);
  const HookHandle of_second = count_on_save(*module, second);
  state_dict(*module);
  EXPECT_EQ(first, 1);
  EXPECT_EQ(second, 1);
  EXPECT_EQ(attachment_count(), 2);
}

TEST(HookLifetimeTest, AHolderIsASharedModule) {
  int count = 0;
  HookHandle handle;
  for (int i = 0; i < 50; ++i) {
    Leaf leaf;
    state_dict(*leaf);
    EXPECT_EQ(count, 0) << i;
    if (i == 0) handle = count_on_save(*leaf, count);
  }
}

TEST(HookLifetimeTest, OnTheStackTheHandleGoesFirst) {
  std::optional<LeafImpl> leaf(std::in_place);
  int first = 0, second = 0;
  const LeafImpl* const address = &*leaf;
  {
    const HookHandle handle = count_on_save(*leaf, first);
    state_dict(*leaf);
    EXPECT_EQ(first, 1);
  }
  leaf.emplace();
  ASSERT_EQ(&*leaf, address);
  state_dict(*leaf);
  EXPECT_EQ(first, 1);
  const HookHandle handle = count_on_save(*leaf, second);
  state_dict(*leaf);
  EXPECT_EQ(second, 1);
}

/// Registers hooks in its constructor, before any shared pointer owns it.
struct SelfHooked : nn::Module {
  explicit SelfHooked(int& count) { handle = count_on_save(*this, count); }
  HookHandle handle;
};

TEST(HookLifetimeTest, AModuleMayOwnItsHandle) {
  int count = 0;
  {
    const auto module = std::make_shared<SelfHooked>(count);
    state_dict(*module);
    EXPECT_EQ(count, 1);
  }
  EXPECT_EQ(attachment_count(), 0);
}

TEST(HookLifetimeTest, AClonedOrCopiedModuleHasNoHooks) {
  int count = 0;
  nn::Linear linear(2, 2);
  const HookHandle handle = count_on_save(*linear, count);
  const auto cloned = linear->clone();
  state_dict(*cloned);
  const nn::LinearImpl copy = *linear;
  state_dict(copy);
  EXPECT_EQ(count, 0);
  state_dict(*linear);
  EXPECT_EQ(count, 1);
}

TEST(HookLifetimeTest, AHookThatOwnsHandlesIsDestroyedWithThem) {
  Leaf leaf;
  int count = 0;
  auto inner = std::make_shared<HookHandle>(count_on_save(*leaf, count));
  HookHandle outer = register_state_dict_pre_hook(*leaf, [inner](nn::Module&, const std::string&) {});
  inner.reset();
  EXPECT_EQ(attachment_count(), 2);
  outer.remove();
  EXPECT_EQ(attachment_count(), 0);
}

// --- threads, changes during a call ----------------------------------------------------------------------------------

TEST(HooksTest, WhatChangesDuringACallCountsInTheNext) {
  Tree tree;
  int removed_runs = 0, added_runs = 0;
  HookHandle victim = count_on_save(*tree->e, removed_runs), added;
  const auto changer = register_state_dict_pre_hook(*tree, [&](nn::Module&, const std::string&) {
    victim.remove();
    if (!added) added = count_on_save(*tree->e, added_runs);
  });
  state_dict(*tree);
  EXPECT_EQ(removed_runs, 1);
  EXPECT_EQ(added_runs, 0);
  state_dict(*tree);
  EXPECT_EQ(removed_runs, 1);
  EXPECT_EQ(added_runs, 1);
}

TEST(HooksTest, AHookMayAskForStates) {
  Tree tree;
  Strings inner;
  const auto hook = register_state_dict_post_hook(
      *tree, [&](nn::Module&, Dict&, const std::string&) { inner = keys(state_dict(*tree->c)); });
  state_dict(*tree);
  EXPECT_EQ(inner, (Strings{"w", "b", "d.w", "d.b"}));
}

TEST(HooksTest, SeveralThreadsRegisterRemoveAndCall) {
  Leaf shared;
  std::atomic<int> runs = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      Leaf own;
      for (int i = 0; i < 200; ++i) {
        int count = 0;
        const HookHandle on_own = count_on_save(*own, count);
        const HookHandle on_shared =
            register_state_dict_pre_hook(*shared, [&runs](nn::Module&, const std::string&) { runs.fetch_add(1); });
        state_dict(*own);
        EXPECT_EQ(count, 1);
        state_dict(*shared);  // changes nothing of the module: nobody registers tensors meanwhile
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GE(runs.load(), 4 * 200);
  EXPECT_EQ(attachment_count(), 0);
}

// --- calls that were replaced ----------------------------------------------------------------------------------------

TEST(ModulePatchTest, TakesThePlaceOfTheCallsAndDoesNotRecurse) {
  Tree tree;
  const Dict own = get_model_state_dict(*tree);
  int sets = 0;
  {
    const HookHandle patch =
        attach(*tree,
               ModulePatch{[](const nn::Module& module) { return Dict{{"patched", get_model_state_dict(module)}}; },
                           [&](nn::Module& module, const Dict& state) {
                             ++sets;
                             return set_model_state_dict(module, state.at("patched").as_dict());
                           }},
               "one only");
    const Dict patched = state_dict(*tree, {.prefix = "ignored."});
    EXPECT_EQ(keys(patched), Strings{"patched"});
    EXPECT_EQ(first_difference(patched.at("patched"), own), "");
    load_state_dict(*tree, patched);
    EXPECT_EQ(sets, 1);
    EXPECT_EQ(keys(own_state_dict(*tree)), tree_names());
    expect_error(ErrorKind::kKey, "one only", [&] { (void)attach(*tree, ModulePatch{}, "one only"); });
  }
  EXPECT_EQ(keys(state_dict(*tree)), tree_names());
}

}  // namespace
}  // namespace dcp::test

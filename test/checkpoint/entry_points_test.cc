// The older form of saving and loading, and what calls of any form promise about groups, ids and keys. Names begin with
// the lines of the checklist that they cover.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>
#include <vector>

#include "test/checkpoint/call_probe.h"
#include "test/checkpoint/checkpoint_support.h"
#include "test/support/expect_error.h"
#include "test/support/fault_injecting_file_system.h"
#include "torch_dcp/checkpoint/load_state_dict.h"
#include "torch_dcp/checkpoint/save_state_dict.h"
#include "torch_dcp/state_dict/stateful.h"

namespace dcp::test {
namespace {

bool has_call(const CallProbe& probe, const std::string& call) {
  const std::vector<std::string> calls = probe.calls();
  return std::find(calls.begin(), calls.end(), call) != calls.end();
}

StateDict state_of(const RankContext& ranks) {
  return {{"w", split(counted({7, 2}), ranks)}, {"m", Dict{{"t", counted({3})}, {"n", 4}}}};
}

StateDict blank_of(const RankContext& ranks) {
  return {{"w", split_pattern({7, 2}, ranks)}, {"m", Dict{{"t", pattern({3})}, {"n", 0}}}};
}

TEST(EntryPoints, B18_C4_11_AnyRankCoordinatesTheOlderForm) {
  for (const int coordinator : {0, 1, 2}) {
    const auto files = make_memory_file_system();
    run_ranks(3, [&](RankContext& ranks) {
      CallProbe saving;
      ProbedWriter writer("c", {.file_system = files}, saving);
      const Metadata metadata = save_state_dict(state_of(ranks), writer, ranks.unconnected_group(), coordinator,
                                                /*no_dist=*/false, std::make_shared<ProbedSavePlanner>(saving));
      EXPECT_EQ(metadata.state_dict_metadata.size(), 3u);
      EXPECT_EQ(has_call(saving, "writer.finish"), ranks.rank() == coordinator);
      EXPECT_EQ(has_call(saving, "planner.create_global_plan"), ranks.rank() == coordinator);

      CallProbe loading;
      ProbedReader reader("c", {.file_system = files}, loading);
      StateDict state = blank_of(ranks);
      const void* address = state.at("w").as_dtensor().local().const_data_ptr();
      load_state_dict(state, reader, ranks.unconnected_group(), coordinator, /*no_dist=*/false,
                      std::make_shared<ProbedLoadPlanner>(loading));
      EXPECT_EQ(first_difference(state, state_of(ranks)), "");
      EXPECT_EQ(state.at("w").as_dtensor().local().const_data_ptr(), address);
      EXPECT_EQ(has_call(loading, "reader.read_metadata"), ranks.rank() == coordinator);
      EXPECT_EQ(has_call(loading, "planner.create_global_plan"), ranks.rank() == coordinator);
    });
    StateDict whole = {{"w", pattern({7, 2})}, {"m", Dict{{"t", pattern({3})}, {"n", 0}}}};
    Place{files}.load(whole, "c");
    EXPECT_EQ(first_difference(whole, Dict{{"w", counted({7, 2})}, {"m", Dict{{"t", counted({3})}, {"n", 4}}}}), "");
  }
}

TEST(EntryPoints, B18_C4_11_ACoordinatorThatFailsFailsAll) {
  const auto files = std::make_shared<FaultInjectingFileSystem>(make_memory_file_system());
  ErrorsByRank saving(3);
  ErrorsByRank loading(3);
  run_ranks(3, [&](RankContext& ranks) {
    CallProbe probe(ranks.rank(), {"writer.finish", 2, When::kBefore, Throws::kError});
    ProbedWriter writer("c", {.file_system = files}, probe);
    saving.run(ranks.rank(), [&] { save_state_dict(state_of(ranks), writer, ranks.unconnected_group(), 2); });
    FileSystemReader reader("c", {.file_system = files});
    loading.run(ranks.rank(), [&] {
      StateDict state = blank_of(ranks);
      load_state_dict(state, reader, ranks.unconnected_group(), 2);
    });
  });
  saving.expect({2}, {"probed: writer.finish"});
  EXPECT_EQ(saving.error().step(), "commit");
  loading.expect({2}, {"incomplete checkpoint"});
  EXPECT_EQ(loading.kind(), ErrorKind::kNotFound);
  EXPECT_FALSE(is_complete("c", files));
}

TEST(EntryPoints, B18_C4_11_WriterAndReaderStartAnew) {
  const auto files = std::make_shared<FaultInjectingFileSystem>(make_memory_file_system());
  FileSystemWriter writer("c", {.file_system = files});
  FileSystemReader reader("c", {.file_system = files});
  for (int round = 0; round < 3; ++round) {
    const StateDict saved = {{"t", counted({5}) + round}, {"k" + std::to_string(round), round}};
    files->fail({.op = FileOp::kAppend, .path_contains = "distcp", .is_lasting = true});
    EXPECT_NE(error_of([&] { save_state_dict(saved, writer); }), "");
    files->clear_faults();
    const Metadata metadata = save_state_dict(saved, writer);
    EXPECT_EQ(metadata.state_dict_metadata.size(), 2u) << "nothing of the rounds before";

    StateDict other = {{"zzz", 1}};
    EXPECT_NE(error_of([&] { load_state_dict(other, reader); }).find("'zzz'"), std::string::npos);
    StateDict state = {{"t", pattern({5})}, {"k" + std::to_string(round), -1}};
    EXPECT_EQ(load_state_dict(state, reader).unexpected, std::vector<std::string>{});
    EXPECT_EQ(first_difference(state, saved), "");
  }
}

TEST(EntryPoints, B17_B18_C4_11_NoDistLeavesTheGroupOut) {
  const auto files = make_memory_file_system();
  run_ranks(3, [&](RankContext& ranks) {
    // The ranks would wait for each other if they took the group.
    if (ranks.rank() == 1) return;
    const std::string path = "of" + std::to_string(ranks.rank());
    const StateDict saved = {{"t", counted({4}) + ranks.rank()}, {"n", ranks.rank()}};
    FileSystemWriter writer(path, {.file_system = files});
    save_state_dict(saved, writer, ranks.unconnected_group(), 1, /*no_dist=*/true);
    EXPECT_TRUE(is_complete(path, files));
    StateDict state = {{"t", pattern({4})}, {"n", -1}};
    FileSystemReader reader(path, {.file_system = files});
    load_state_dict(state, reader, ranks.unconnected_group(), 1, /*no_dist=*/true);
    EXPECT_EQ(first_difference(state, saved), "");
  });
}

TEST(EntryPoints, B18_C4_11_ACoordinatorThatIsNone) {
  FileSystemWriter writer("c", {.file_system = make_memory_file_system()});
  FileSystemReader reader("c", {.file_system = make_memory_file_system()});
  StateDict state;
  expect_error(ErrorKind::kInvalidArgument, "coordinator rank 1, but no process group",
               [&] { save_state_dict(state, writer, {}, 1); });
  expect_error(ErrorKind::kInvalidArgument, "coordinator rank -1, but no process group",
               [&] { load_state_dict(state, reader, {}, -1); });
  run_ranks(2, [&](RankContext& ranks) {
    for (const int coordinator : {2, -1}) {
      expect_error(ErrorKind::kInvalidArgument, std::to_string(coordinator),
                   [&] { save_state_dict(state, writer, ranks.unconnected_group(), coordinator); });
    }
  });
}

/// Notes whether it was asked for anything.
class Untouched final : public Stateful {
 public:
  Dict state_dict() override {
    was_asked = true;
    return {{"n", 1}};
  }
  void load_state_dict(const Dict&) override { was_asked = true; }

  bool was_asked = false;
};

TEST(EntryPoints, B18_C4_11_AStatefulIsNotConverted) {
  const auto files = make_memory_file_system();
  ErrorsByRank saving(2);
  ErrorsByRank loading(2);
  run_ranks(2, [&](RankContext& ranks) {
    const auto app = std::make_shared<Untouched>();
    StateDict state = state_of(ranks);
    if (ranks.rank() == 1) state["app"] = app;
    if (ranks.rank() == 1) state["second"] = app;
    FileSystemWriter writer("c", {.file_system = files});
    FileSystemReader reader("c", {.file_system = files});
    const auto group = ranks.unconnected_group();
    saving.run(ranks.rank(), [&] { save_state_dict(state, writer, group); });
    save_state_dict(state_of(ranks), writer, group);
    StateDict destination = blank_of(ranks);
    if (ranks.rank() == 1) destination["app"] = app;
    if (ranks.rank() == 1) destination["second"] = app;
    loading.run(ranks.rank(), [&] { load_state_dict(destination, reader, group); });
    EXPECT_FALSE(app->was_asked);
    EXPECT_TRUE(bit_equal(destination.at("w"), blank_of(ranks).at("w")));
  });
  for (const ErrorsByRank* errors : {&saving, &loading}) {
    errors->expect({1}, {"key 'app': a Stateful", "key 'second': a Stateful", "2 faults"});
    EXPECT_EQ(errors->kind(), ErrorKind::kType);
    EXPECT_EQ(errors->error().step(), "plan");
  }
  StateDict nested = {{"l", List{Value(std::make_shared<Untouched>())}}};
  FileSystemWriter writer("d", {.file_system = files});
  EXPECT_NE(error_of([&] { save_state_dict(nested, writer); }).find("['l'][0]"), std::string::npos);
}

TEST(EntryPoints, B4_RanksThatSeeOtherFilesFailAlike) {
  for (const int blind : {0, 1, 2}) {
    const auto files = make_memory_file_system();
    ErrorsByRank errors(3);
    run_ranks(3, [&](RankContext& ranks) {
      Place place = place_of(ranks, files);
      place.save(state_of(ranks), "c");
      place.communicator->all_gather({});
      if (ranks.rank() == blind) place.files = make_memory_file_system();
      StateDict state = blank_of(ranks);
      errors.run(ranks.rank(), [&] { place.load(state, "c"); });
      EXPECT_EQ(first_difference(state, blank_of(ranks)), "");
      place.communicator->all_gather({});
    });
    errors.expect({blind});
    EXPECT_EQ(errors.error().step(), blind == 0 ? "metadata" : "check");
  }
}

TEST(EntryPoints, B14_RanksMayAskForOtherKeys) {
  const auto files = make_memory_file_system();
  const StateDict saved = {{"a", counted({2})}, {"b", counted({3}) + 5}, {"c", 7}, {"d", counted({1}) - 1}};
  Place{files}.save(saved, "c");
  run_ranks(3, [&](RankContext& ranks) {
    const std::vector<StateDict> blanks = {
        {{"b", pattern({3})}, {"a", pattern({2})}}, {{"c", 0}, {"b", pattern({3})}, {"d", pattern({1})}}, {}};
    StateDict state = blanks[static_cast<std::size_t>(ranks.rank())];
    place_of(ranks, files).load(state, "c");
    for (const auto& [key, value] : state) EXPECT_TRUE(bit_equal(value, saved.at(key))) << dcp::to_string(key);
  });
}

TEST(EntryPoints, B16_C4_10_AnIdThatIsNone) {
  StateDict state = {{"n", 1}};
  for (const std::string id : {"", "s3://bucket/c"}) {
    const ErrorKind kind = id.empty() ? ErrorKind::kInvalidArgument : ErrorKind::kUnsupported;
    expect_error(kind, id, [&] { save(state, id); });
    expect_error(kind, id, [&] { load(state, id); });
    expect_error(kind, id, [&] { load_keys(id); });
  }
  EXPECT_EQ(state.at("n").as_int(), 1);
}

TEST(EntryPoints, B17_C4_10_NoGroupAndAGroupOfOneAreOneProcess) {
  const auto files = make_memory_file_system();
  run_ranks(1, [&](RankContext& ranks) {
    for (const bool has_group : {false, true}) {
      SaveOptions save_options;
      LoadOptions load_options;
      if (has_group) save_options.process_group = load_options.process_group = ranks.unconnected_group();
      const std::string path = has_group ? "one" : "none";
      Place{files}.save_with(state_of(ranks), path, save_options);
      StateDict state = blank_of(ranks);
      Place{files}.load(state, path, load_options);
      EXPECT_EQ(first_difference(state, state_of(ranks)), "");
    }
    EXPECT_EQ(names_in(*files, "one").size(), names_in(*files, "none").size());
  });
}

/// Cannot say where a tensor goes, from a certain call on.
class LosingPlanner final : public DefaultLoadPlanner {
 public:
  at::Tensor resolve_tensor(const ReadItem& item) override {
    DCP_CHECK(!loses, kUnsupported, "lost ", item.dest_index.fqn);
    return DefaultLoadPlanner::resolve_tensor(item);
  }
  bool loses = false;
};

/// Has the planner lose its tensors when all checks have passed, which is right before the copies are made.
class LosingReader final : public FileSystemReader {
 public:
  LosingReader(std::string path, FileSystemReaderOptions options, LosingPlanner& planner, bool loses)
      : FileSystemReader(std::move(path), std::move(options)), planner_(planner), loses_(loses) {}
  void check(const LoadPlan& plan, LoadPlanner& planner) override {
    FileSystemReader::check(plan, planner);
    planner_.loses = loses_;
  }

 private:
  LosingPlanner& planner_;
  bool loses_;
};

TEST(EntryPoints, B3_B12_ACopyThatCannotBeMadeLeavesAllAsItIs) {
  const auto files = make_memory_file_system();
  ErrorsByRank errors(2);
  run_ranks(2, [&](RankContext& ranks) {
    const Place place = place_of(ranks, files);
    place.save(state_of(ranks), "c");
    const auto planner = std::make_shared<LosingPlanner>();
    LosingReader reader("c", {.file_system = files}, *planner, ranks.rank() == 1);
    LoadOptions options;
    options.communicator = place.communicator;
    options.rollback = true;
    options.planner = planner;
    StateDict state = blank_of(ranks);
    errors.run(ranks.rank(), [&] { load(state, reader, options); });
    EXPECT_EQ(first_difference(state, blank_of(ranks)), "");
  });
  errors.expect({1}, {"lost "});
  EXPECT_EQ(errors.error().step(), "copy");
}

}  // namespace
}  // namespace dcp::test

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "test/checkpoint/call_probe.h"
#include "test/checkpoint/checkpoint_support.h"
#include "torch_dcp/plan/plan_cache.h"
#include "torch_dcp/transform/clone.h"

// Each call of each planner, writer and reader fails once on each rank, in each way, before and after its work. The
// calls are not listed here but noted in a save and a load that succeed.

namespace dcp::test {
namespace {

struct Setting {
  int world;
  int coordinator = 0;
  bool has_plan_cache = false;
  /// Of what is thrown only the library's errors: the rest of the way is that of another setting.
  bool throws_errors_alone = false;
};

std::vector<Setting> save_settings() {
  return {{1},
          {3},
          {.world = 3, .coordinator = 2, .throws_errors_alone = true},
          {.world = 3, .has_plan_cache = true, .throws_errors_alone = true}};
}

std::vector<Setting> load_settings() { return {{1}, {3}, {.world = 3, .coordinator = 2, .throws_errors_alone = true}}; }

Place place_in(const Setting& setting, const RankContext& ranks, const std::shared_ptr<FileSystem>& files) {
  if (setting.world == 1) return {files};  // no group at all
  CommunicatorOptions options;
  options.coordinator = setting.coordinator;
  return place_of(ranks, files, options);
}

/// One for each rank, or none.
std::shared_ptr<SavePlanCache> cache_in(const Setting& setting) {
  return setting.has_plan_cache ? std::make_shared<SavePlanCache>() : nullptr;
}

StateDict state_of(const RankContext& ranks, std::int64_t version) {
  return {{"w", split(counted({7, 2}) + version, ranks)},
          {"m", Dict{{"whole", counted({3}) + version}, {"alike", counted({2}) - version}}},
          {"n", version},
          {"text", std::to_string(version)}};
}

StateDict blank_of(const RankContext& ranks) {
  return {{"w", split_pattern({7, 2}, ranks)},
          {"m", Dict{{"whole", pattern({3})}, {"alike", pattern({2})}}},
          {"n", -1},
          {"text", "nothing"}};
}

void save_probed(const Place& place, const StateDict& state, CallProbe& probe,
                 const std::shared_ptr<SavePlanCache>& cache) {
  ProbedWriter writer("c", {.file_system = place.files}, probe);
  SaveOptions options;
  options.communicator = place.communicator;
  options.planner = std::make_shared<ProbedSavePlanner>(probe);
  options.plan_cache = cache;
  dcp::save(state, writer, options);
}

/// A save in which nothing fails.
void save_soundly(const Place& place, const StateDict& state, const std::shared_ptr<SavePlanCache>& cache) {
  CallProbe probe;
  save_probed(place, state, probe, cache);
}

void load_probed(const Place& place, StateDict& state, CallProbe& probe, bool rollback) {
  ProbedReader reader("c", {.file_system = place.files}, probe);
  LoadOptions options;
  options.communicator = place.communicator;
  options.rollback = rollback;
  options.planner = std::make_shared<ProbedLoadPlanner>(probe);
  dcp::load(state, reader, options);
}

void wait_for_all(const Place& place) {
  if (place.communicator) place.communicator->all_gather({});
}

struct Calls {
  std::vector<std::vector<std::string>> of_save;  ///< by rank
  std::vector<std::vector<std::string>> of_load;
};

Calls note_calls(const Setting& setting) {
  const auto files = make_memory_file_system();
  Calls calls;
  calls.of_save.resize(static_cast<std::size_t>(setting.world));
  calls.of_load.resize(static_cast<std::size_t>(setting.world));
  run_ranks(setting.world, [&](RankContext& ranks) {
    const Place place = place_in(setting, ranks, files);
    CallProbe of_save;
    save_probed(place, state_of(ranks, 1), of_save, cache_in(setting));
    calls.of_save[static_cast<std::size_t>(ranks.rank())] = of_save.calls();
    CallProbe of_load;
    StateDict state = blank_of(ranks);
    load_probed(place, state, of_load, false);
    calls.of_load[static_cast<std::size_t>(ranks.rank())] = of_load.calls();
    EXPECT_EQ(first_difference(state, state_of(ranks, 1)), "");
  });
  return calls;
}

/// Cells for each call on each rank.
std::vector<CallFault> cells_of(const Setting& setting, const std::vector<std::vector<std::string>>& calls) {
  const std::set<std::string> cannot_throw = {"writer.committed", "writer.abort"};
  std::vector<CallFault> cells;
  for (std::size_t rank = 0; rank < calls.size(); ++rank) {
    for (const std::string& call : std::set<std::string>(calls[rank].begin(), calls[rank].end())) {
      if (cannot_throw.count(call) != 0) continue;
      for (const When when : {When::kBefore, When::kAfter}) {
        for (const Throws throws : {Throws::kError, Throws::kStandard, Throws::kOther}) {
          if (setting.throws_errors_alone && throws != Throws::kError) continue;
          cells.push_back({call, static_cast<int>(rank), when, throws});
        }
      }
    }
  }
  return cells;
}

/// Expects one error on all ranks, that of the cell, and nothing of another rank.
void expect_error_of(const CallFault& cell, const ErrorsByRank& errors) {
  SCOPED_TRACE(to_string(cell));
  errors.expect({cell.rank}, {cell.throws == Throws::kOther ? "no std::exception" : "probed: " + cell.call});
  if (::testing::Test::HasFatalFailure()) return;
  if (cell.throws == Throws::kError) {
    EXPECT_EQ(errors.kind(), ErrorKind::kUnsupported);
  }
}

/// What a directory has if nothing but one complete checkpoint is in it.
std::vector<std::string> names_of_checkpoint(const Place& place) {
  const Metadata metadata = place.metadata("c");
  std::set<std::string> names = {".metadata", ".torch_dcp-" + *metadata.storage_meta->save_id + ".json"};
  for (const auto& [index, info] : metadata.storage_data) names.insert(info.relative_path);
  return {names.begin(), names.end()};
}

TEST(CallFaults, TheOrderOfCallsIsTheDocumentedOne) {
  for (const Setting& setting : save_settings()) {
    const Calls calls = note_calls(setting);
    for (int rank = 0; rank < setting.world; ++rank) {
      SCOPED_TRACE("rank " + std::to_string(rank) + " of " + std::to_string(setting.world));
      const bool coordinates = rank == setting.coordinator;
      std::vector<std::string> save = {"writer.set_up", "writer.storage_meta", "planner.set_up",
                                       "planner.create_local_plan", "writer.prepare_local_plan"};
      if (setting.has_plan_cache) save.push_back("planner.fingerprint");
      if (coordinates) save.insert(save.end(), {"planner.create_global_plan", "writer.prepare_global_plan"});
      save.insert(save.end(), {"planner.finish_plan", "writer.write_data"});
      if (coordinates) save.push_back("writer.finish");
      save.push_back("writer.committed");
      std::vector<std::string> found = calls.of_save[static_cast<std::size_t>(rank)];
      std::erase_if(found, [](const std::string& call) { return call.starts_with("planner.resolve_"); });
      EXPECT_EQ(found, save);

      std::vector<std::string> load;
      if (coordinates) load.push_back("reader.read_metadata");
      load.insert(load.end(),
                  {"planner.set_up", "reader.set_up", "planner.create_local_plan", "reader.prepare_local_plan"});
      if (coordinates) load.insert(load.end(), {"planner.create_global_plan", "reader.prepare_global_plan"});
      load.insert(load.end(), {"planner.finish_plan", "reader.check", "planner.load_object", "reader.read_data"});
      load.push_back("planner.commit_objects");
      found = calls.of_load[static_cast<std::size_t>(rank)];
      std::erase_if(found, [](const std::string& call) {
        return call == "planner.resolve_tensor" || call == "planner.commit_tensor";
      });
      EXPECT_EQ(found, load);
    }
  }
}

// A failure after the commit leaves the new checkpoint, and what it replaced for the next save to clear away.
TEST(CallFaults, ASaveThatFailsAnywhereLeavesTheOldCheckpointOnEveryRank) {
  std::size_t cell_count = 0;
  for (const Setting& setting : save_settings()) {
    const auto files = make_memory_file_system();
    const std::vector<CallFault> cells = cells_of(setting, note_calls(setting).of_save);
    cell_count += cells.size();
    std::vector<ErrorsByRank> errors(cells.size(), ErrorsByRank(setting.world));
    run_ranks(setting.world,
              [&](RankContext& ranks) {
                const Place place = place_in(setting, ranks, files);
                const std::shared_ptr<SavePlanCache> cache = cache_in(setting);
                std::map<std::string, Bytes> before;
                for (std::size_t i = 0; i < cells.size(); ++i) {
                  SCOPED_TRACE(to_string(cells[i]) + ", seen by rank " + std::to_string(ranks.rank()));
                  ranks.note(to_string(cells[i]));
                  const auto version = static_cast<std::int64_t>(2 * i);
                  // The old checkpoint; and the first save after the failure before.
                  save_soundly(place, state_of(ranks, version), cache);
                  wait_for_all(place);
                  if (ranks.rank() == 0) {
                    before = contents_of(*files, "c");
                    EXPECT_EQ(names_in(*files, "c"), names_of_checkpoint(place))
                        << "left by the failure before this one";
                  }
                  wait_for_all(place);

                  StateDict live = state_of(ranks, version + 1);
                  // A plan that is in the cache is not made anew.
                  if (setting.has_plan_cache && cells[i].call == "planner.create_global_plan") live["new"] = 1;
                  const StateDict unchanged = clone(live);
                  CallProbe probe(ranks.rank(), cells[i]);
                  errors[i].run(ranks.rank(), [&] { save_probed(place, live, probe, cache); });
                  EXPECT_EQ(probe.has_thrown(), ranks.rank() == cells[i].rank);
                  EXPECT_EQ(first_difference(live, unchanged), "") << "the live state";
                  wait_for_all(place);
                  const bool is_committed = cells[i].call == "writer.finish" && cells[i].when == When::kAfter;
                  if (ranks.rank() == 0 && !is_committed) {
                    EXPECT_EQ(contents_of(*files, "c"), before) << "the files";
                  }
                  StateDict loaded = blank_of(ranks);
                  place.load(loaded, "c");
                  EXPECT_EQ(first_difference(loaded, state_of(ranks, is_committed ? version + 1 : version)), "");
                  wait_for_all(place);
                }
                save_soundly(place, state_of(ranks, -1), cache);
                wait_for_all(place);
                EXPECT_EQ(names_in(*files, "c"), names_of_checkpoint(place));
              },
              {.deadline = std::chrono::seconds(120)});
    for (std::size_t i = 0; i < cells.size(); ++i) expect_error_of(cells[i], errors[i]);
  }
  std::cout << cell_count << " cells\n";
  EXPECT_GT(cell_count, 250u);
}

/// Steps in which a load has changed nothing yet.
bool is_before_reading(const std::string& step) {
  return std::set<std::string>{"metadata", "plan", "check", "copy"}.count(step) != 0;
}

TEST(CallFaults, ALoadThatFailsAnywhereFailsAlikeAndChangesNothingThatItDoesNotTell) {
  std::size_t cell_count = 0;
  for (const Setting& setting : load_settings()) {
    const auto files = make_memory_file_system();
    const std::vector<CallFault> cells = cells_of(setting, note_calls(setting).of_load);
    for (const bool rollback : {false, true}) {
      cell_count += cells.size();
      std::vector<ErrorsByRank> errors(cells.size(), ErrorsByRank(setting.world));
      run_ranks(setting.world,
                [&](RankContext& ranks) {
                  const Place place = place_in(setting, ranks, files);
                  place.save(state_of(ranks, 5), "c");
                  wait_for_all(place);
                  const std::map<std::string, Bytes> before = contents_of(*files, "c");
                  for (std::size_t i = 0; i < cells.size(); ++i) {
                    SCOPED_TRACE(to_string(cells[i]) + ", seen by rank " + std::to_string(ranks.rank()));
                    ranks.note(to_string(cells[i]));
                    StateDict state = blank_of(ranks);
                    const void* address = state.at("w").as_dtensor().local().const_data_ptr();
                    CallProbe probe(ranks.rank(), cells[i]);
                    std::string step;
                    std::string text;
                    errors[i].run(ranks.rank(), [&] {
                      try {
                        load_probed(place, state, probe, rollback);
                      } catch (const CheckpointError& error) {
                        step = error.step();
                        text = error.what_without_backtrace();
                        throw;
                      }
                    });
                    EXPECT_EQ(probe.has_thrown(), ranks.rank() == cells[i].rank);
                    if (rollback || is_before_reading(step)) {
                      EXPECT_EQ(first_difference(state, blank_of(ranks)), "") << "the live state, after " << step;
                    } else {
                      // The storage reader lists what it has begun; not if it is the call itself that fails.
                      const bool has_list = step == "read" && cells[i].call != "reader.read_data";
                      const std::string said = has_list         ? "destinations that have been changed already: "
                                               : step == "read" ? "may have been changed"
                                                                : "all tensors have been loaded";
                      EXPECT_NE(text.find(said), std::string::npos) << step << ": " << text;
                    }
                    // Right after it, in the same dict, the same tensors.
                    place.load(state, "c");
                    EXPECT_EQ(first_difference(state, state_of(ranks, 5)), "");
                    EXPECT_EQ(state.at("w").as_dtensor().local().const_data_ptr(), address);
                  }
                  wait_for_all(place);
                  EXPECT_EQ(contents_of(*files, "c"), before) << "a load writes nothing";
                  place.save(state_of(ranks, 6), "c");
                },
                {.deadline = std::chrono::seconds(120)});
      for (std::size_t i = 0; i < cells.size(); ++i) expect_error_of(cells[i], errors[i]);
    }
  }
  std::cout << cell_count << " cells\n";
  EXPECT_GT(cell_count, 500u);
}

}  // namespace
}  // namespace dcp::test

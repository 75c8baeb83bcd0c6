#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "test/checkpoint/checkpoint_support.h"
#include "test/support/crashing_file_system.h"
#include "test/support/fault_injecting_file_system.h"
#include "torch_dcp/storage/filesystem_writer.h"

// Saves that stop at every place in turn, on a file system that loses what was not synced; and saves and
// loads in which every call fails in turn.

namespace dcp::test {
namespace {

constexpr int kSeeds = 6;

/// The two generations: sharded and plain tensors and an object, different in every element.
StateDict whole_state(int generation) {
  return {{"w", counted({6}) + 100 * generation}, {"v", counted({3, 2}) - 50 * generation}, {"n", generation}};
}

StateDict state_of(const RankContext& ranks, int generation) {
  const StateDict whole = whole_state(generation);
  return {{"w", split(whole.at("w").as_tensor(), ranks)}, {"v", whole.at("v")}, {"n", whole.at("n")}};
}

/// Which generation a fresh reader finds: exactly one, or none at all.
std::optional<int> generation_in(const std::shared_ptr<FileSystem>& files, const std::string& what) {
  StateDict found;
  try {
    found = Place{files}.rebuild("c");
  } catch (const CheckpointError& error) {
    EXPECT_EQ(error.failures().at(0).kind, ErrorKind::kNotFound) << what << ": " << error.what_without_backtrace();
    EXPECT_NE(std::string(error.what_without_backtrace()).find("incomplete checkpoint"), std::string::npos) << what;
    EXPECT_FALSE(is_complete("c", files)) << what;
    return std::nullopt;
  }
  EXPECT_TRUE(is_complete("c", files)) << what;
  const auto generation = static_cast<int>(found.at("n").as_int());
  EXPECT_EQ(first_difference(found, whole_state(generation)), "") << what;
  return generation;
}

/// Names that belong to a checkpoint: its metadata, its side file and its data files.
std::set<std::string> names_of(const Metadata& metadata) {
  std::set<std::string> names = {".metadata", ".torch_dcp-" + *metadata.storage_meta->save_id + ".json"};
  for (const auto& [index, info] : metadata.storage_data) names.insert(info.relative_path);
  return names;
}

void expect_no_other_files(FileSystem& files, const Metadata& metadata, const std::string& what) {
  const std::vector<std::string> names = names_in(files, "c");
  EXPECT_EQ(std::set<std::string>(names.begin(), names.end()), names_of(metadata)) << what;
}

/// What is found after a power cut, in every way that it can be found.
void for_each_outcome(const CrashingFileSystem& medium,
                      const std::function<void(const std::shared_ptr<CrashingFileSystem>&, const std::string&)>& use) {
  use(medium.crash(CrashPolicy::kLoseUnsynced), "unsynced lost");
  use(medium.crash(CrashPolicy::kKeepAll), "all kept");
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    use(medium.crash(CrashPolicy::kTornWrites, seed), c10::str("torn, seed ", seed));
  }
}

/// One world whose saves are stopped after 0, 1, 2, ... changes.
class CrashRun {
 public:
  CrashRun(int world, OverwriteForm form, bool has_old) : world_(world), form_(form), has_old_(has_old) {}

  void run() {
    run_ranks(world_, [&](RankContext& ranks) {
      const auto communicator = std::make_shared<Communicator>(ranks.communicator());
      for (std::uint64_t stop = 0; !is_over_; ++stop) {
        ranks.note("stop after " + std::to_string(stop));
        if (ranks.rank() == 0) prepare();
        communicator->all_gather({});
        const Place place{files_, communicator};
        if (has_old_) place.save(state_of(ranks, 1), "c");
        communicator->all_gather({});
        if (ranks.rank() == 0) files_->stop_after_changes(stop);
        communicator->all_gather({});
        bool is_saved = false;
        try {
          place.save(state_of(ranks, 2), "c", {.overwrite_form = form_});
          is_saved = true;
        } catch (const CheckpointError&) {
        }
        communicator->all_gather({});
        if (ranks.rank() == 0) look(stop, is_saved);
        communicator->all_gather({});
      }
    });
    EXPECT_GT(stops_, 10u);
    // Every outcome that may be was met.
    std::set<std::optional<int>> wanted = {2};
    if (has_old_) wanted.insert(1);
    if (!has_old_ || form_ == OverwriteForm::kRevokeFirst) wanted.insert(std::nullopt);
    EXPECT_EQ(found_, wanted);
  }

 private:
  void prepare() {
    medium_ = make_crashing_file_system();
    files_ = std::make_shared<FaultInjectingFileSystem>(medium_);
  }

  void look(std::uint64_t stop, bool is_saved) {
    is_over_ = !files_->is_stopped();
    EXPECT_TRUE(is_saved || !is_over_);
    stops_ = stop;
    for_each_outcome(*medium_, [&](const std::shared_ptr<CrashingFileSystem>& files, const std::string& how) {
      const std::string what = c10::str("world ", world_, ", stop after ", stop, " changes, ", how);
      const std::optional<int> generation = generation_in(files, what);
      found_.insert(generation);
      if (is_saved) {
        EXPECT_EQ(generation, 2) << what;
      }
      if (has_old_ && form_ == OverwriteForm::kReplace) {
        EXPECT_TRUE(generation) << what;
      }
      if (!has_old_) {
        EXPECT_NE(generation, 1) << what;
      }
      const Metadata metadata = Place{files}.save(whole_state(3), "c", {.overwrite_form = form_});
      EXPECT_EQ(generation_in(files, what), 3) << what;
      expect_no_other_files(*files, metadata, what);
    });
  }

  int world_;
  OverwriteForm form_;
  bool has_old_;
  std::shared_ptr<CrashingFileSystem> medium_;
  std::shared_ptr<FaultInjectingFileSystem> files_;
  std::atomic<bool> is_over_ = false;
  std::uint64_t stops_ = 0;
  std::set<std::optional<int>> found_;
};

TEST(Crash, ReplaceLeavesExactlyTheOldOrTheNew) {
  CrashRun(1, OverwriteForm::kReplace, true).run();
  CrashRun(2, OverwriteForm::kReplace, true).run();
}

TEST(Crash, RevokeFirstLeavesTheOldTheNewOrNothing) {
  CrashRun(1, OverwriteForm::kRevokeFirst, true).run();
  CrashRun(2, OverwriteForm::kRevokeFirst, true).run();
}

TEST(Crash, AFirstSaveLeavesTheNewOrNothing) {
  CrashRun(1, OverwriteForm::kReplace, false).run();
  CrashRun(2, OverwriteForm::kReplace, false).run();
}

// Its metadata, data and side file, which has the integer keys.
TEST(Crash, ARankThatSavesAloneLeavesExactlyItsOldPartOrItsNew) {
  const auto typed_state = [](int generation) {
    StateDict state = whole_state(generation);
    state["table"] = Dict{{Key(std::int64_t{generation}), counted({2}) + generation}};
    return state;
  };
  SaveOptions alone;
  alone.use_collectives = false;
  std::set<int> found_generations;
  bool is_over = false;
  for (std::uint64_t stop = 0; !is_over; ++stop) {
    const auto medium = make_crashing_file_system();
    const auto files = std::make_shared<FaultInjectingFileSystem>(medium);
    const Place place{files};
    place.save_with(typed_state(1), "c", alone);
    files->stop_after_changes(stop);
    try {
      place.save_with(typed_state(2), "c", alone);
    } catch (const CheckpointError&) {
    }
    is_over = !files->is_stopped();
    for_each_outcome(*medium, [&](const std::shared_ptr<CrashingFileSystem>& left, const std::string& how) {
      SCOPED_TRACE(c10::str("stop after ", stop, " changes, ", how));
      const StateDict found = Place{left}.rebuild("c");
      const auto generation = static_cast<int>(found.at("n").as_int());
      found_generations.insert(generation);
      EXPECT_EQ(first_difference(found, typed_state(generation)), "");
      const Metadata metadata = Place{left}.save_with(typed_state(3), "c", alone);
      EXPECT_EQ(first_difference(Place{left}.rebuild("c"), typed_state(3)), "");
      std::set<std::string> wanted = {"__0.metadata", "__0.torch_dcp-" + *metadata.storage_meta->save_id + ".json"};
      for (const auto& [index, info] : metadata.storage_data) wanted.insert(info.relative_path);
      const std::vector<std::string> names = names_in(*left, "c");
      EXPECT_EQ(std::set<std::string>(names.begin(), names.end()), wanted);
    });
  }
  EXPECT_EQ(found_generations, (std::set<int>{1, 2}));
}

/// A path, or the directory if the fault has hit it, and the cause.
void expect_names_the_fault(const CheckpointError& error, const FileEvent& refused, const std::string& what) {
  const std::string text = error.what_without_backtrace();
  EXPECT_NE(text.find("the disk broke"), std::string::npos) << what << ": " << text;
  EXPECT_NE(text.find(refused.path), std::string::npos) << what << ": " << text;
  for (const RankFailure& failure : error.failures()) EXPECT_EQ(failure.kind, ErrorKind::kIo) << what << ": " << text;
}

const std::vector<FileOp> kAllOps = {FileOp::kCreate, FileOp::kAppend, FileOp::kSync,
                                     FileOp::kClose,  FileOp::kOpen,   FileOp::kRead,
                                     FileOp::kStat,   FileOp::kList,   FileOp::kCreateDirectories,
                                     FileOp::kRemove, FileOp::kRename, FileOp::kSyncDirectory};

/// Two ranks in which the n-th operation of one kind fails, for n = 1, 2, ... until the call passes.
class FaultRun {
 public:
  void run_saves(RankContext& ranks) {
    const auto communicator = std::make_shared<Communicator>(ranks.communicator());
    for (const FileOp op : kAllOps) {
      bool is_over = false;
      for (std::uint64_t nth = 1; !is_over; ++nth) {
        prepare(ranks, *communicator, op, nth);
        const Place place{files_, communicator};
        try {
          place.save(state_of(ranks, 2), "c");
        } catch (const CheckpointError& error) {
          errors_[static_cast<std::size_t>(ranks.rank())] = error;
        }
        communicator->all_gather({});
        is_over = look_at_save(ranks, place, c10::str(file_op_name(op), " ", nth));
      }
    }
  }

  void run_loads(RankContext& ranks) {
    const auto communicator = std::make_shared<Communicator>(ranks.communicator());
    for (const FileOp op : kAllOps) {
      bool is_over = false;
      for (std::uint64_t nth = 1; !is_over; ++nth) {
        prepare(ranks, *communicator, op, nth);
        const Place place{files_, communicator};
        StateDict state = blank(ranks);
        try {
          place.load(state, "c");
        } catch (const CheckpointError& error) {
          errors_[static_cast<std::size_t>(ranks.rank())] = error;
        }
        communicator->all_gather({});
        const std::string what = c10::str("load, ", file_op_name(op), " ", nth);
        is_over = check_errors(what);
        const std::vector<FileEvent> trace = files_->trace();
        const auto was_refused = [](const FileEvent& event) { return event.was_refused; };
        EXPECT_EQ(is_over, std::none_of(trace.begin(), trace.end(), was_refused)) << what;
        if (is_over) {
          EXPECT_EQ(first_difference(state, state_of(ranks, 1)), "") << what;
        }
        communicator->all_gather({});
        if (ranks.rank() == 0) files_->clear_faults();
        communicator->all_gather({});
        StateDict retry = blank(ranks);
        place.load(retry, "c");
        EXPECT_EQ(first_difference(retry, state_of(ranks, 1)), "") << what;
      }
    }
  }

  int fault_count() const { return fault_count_; }

 private:
  static StateDict blank(const RankContext& ranks) {
    return {{"w", split_pattern({6}, ranks)}, {"v", pattern({3, 2})}, {"n", 0}};
  }

  void prepare(RankContext& ranks, Communicator& communicator, FileOp op, std::uint64_t nth) {
    ranks.note(c10::str(file_op_name(op), " ", nth));
    if (ranks.rank() == 0) {
      files_ = std::make_shared<FaultInjectingFileSystem>(make_memory_file_system());
      Place{files_}.save(whole_state(1), "c");
      files_->clear_trace();
      files_->fail({.op = op, .nth = nth, .message = "the disk broke"});
    }
    errors_[static_cast<std::size_t>(ranks.rank())].reset();
    communicator.all_gather({});
  }

  /// \returns Whether nothing failed.
  bool check_errors(const std::string& what) {
    EXPECT_EQ(errors_[0].has_value(), errors_[1].has_value()) << what;
    if (!errors_[0] || !errors_[1]) return true;
    EXPECT_EQ(errors_[0]->failures(), errors_[1]->failures()) << what;
    for (const FileEvent& event : files_->trace()) {
      if (event.was_refused) expect_names_the_fault(*errors_[0], event, what);
    }
    return false;
  }

  bool look_at_save(const RankContext& ranks, const Place& place, const std::string& what) {
    bool passed = check_errors(what);
    place.communicator->all_gather({});
    if (ranks.rank() == 0) {
      const std::vector<FileEvent> trace = files_->trace();
      const bool was_refused =
          std::any_of(trace.begin(), trace.end(), [](const FileEvent& event) { return event.was_refused; });
      fault_count_ += was_refused ? 1 : 0;
      files_->clear_faults();
      const std::optional<int> generation = generation_in(files_, what);
      EXPECT_TRUE(generation == 1 || generation == 2) << what;
      if (passed) {
        EXPECT_EQ(generation, 2) << what;
      }
      // A removal after the commit that fails is no failure of the save.
      was_refused_ = was_refused;
    }
    place.communicator->all_gather({});
    const Metadata metadata = place.save(state_of(ranks, 2), "c");
    if (ranks.rank() == 0) {
      EXPECT_EQ(generation_in(files_, what), 2) << what;
      expect_no_other_files(*files_, metadata, what);
    }
    place.communicator->all_gather({});
    return !was_refused_;
  }

  std::shared_ptr<FaultInjectingFileSystem> files_;
  std::optional<CheckpointError> errors_[2];
  bool was_refused_ = false;
  int fault_count_ = 0;
};

TEST(Faults, EveryCallOfASaveFailsInTurn) {
  FaultRun run;
  run_ranks(2, [&](RankContext& ranks) { run.run_saves(ranks); });
  EXPECT_GT(run.fault_count(), 25);
}

TEST(Faults, EveryCallOfALoadFailsInTurn) {
  FaultRun run;
  run_ranks(2, [&](RankContext& ranks) { run.run_loads(ranks); });
}

}  // namespace
}  // namespace dcp::test

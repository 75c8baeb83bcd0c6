// Saves of safetensors that stop, or in which one call fails, at every place in turn; and loads beside them.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "test/storage/safetensors_support.h"
#include "test/support/crashing_file_system.h"
#include "test/support/fault_injecting_file_system.h"

namespace dcp::test {
namespace {

constexpr const char* kMarkerPath = "c/model-save-unfinished.safetensors";

/// Which generation is found: exactly one, or none at all.
std::optional<int> generation_in(const std::shared_ptr<FileSystem>& files, const std::string& what,
                                 const std::string& path = "c") {
  StateDict found;
  try {
    found = Place{files}.rebuild(path);
  } catch (const CheckpointError& error) {
    EXPECT_EQ(error.failures().at(0).kind, ErrorKind::kNotFound) << what << ": " << error.what_without_backtrace();
    EXPECT_NE(std::string(error.what_without_backtrace()).find("incomplete checkpoint"), std::string::npos) << what;
    return std::nullopt;
  }
  const int generation = static_cast<int>(found.at("w").as_tensor().flatten()[0].item<float>()) / 100;
  EXPECT_EQ(difference_of(found, whole_state(generation)), "") << what;
  return generation;
}

/// A reader that takes every `*.safetensors` of the folder and knows no marker, as PyTorch's: it must fail, find
/// nothing, or find all files of the save that this library's reader finds.
void check_plain_readers(const std::shared_ptr<FileSystem>& files, const std::string& what) {
  std::set<std::string> ids;
  std::set<std::string> counts;
  std::size_t count = 0;
  if (files->file_type("c") != FileType::kDirectory) return;
  for (const std::string& name : files->list_directory("c")) {
    if (!name.ends_with(".safetensors")) continue;
    SafetensorsHeader header;
    try {
      header = header_of(*files, join_path("c", name));
    } catch (const Error&) {
      return;
    }
    ++count;
    ids.insert(*header.metadata.find("torch_dcp.save_id"));
    if (const std::string* told = header.metadata.find("torch_dcp.file_count")) counts.insert(*told);
  }
  if (count == 0) return;
  EXPECT_EQ(ids, std::set<std::string>{*Place{files}.metadata("c").storage_meta->save_id}) << what;
  EXPECT_EQ(counts, std::set<std::string>{std::to_string(count)}) << what;
}

/// Saves that stop after 0, 1, 2, ... changes, and what a power cut then leaves.
class SafetensorsCrashRun {
 public:
  SafetensorsCrashRun(int world, SafetensorsWriterOptions options, bool has_old)
      : world_(world), options_(std::move(options)), has_old_(has_old) {}

  void run() {
    const auto body = [&](RankContext& ranks) {
      const auto communicator = std::make_shared<Communicator>(ranks.communicator());
      for (std::uint64_t stop = 0; !is_over_; ++stop) {
        ranks.note("stop after " + std::to_string(stop));
        if (ranks.rank() == 0) {
          medium_ = make_crashing_file_system();
          files_ = std::make_shared<FaultInjectingFileSystem>(medium_);
        }
        communicator->all_gather({});
        const Place place{files_, communicator};
        if (has_old_) save_safetensors(place, state_of(ranks, 1), "c", options_);
        communicator->all_gather({});
        if (ranks.rank() == 0) files_->stop_after_changes(stop);
        communicator->all_gather({});
        bool is_saved = false;
        try {
          save_safetensors(place, state_of(ranks, 2), "c", options_);
          is_saved = true;
        } catch (const CheckpointError&) {
        }
        communicator->all_gather({});
        if (ranks.rank() == 0) look(stop, is_saved);
        communicator->all_gather({});
      }
    };
    run_ranks(world_, body, {.deadline = std::chrono::minutes(3)});
    EXPECT_GT(stops_, 10u);
    const std::optional<int> before = has_old_ ? std::optional(1) : std::nullopt;
    EXPECT_EQ(found_, (std::set<std::optional<int>>{before, 2}));
  }

 private:
  void look(std::uint64_t stop, bool is_saved) {
    is_over_ = !files_->is_stopped();
    EXPECT_TRUE(is_saved || !is_over_);
    stops_ = stop;
    look_at(medium_->crash(CrashPolicy::kLoseUnsynced), c10::str("stop ", stop, ", unsynced lost"), is_saved);
    look_at(medium_->crash(CrashPolicy::kKeepAll), c10::str("stop ", stop, ", all kept"), is_saved);
    const std::uint64_t seeds = options_.enable_consolidation ? 2 : 6;
    for (std::uint64_t seed = 0; seed < seeds; ++seed) {
      look_at(medium_->crash(CrashPolicy::kTornWrites, seed), c10::str("stop ", stop, ", torn ", seed), is_saved);
    }
  }

  void look_at(const std::shared_ptr<FileSystem>& files, const std::string& what, bool is_saved) {
    const std::optional<int> generation = generation_in(files, what);
    found_.insert(generation);
    if (is_saved) {
      EXPECT_EQ(generation, 2) << what;
    }
    if (options_.enable_consolidation) look_at_shards(files, what, generation);
    check_plain_readers(files, what);
    // The next save clears all of it away.
    save_safetensors({files}, whole_state(2), "c", {.save_distributed = options_.save_distributed});
    EXPECT_EQ(generation_in(files, what), 2) << what;
    EXPECT_EQ(names_in(*files, "c").size(), options_.save_distributed ? 1u : 2u) << what;
  }

  /// The shards change first, and by themselves.
  void look_at_shards(const std::shared_ptr<FileSystem>& files, const std::string& what, std::optional<int> whole) {
    const std::optional<int> shards = generation_in(files, what, "c/sharded");
    EXPECT_TRUE(shards == whole || shards == 2) << what;
    if (shards != whole) has_shards_first_ = true;
  }

  int world_;
  SafetensorsWriterOptions options_;
  bool has_old_;
  std::shared_ptr<CrashingFileSystem> medium_;
  std::shared_ptr<FaultInjectingFileSystem> files_;
  std::atomic<bool> is_over_ = false;
  std::uint64_t stops_ = 0;
  std::set<std::optional<int>> found_;

 public:
  bool has_shards_first_ = false;
};

TEST(SafetensorsCrash, WholeFilesLeaveTheOldOrTheNew) {
  SafetensorsCrashRun(1, {.fqn_to_index_mapping = kMapping}, true).run();
  SafetensorsCrashRun(1, {.fqn_to_index_mapping = kMapping}, false).run();
}

TEST(SafetensorsCrash, ShardsLeaveTheOldOrTheNew) {
  SafetensorsCrashRun(2, {.save_distributed = true}, true).run();
  SafetensorsCrashRun(2, {.save_distributed = true}, false).run();
}

TEST(SafetensorsCrash, ConsolidationLeavesTheOldOrTheNewInEachFolder) {
  SafetensorsCrashRun run(2, {.fqn_to_index_mapping = kMapping, .save_distributed = true, .enable_consolidation = true},
                          true);
  run.run();
  EXPECT_TRUE(run.has_shards_first_);
}

/// Also when a save stops whose folder another one has left with its marker.
TEST(SafetensorsCrash, ASaveOverAnInterruptedCommitLeavesOneOfTheTwo) {
  const SafetensorsWriterOptions options{.fqn_to_index_mapping = kMapping};
  const auto save_stopping = [&](const std::shared_ptr<CrashingFileSystem>& medium, int generation,
                                 std::uint64_t stop) {
    const auto files = std::make_shared<FaultInjectingFileSystem>(medium);
    files->stop_after_changes(stop);
    error_of([&] { save_safetensors({files}, whole_state(generation), "c", options); });
    return files->is_stopped();
  };
  int interrupted = 0;
  std::set<std::optional<int>> found;
  for (std::uint64_t stop = 0;; ++stop) {
    const auto medium = make_crashing_file_system();
    save_safetensors({medium}, whole_state(1), "c", options);
    if (!save_stopping(medium, 2, stop)) break;
    const auto left = medium->crash(CrashPolicy::kKeepAll);
    if (left->file_type(kMarkerPath) == FileType::kNone) continue;
    ++interrupted;
    EXPECT_EQ(generation_in(left, c10::str("stop ", stop)), 2);
    bool is_stopped = true;
    for (std::uint64_t next = 0; is_stopped; ++next) {
      const auto second = left->crash(CrashPolicy::kKeepAll);
      is_stopped = save_stopping(second, 3, next);
      for (const auto& [policy, seed] : {std::pair(CrashPolicy::kLoseUnsynced, 0), std::pair(CrashPolicy::kKeepAll, 0),
                                         std::pair(CrashPolicy::kTornWrites, 1)}) {
        const std::string what = c10::str("stop ", stop, ", then ", next, ", policy ", static_cast<int>(policy));
        const auto files = second->crash(policy, seed);
        const std::optional<int> generation = generation_in(files, what);
        EXPECT_TRUE(generation == 3 || (is_stopped && generation == 2)) << what;
        found.insert(generation);
        check_plain_readers(files, what);
      }
    }
  }
  EXPECT_GT(interrupted, 8);
  EXPECT_EQ(found, (std::set<std::optional<int>>{2, 3}));
}

TEST(SafetensorsFaults, EveryCallOfASaveFailsInTurn) {
  const std::vector<FileOp> ops = {FileOp::kCreate, FileOp::kAppend,        FileOp::kSync,
                                   FileOp::kClose,  FileOp::kList,          FileOp::kRemove,
                                   FileOp::kRename, FileOp::kSyncDirectory, FileOp::kCreateDirectories,
                                   FileOp::kStat,   FileOp::kOpen,          FileOp::kRead};
  int fault_count = 0;
  int committed_count = 0;
  for (const FileOp op : ops) {
    for (std::uint64_t nth = 1;; ++nth) {
      const std::string what = c10::str(file_op_name(op), " ", nth);
      const auto files = std::make_shared<FaultInjectingFileSystem>(make_memory_file_system());
      const Place place{files};
      save_safetensors(place, whole_state(1), "c", {.fqn_to_index_mapping = kMapping});
      files->fail({.op = op, .nth = nth, .message = "the disk broke"});
      const std::string error =
          error_of([&] { save_safetensors(place, whole_state(2), "c", {.fqn_to_index_mapping = kMapping}); });
      files->clear_faults();
      const std::optional<int> generation = generation_in(files, what);
      if (error.empty()) {
        EXPECT_EQ(generation, 2) << what;
        break;
      }
      ++fault_count;
      EXPECT_NE(error.find("the disk broke"), std::string::npos) << what << ": " << error;
      const bool says_committed = error.find("complete for this library's readers") != std::string::npos;
      EXPECT_EQ(generation, says_committed ? 2 : 1) << what << ": " << error;
      committed_count += says_committed;
      save_safetensors(place, whole_state(2), "c", {.fqn_to_index_mapping = kMapping});
      EXPECT_EQ(generation_in(files, what), 2) << what;
      EXPECT_EQ(names_in(*files, "c").size(), 4u) << what;
    }
  }
  EXPECT_GT(fault_count, 25);
  EXPECT_GT(committed_count, 10);
}

/// A coordinator that is stalled before one of its looks at the marker, while another one saves.
TEST(SafetensorsTakenOver, AStalledSaveDoesNotEndALaterOne) {
  const SafetensorsWriterOptions options{.fqn_to_index_mapping = kMapping};
  int taken_over = 0;
  for (int nth = 1; nth <= 3; ++nth) {
    bool is_stopped = true;
    for (std::uint64_t stop = 0; is_stopped; ++stop) {
      const std::string what = c10::str("sync ", nth, ", stop ", stop);
      const auto base = make_memory_file_system();
      save_safetensors({base}, whole_state(1), "c", options);
      const auto later = std::make_shared<FaultInjectingFileSystem>(base);
      later->stop_after_changes(stop);
      const auto stalled = std::make_shared<FaultInjectingFileSystem>(base);
      int syncs = 0;
      bool has_later_marker = false;
      std::map<std::string, Bytes> after_later;
      stalled->set_hook([&](const FileEvent& event) {
        if (event.op != FileOp::kSyncDirectory || base->file_type(kMarkerPath) == FileType::kNone || ++syncs != nth)
          return;
        const std::string before = text_of(*base, kMarkerPath);
        error_of([&] { save_safetensors({later}, whole_state(3), "c", options); });
        has_later_marker = base->file_type(kMarkerPath) == FileType::kNone || text_of(*base, kMarkerPath) != before;
        after_later = contents_of(*base, "c");
      });
      const std::string error = error_of([&] { save_safetensors({stalled}, whole_state(2), "c", options); });
      is_stopped = later->is_stopped();
      EXPECT_EQ(generation_in(base, what), has_later_marker ? 3 : 2) << what << ": " << error;
      EXPECT_EQ(error.find("another save has taken over") != std::string::npos, has_later_marker) << what << error;
      if (!has_later_marker) continue;
      ++taken_over;
      EXPECT_EQ(contents_of(*base, "c"), after_later) << what;
    }
  }
  EXPECT_GT(taken_over, 20);
}

/// What is to be removed may be gone: two coordinators may clear away at once, and some systems repeat a call.
TEST(SafetensorsTakenOver, WhatIsGoneAlreadyNeedNotBeRemoved) {
  const auto base = make_memory_file_system();
  save_safetensors({base}, whole_state(1), "c", {.fqn_to_index_mapping = kMapping});
  write_text(*base, "c/model-00001-of-00001.safetensors.12ab.tmp", "left");
  const auto files = std::make_shared<FaultInjectingFileSystem>(base);
  files->set_hook([&](const FileEvent& event) {
    if (event.op == FileOp::kRemove) base->remove_file(event.path);
  });
  save_safetensors({files}, whole_state(2), "c", {.fqn_to_index_mapping = kMapping});
  EXPECT_EQ(generation_in(base, "gone"), 2);
}

/// A load during whose operation number `nth` another process saves generation 2, or a part of that.
class LoadBesideASave {
 public:
  explicit LoadBesideASave(int world) : world_(world) {}

  /// \param stop  After so many changes the save stops; none: it comes to its end.
  /// \returns Whether there was such an operation.
  bool run(int nth, std::optional<std::uint64_t> stop) {
    const std::string what = c10::str("operation ", nth, stop ? c10::str(", stop ", *stop) : "");
    const SafetensorsWriterOptions options{.fqn_to_index_mapping = kMapping};
    const auto base = make_memory_file_system();
    save_safetensors({base}, whole_state(1), "c", options);
    const auto saving = std::make_shared<FaultInjectingFileSystem>(base);
    if (stop) saving->stop_after_changes(*stop);
    const auto files = std::make_shared<FaultInjectingFileSystem>(base);
    std::atomic<int> count = 0;
    files->set_hook([&](const FileEvent&) {
      if (++count == nth) error_of([&] { save_safetensors({saving}, whole_state(2), "c", options); });
    });
    std::mutex mutex;
    std::set<int> loaded;
    const auto load = [&](const Place& place, const RankContext* ranks) {
      try {
        const int generation = load_one(place, ranks, what);
        const std::lock_guard lock(mutex);
        loaded.insert(generation);
      } catch (const CheckpointError& error) {
        EXPECT_EQ(error.failures().at(0).kind, ErrorKind::kCorruptData)
            << what << ": " << error.what_without_backtrace();
        EXPECT_NE(std::string(error.what_without_backtrace()).find("try again"), std::string::npos)
            << what << ": " << error.what_without_backtrace();
        const std::lock_guard lock(mutex);
        loaded.insert(0);
      }
    };
    if (world_ == 1) {
      load({files}, nullptr);
    } else {
      run_ranks(world_, [&](RankContext& ranks) { load(place_of(ranks, files), &ranks); });
    }
    EXPECT_EQ(loaded.size(), 1u) << what;  // on all ranks alike
    results_.insert(loaded.begin(), loaded.end());
    is_stopped_ = saving->is_stopped();
    return count >= nth;
  }

  bool is_stopped() const { return is_stopped_; }
  const std::set<int>& results() const { return results_; }

 private:
  /// Every tensor of one generation, or an error.
  int load_one(const Place& place, const RankContext* ranks, const std::string& what) {
    if (ranks == nullptr) {
      const StateDict found = place.rebuild("c");
      const int generation = static_cast<int>(found.at("w").as_tensor().flatten()[0].item<float>()) / 100;
      EXPECT_EQ(difference_of(found, whole_state(generation)), "") << what;
      return generation;
    }
    StateDict state = {{"w", split_pattern({7, 3}, *ranks)},
                       {"cols", split_pattern({3, 5}, *ranks, 1, at::kHalf)},
                       {"v", pattern({3, 2}, at::kLong)},
                       {"few", split_pattern({1}, *ranks)}};
    place.load(state, "c");
    const int generation = state["v"].as_tensor().flatten()[0].item<std::int64_t>() == -50 ? 1 : 2;
    const StateDict wanted = state_of(*ranks, generation);
    for (const char* key : {"w", "cols", "few"}) {
      EXPECT_TRUE(bit_equal(state[key].as_dtensor().local(), wanted.at(key).as_dtensor().local())) << what << key;
    }
    EXPECT_TRUE(bit_equal(state["v"].as_tensor(), wanted.at("v").as_tensor())) << what;
    return generation;
  }

  int world_;
  bool is_stopped_ = false;
  std::set<int> results_;
};

TEST(SafetensorsBesideASave, ALoadGivesOneOfTheTwoOrAnError) {
  for (const int world : {1, 2}) {
    LoadBesideASave loads(world);
    int nth = 1;
    while (loads.run(nth, std::nullopt)) ++nth;
    EXPECT_GT(nth, 10);
    EXPECT_EQ(loads.results(), (std::set<int>{0, 1, 2})) << "world " << world;
  }
}

TEST(SafetensorsBesideASave, ALoadAtEveryPlaceOfTheSave) {
  LoadBesideASave loads(1);
  for (int nth = 1;; ++nth) {
    bool is_there = true;
    for (std::uint64_t stop = 0; is_there && (stop == 0 || loads.is_stopped()); stop += 2) {
      is_there = loads.run(nth, stop);
    }
    if (!is_there) break;
  }
  EXPECT_EQ(loads.results(), (std::set<int>{0, 1, 2}));
}

}  // namespace
}  // namespace dcp::test

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "test/checkpoint/checkpoint_support.h"
#include "test/support/fault_injecting_file_system.h"
#include "torch_dcp/storage/filesystem_reader.h"

// Loads beside saves that replace what is being loaded.

namespace dcp::test {
namespace {

constexpr std::int64_t kRows = 12;

StateDict version(int number) {
  return {{"w", counted({kRows, 3}) + 1000 * number},
          {"v", counted({5}, at::kDouble) - number},
          {"table", Dict{{Key(std::int64_t{number}), counted({2}) + number}}},
          {"n", number}};
}

/// Of a world of one, or of several ranks that hold a part of `w` each.
StateDict blank(int number, const RankContext* ranks = nullptr) {
  StateDict state = version(number);
  state["w"] = ranks ? Value(split_pattern({kRows, 3}, *ranks)) : Value(pattern({kRows, 3}));
  state["v"] = pattern({5}, at::kDouble);
  state.erase("table");
  state["n"] = -1;
  return state;
}

StateDict wanted(int number, const RankContext* ranks = nullptr) {
  StateDict state = version(number);
  if (ranks) state["w"] = split(state["w"].as_tensor(), *ranks);
  state.erase("table");
  return state;
}

bool is_version(const StateDict& state, int number, const RankContext* ranks = nullptr) {
  return first_difference(state, wanted(number, ranks)).empty();
}

bool is_unchanged(const StateDict& state, const RankContext* ranks = nullptr) {
  return first_difference(state, blank(0, ranks)).empty();
}

void expect_told(const std::string& text) {
  for (const char* part : {"c: the checkpoint was replaced or removed while it was being read", "load again"}) {
    EXPECT_NE(text.find(part), std::string::npos) << "\"" << part << "\" is not in: " << text;
  }
}

/// Does something at the beginning of a call.
class DisturbedReader final : public FileSystemReader {
 public:
  using FileSystemReader::FileSystemReader;

  void check(const LoadPlan& plan, LoadPlanner& planner) override {
    if (before_check) before_check();
    FileSystemReader::check(plan, planner);
    if (after_check) after_check();
  }
  void read_data(const LoadPlan& plan, LoadPlanner& planner) override {
    if (before_read) before_read();
    FileSystemReader::read_data(plan, planner);
  }

  std::function<void()> before_check = {};
  std::function<void()> after_check = {};
  std::function<void()> before_read = {};
};

struct Form {
  const char* name;
  bool is_of_ranks = false;  ///< saved without collectives
  FileSystemWriterOptions writer = {};
};

std::vector<Form> forms() {
  return {{"replace", false, {}},
          {"replace, a file for each item", false, {.single_file_per_rank = false}},
          {"revoke first", false, {.overwrite_form = OverwriteForm::kRevokeFirst}},
          {"ranks alone", true, {}}};
}

class LoadBesideSaveTest : public ::testing::Test {
 protected:
  void remove_all() const {
    for (const std::string& name : names_in(*base_, "c")) base_->remove_file(join_path("c", name));
  }

  void save(int number, const Form& form = {"replace"}) const {
    SaveOptions options;
    options.use_collectives = !form.is_of_ranks;
    Place{base_}.save_with(version(number), "c", options, form.writer);
  }

  std::shared_ptr<FileSystem> base_ = make_memory_file_system();
  std::shared_ptr<FaultInjectingFileSystem> files_ = std::make_shared<FaultInjectingFileSystem>(base_);
};

// A whole save, at every place of a load in turn.
TEST_F(LoadBesideSaveTest, AReplacementAnywhereGivesTheOldOrTheNew) {
  for (const Form& form : forms()) {
    remove_all();
    bool was_old = false;
    bool was_new = false;
    for (int place = 0;; ++place) {
      SCOPED_TRACE(c10::str(form.name, ", before operation ", place));
      save(1, form);
      int operations = 0;
      files_->set_hook([&](const FileEvent&) {
        if (operations++ == place) save(2, form);
      });
      StateDict state = blank(1);
      const LoadReport report = Place{files_}.load(state, "c");
      files_->clear_faults();
      if (operations <= place) {
        EXPECT_TRUE(is_version(state, 1));
        break;
      }
      EXPECT_TRUE(is_version(state, 1) || is_version(state, 2)) << first_difference(state, wanted(2));
      EXPECT_EQ(report.unexpected.size(), 1u);
      was_old = was_old || is_version(state, 1);
      was_new = was_new || is_version(state, 2);
    }
    EXPECT_TRUE(was_old && was_new) << form.name;
  }
}

// Typed keys are in a file of their own.
TEST_F(LoadBesideSaveTest, WhatIsRebuiltIsOneOfTheTwo) {
  for (const Form& form : forms()) {
    remove_all();
    for (int place = 0;; ++place) {
      SCOPED_TRACE(c10::str(form.name, ", before operation ", place));
      save(1, form);
      int operations = 0;
      files_->set_hook([&](const FileEvent&) {
        if (operations++ == place) save(2, form);
      });
      const StateDict state = Place{files_}.rebuild("c");
      files_->clear_faults();
      EXPECT_TRUE(first_difference(state, version(1)).empty() || first_difference(state, version(2)).empty())
          << first_difference(state, version(2));
      if (operations <= place) break;
    }
  }
}

TEST_F(LoadBesideSaveTest, SeveralRanksGetTheSame) {
  std::atomic<int> operations = 0;
  std::array<std::atomic<int>, 2> found{};
  run_ranks(2, [&](RankContext& ranks) {
    const Place place = place_of(ranks, files_);
    const auto together = [&] { place.communicator->all_gather({}); };
    for (const Form& form : forms()) {
      if (ranks.rank() == 0) remove_all();
      for (int at = static_cast<int>(form.is_of_ranks);; at += 3) {
        SCOPED_TRACE(c10::str(form.name, ", before operation ", at));
        if (ranks.rank() == 0) {
          save(1, form);
          operations = 0;
          files_->set_hook([&, at](const FileEvent&) {
            if (operations++ == at) save(2, form);
          });
        }
        together();
        StateDict state = blank(1, &ranks);
        place.load(state, "c");
        const int number = is_version(state, 1, &ranks) ? 1 : is_version(state, 2, &ranks) ? 2 : 0;
        found[static_cast<std::size_t>(ranks.rank())] = number;
        EXPECT_NE(number, 0);
        together();
        if (ranks.rank() == 0) files_->clear_faults();
        EXPECT_EQ(found[0], found[1]) << "a mixture";
        const bool is_last = operations <= at;
        together();
        if (is_last) break;
      }
    }
  });
}

TEST_F(LoadBesideSaveTest, OneThatIsReplacedAgainAndAgainIsAnErrorThatSaysSo) {
  for (const bool is_seen : {true, false}) {
    save(1);
    ErrorsByRank errors(2);
    std::atomic<int> saves = 0;
    run_ranks(2, [&](RankContext& ranks) {
      DisturbedReader reader("c", {.file_system = base_});
      const auto replace = [&] { save(2 + saves++); };
      // What a rank cannot open any more it tells itself; else the coordinator sees that there is another one.
      if (ranks.rank() == 1) (is_seen ? reader.before_check : reader.after_check) = replace;
      LoadOptions options;
      options.communicator = place_of(ranks, base_).communicator;
      StateDict state = blank(0, &ranks);
      errors.run(ranks.rank(), [&] { dcp::load(state, reader, options); });
      EXPECT_TRUE(is_unchanged(state, &ranks));
    });
    EXPECT_EQ(saves, 2) << "one try, and one more";
    // Rank 0 may have opened its files before or not, so that with rank 1 it fails or does not.
    std::vector<int> failed;
    for (const RankFailure& failure : errors.error().failures()) {
      failed.push_back(failure.rank);
      EXPECT_EQ(failure.kind, ErrorKind::kState);
    }
    EXPECT_EQ(failed.back(), is_seen ? 1 : 0);
    ASSERT_NO_FATAL_FAILURE(errors.expect(failed));
    EXPECT_EQ(errors.error().step(), "check");
    expect_told(errors.text());
  }
}

TEST_F(LoadBesideSaveTest, WhatIsDamagedIsNotTakenForReplaced) {
  save(1);
  base_->remove_file("c/__0_0.distcp");
  files_->clear_trace();
  StateDict state = blank(0);
  std::string text;
  try {
    Place{files_}.load(state, "c");
  } catch (const CheckpointError& error) {
    text = error.what_without_backtrace();
    EXPECT_EQ(error.kind(), ErrorKind::kCorruptData);
  }
  EXPECT_NE(text.find("c/__0_0.distcp is missing"), std::string::npos) << text;
  EXPECT_EQ(text.find("load again"), std::string::npos) << text;
  EXPECT_TRUE(is_unchanged(state));
}

TEST_F(LoadBesideSaveTest, ACheckpointThatIsTakenAwayIsAnError) {
  for (int place = 0;; ++place) {
    SCOPED_TRACE(place);
    save(1);
    int operations = 0;
    files_->set_hook([&](const FileEvent&) {
      if (operations++ == place) remove_all();
    });
    StateDict state = blank(0);
    try {
      Place{files_}.load(state, "c");
      EXPECT_TRUE(is_version(state, 1));
    } catch (const CheckpointError& error) {
      const std::string text = error.what_without_backtrace();
      EXPECT_TRUE(is_unchanged(state)) << text;
      EXPECT_EQ(error.kind(), ErrorKind::kNotFound) << text;
      const bool names_it = text.find("incomplete checkpoint") != std::string::npos;
      EXPECT_TRUE(names_it || text.find("c/.metadata") != std::string::npos) << text;
    }
    files_->clear_faults();
    if (operations <= place) break;
  }
}

/// More files than a rank keeps open.
StateDict many(float number) {
  StateDict state;
  for (int i = 0; i < 300; ++i) state[c10::str("t", i)] = at::full({4}, number);
  return state;
}

void expect_all(const StateDict& state, float number) { EXPECT_EQ(first_difference(state, many(number)), ""); }

// What is opened only while it is read may have gone, or be another's of the same name.
TEST_F(LoadBesideSaveTest, WhatGoesWhileItIsReadIsAnErrorThatSaysSo) {
  for (const OverwriteForm form : {OverwriteForm::kReplace, OverwriteForm::kRevokeFirst}) {
    for (const bool rollback : {false, true}) {
      const auto save_many = [&](float number) {
        Place{base_}.save(many(number), "m", {.overwrite_form = form, .single_file_per_rank = false});
      };
      save_many(1);
      DisturbedReader reader("m", {.file_system = base_});
      StateDict state = many(0);
      LoadOptions options;
      options.rollback = rollback;
      dcp::load(state, reader, options);
      expect_all(state, 1);
      reader.before_read = [&] { save_many(2); };
      state = many(0);
      try {
        dcp::load(state, reader, options);
        ADD_FAILURE() << "half of it is another's";
      } catch (const CheckpointError& error) {
        const std::string text = error.what_without_backtrace();
        EXPECT_EQ(error.kind(), ErrorKind::kState) << text;
        EXPECT_EQ(error.step(), "read");
        for (const char* part : {"m: the checkpoint was replaced", "load again", "changed already: t"}) {
          EXPECT_NE(text.find(part), std::string::npos) << "\"" << part << "\" is not in: " << text;
        }
      }
      if (rollback) expect_all(state, 0);
      reader.before_read = {};
      dcp::load(state, reader, options);
      expect_all(state, 2);
      for (const std::string& name : names_in(*base_, "m")) base_->remove_file(join_path("m", name));
    }
  }
}

TEST_F(LoadBesideSaveTest, FilesThatAreOpenAreReadToTheirEnd) {
  save(1);
  DisturbedReader reader("c", {.file_system = base_});
  reader.before_read = [&] { save(2); };
  StateDict state = blank(0);
  dcp::load(state, reader, {});
  EXPECT_TRUE(is_version(state, 1));
}

}  // namespace
}  // namespace dcp::test

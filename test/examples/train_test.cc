// Runs the example as its users do: as a program that starts its ranks as processes.

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>

#include "torch_dcp/checkpoint/by_checkpoint_id.h"
#include "torch_dcp/examples/run_folder.h"
#include "torch_dcp/state_dict/equal.h"
#include "torch_dcp/state_dict/value.h"

namespace dcp::examples {
namespace {

struct Outcome {
  int exit_code = -1;  ///< -1 if a signal ended it
  std::string text;    ///< standard output and error
};

/// Runs the example in a shell.
Outcome train(const std::string& arguments) {
  const char* runfiles = std::getenv("TEST_SRCDIR");
  const char* workspace = std::getenv("TEST_WORKSPACE");
  const std::string program = std::string(runfiles) + "/" + workspace + "/torch_dcp/examples/train ";
  FILE* output = ::popen((program + arguments + " 2>&1").c_str(), "r");
  if (output == nullptr) throw std::runtime_error("cannot start a shell");
  Outcome outcome;
  std::array<char, 4096> buffer{};
  while (const std::size_t count = std::fread(buffer.data(), 1, buffer.size(), output)) {
    outcome.text.append(buffer.data(), count);
  }
  const int status = ::pclose(output);
  if (WIFEXITED(status)) outcome.exit_code = WEXITSTATUS(status);
  return outcome;
}

std::string last_line(std::string text) {
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text.substr(text.rfind('\n') + 1);
}

class TrainTest : public ::testing::Test {
 protected:
  TrainTest() {
    const char* base = std::getenv("TEST_TMPDIR");
    folder_ = std::string(base) + "/train-XXXXXX";
    if (::mkdtemp(folder_.data()) == nullptr) throw std::runtime_error("cannot make a folder");
    // 35 different characters: rows that neither 2 nor 3 ranks cut evenly.
    std::ofstream text(folder_ + "/text");
    for (int i = 0; i < 40; ++i) text << "the quick brown fox jumps over the lazy dog, line " << i % 5 << ".\n";
  }
  ~TrainTest() override { std::filesystem::remove_all(folder_); }

  std::string folder(const std::string& name) const { return folder_ + "/" + name; }

  /// Rows and elements are no multiples of the ranks or of a vector register; 3 ranks cut the 4 rows of the positions,
  /// and a batch of 4, into 2, 2 and none.
  std::string arguments(const std::string& run, int batch = 5) const {
    return "--text " + folder("text") + " --dir " + folder(run) + " --layers 1 --width 20 --context 4 --batch " +
           std::to_string(batch) + " ";
  }

  StateDict newest(const std::string& run) const { return load_keys(newest_checkpoint(folder(run)).value().path); }

 private:
  std::string folder_;
};

std::int64_t step_of(const StateDict& state) { return state.at("trainer").as_dict().at("step").as_int(); }

TEST_F(TrainTest, ArithmeticIsThatOfAnyNumberOfRanks) {
  for (const std::string ranks : {"1", "2", "3"}) {
    const Outcome outcome = train(arguments("on" + ranks) + "--steps 4 --save-every 4 --ranks " + ranks);
    ASSERT_EQ(outcome.exit_code, 0) << outcome.text;
  }
  const StateDict on_1 = newest("on1");
  EXPECT_EQ(step_of(on_1), 4);
  EXPECT_EQ(on_1.at("trainer").as_dict().at("losses").as_list().size(), 4u);
  EXPECT_EQ(first_difference(on_1, newest("on2")), "");
  EXPECT_EQ(first_difference(on_1, newest("on3")), "");

  const Outcome equal = train("--compare " + folder("on1") + " " + folder("on3"));
  EXPECT_EQ(equal.exit_code, 0) << equal.text;
  EXPECT_EQ(last_line(equal.text).find("equal: 4 losses and "), 0u) << equal.text;
}

TEST_F(TrainTest, RunsOfDifferentSeedsCompareAsDifferent) {
  ASSERT_EQ(train(arguments("a") + "--steps 1 --ranks 1 --seed 1").exit_code, 0);
  ASSERT_EQ(train(arguments("b") + "--steps 1 --ranks 1 --seed 2").exit_code, 0);
  const Outcome outcome = train("--compare " + folder("a") + " " + folder("b"));
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_EQ(last_line(outcome.text).find("not equal: "), 0u) << outcome.text;
}

TEST_F(TrainTest, KilledAndResumedRunIsTheUninterruptedOne) {
  const Outcome outcome = train(arguments("both", 4) + "--steps 10 --save-every 3");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.text;
  EXPECT_EQ(last_line(outcome.text).find("equal: 10 losses and "), 0u) << outcome.text;
  // Killed after step 7, with that of step 6 being the last that was complete.
  EXPECT_NE(outcome.text.find("rank 2 was killed after step 7"), std::string::npos) << outcome.text;
  EXPECT_NE(outcome.text.find("rank 2: signal 9"), std::string::npos) << outcome.text;
  EXPECT_NE(outcome.text.find("the newest complete checkpoint is of step 6"), std::string::npos) << outcome.text;
  EXPECT_EQ(first_difference(newest("both/uninterrupted"), newest("both/interrupted")), "");
  EXPECT_EQ(step_of(newest("both/interrupted")), 10);
}

/// The row of the table that says what a lost machine cost, up to the steps that were lost.
std::string row(const char* name, int every, int resumed_from, int steps_lost) {
  char text[96];
  std::snprintf(text, sizeof text, "\n%-17s %12d  %12d  %10d  ", name, every, resumed_from, steps_lost);
  return text;
}

TEST_F(TrainTest, ALostMachineCostsOneStepWithMemoryAndMoreWithFiles) {
  // The remaining ranks go on, and the one that is lost hosted the store.
  const Outcome without = train(arguments("without", 4) + "--steps 10 --disk-every 4 --memory-every 1 --kill 0");
  EXPECT_EQ(without.exit_code, 0) << without.text;
  EXPECT_NE(without.text.find("the job went on with 2 ranks\n"), std::string::npos) << without.text;
  EXPECT_NE(without.text.find(row("files alone", 4, 4, 2)), std::string::npos) << without.text;
  EXPECT_NE(without.text.find(row("memory and files", 1, 5, 1)), std::string::npos) << without.text;
  EXPECT_EQ(last_line(without.text).find("equal: 10 losses and "), 0u) << without.text;
  EXPECT_EQ(first_difference(newest("without/uninterrupted"), newest("without/memory")), "");

  // Another machine takes its place, with nothing in its memory.
  const Outcome replaced = train(arguments("replaced", 4) + "--steps 10 --disk-every 4 --memory-every 1 --replace");
  EXPECT_EQ(replaced.exit_code, 0) << replaced.text;
  EXPECT_NE(replaced.text.find("3 ranks, one of them on an empty machine\n"), std::string::npos) << replaced.text;
  EXPECT_NE(replaced.text.find(row("memory and files", 1, 5, 1)), std::string::npos) << replaced.text;
  EXPECT_EQ(last_line(replaced.text).find("equal: 10 losses and "), 0u) << replaced.text;
}

TEST_F(TrainTest, MemoryOfTheTrainersThemselvesLeavesTheSameFiles) {
  ASSERT_EQ(train(arguments("files") + "--steps 4 --save-every 3 --ranks 2").exit_code, 0);
  for (const std::string ranks : {"1", "2"}) {
    const Outcome outcome =
        train(arguments("memory" + ranks) + "--steps 4 --save-every 3 --memory-every 2 --ranks " + ranks);
    ASSERT_EQ(outcome.exit_code, 0) << outcome.text;
    for (const std::int64_t step : {3, 4}) {
      EXPECT_EQ(first_difference(load_keys(checkpoint_path(folder("files"), step)),
                                 load_keys(checkpoint_path(folder("memory" + ranks), step))),
                "")
          << "step " << step << " on " << ranks << " ranks";
    }
  }
}

TEST_F(TrainTest, ResumesFromTheNewestCompleteCheckpoint) {
  ASSERT_EQ(train(arguments("run") + "--steps 4 --save-every 2 --ranks 1").exit_code, 0);
  std::filesystem::remove(checkpoint_path(folder("run"), 4) + "/.metadata");  // as if the save had not ended
  EXPECT_EQ(newest_checkpoint(folder("run"))->step, 2);
  const Outcome again = train(arguments("run") + "--steps 4 --save-every 2 --ranks 1");
  EXPECT_EQ(again.exit_code, 1);
  EXPECT_NE(again.text.find("is of an earlier run"), std::string::npos) << again.text;

  ASSERT_EQ(train(arguments("run") + "--steps 4 --save-every 2 --ranks 2 --resume").exit_code, 0);
  ASSERT_EQ(train(arguments("whole") + "--steps 4 --save-every 2 --ranks 1").exit_code, 0);
  EXPECT_EQ(first_difference(newest("run"), newest("whole")), "");
}

TEST_F(TrainTest, AFailureHasAMessageAndAnExitCode) {
  const Outcome nothing = train(arguments("none") + "--steps 4 --ranks 1 --resume");
  EXPECT_EQ(nothing.exit_code, 1);
  EXPECT_NE(nothing.text.find("no complete checkpoint in '" + folder("none") + "'"), std::string::npos) << nothing.text;

  const Outcome no_text = train("--text " + folder("absent") + " --dir " + folder("none") + " --ranks 1");
  EXPECT_EQ(no_text.exit_code, 1);
  EXPECT_NE(no_text.text.find("cannot read the text '" + folder("absent") + "'"), std::string::npos) << no_text.text;

  const Outcome no_server = train(arguments("none") + "--ranks 1 --memory-every 1 --vault mem://" + folder("socket"));
  EXPECT_EQ(no_server.exit_code, 1);
  EXPECT_NE(no_server.text.find(folder("socket")), std::string::npos) << no_server.text;
  const Outcome nobody = train(arguments("none") + "--memory-every 1 --disk-every 5 --ranks 2 --kill 2");
  EXPECT_EQ(nobody.exit_code, 1);
  EXPECT_NE(nobody.text.find("rank 2 of 2 cannot be killed"), std::string::npos) << nobody.text;
  EXPECT_NE(train("--kill 1").exit_code, 0);

  EXPECT_NE(train("--width 6").exit_code, 0);
  EXPECT_NE(train("--steps none").exit_code, 0);
}

}  // namespace
}  // namespace dcp::examples

// Ranks as processes, which can be killed and stopped, over a store whose server is a
// process too.
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include "test/comm/rank_process.h"
#include "torch_dcp/comm/communicator.h"
#include "torch_dcp/comm/rank_step.h"

namespace dcp::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

constexpr int kRanks = 3;
constexpr milliseconds kDeadline{2000};
constexpr seconds kLimit{30};  // of a test, and of the life of its children

// What a step did on one rank, on one line: "ok", or the failures and whether it was quick.
std::string outcome_of(Communicator& comm, const std::string& label, const std::function<void()>& local,
                       milliseconds limit) {
  const auto start = steady_clock::now();
  std::string text = "ok";
  try {
    status_step(comm, label, local);
  } catch (const CheckpointError& error) {
    text = error.step() + ":";
    for (const RankFailure& failure : error.failures()) {
      text += " " + std::to_string(failure.rank) + "=" + error_kind_name(failure.kind);
    }
  } catch (const std::exception& error) {
    text = std::string("not a CheckpointError: ") + error.what();
  }
  const auto took = std::chrono::duration_cast<milliseconds>(steady_clock::now() - start);
  if (took > limit) text += " after " + std::to_string(took.count()) + " ms";
  return text;
}

class Job : public RankProcesses {
 public:
  using Body = std::function<void(Communicator&, const Pipe& told)>;

  explicit Job(const Body& body)
      : RankProcesses(kRanks, kLimit, [&](int rank, const c10::intrusive_ptr<c10d::Store>& store, const Pipe& told) {
          CommunicatorOptions options;
          options.deadline = kDeadline;
          options.store = store;
          options.group_factory = gloo_group_factory({.hostname = "127.0.0.1", .interface = ""});
          Communicator comm =
              Communicator::create(c10::make_intrusive<c10d::ProcessGroup>(store, rank, kRanks), options);
          body(comm, told);
        }) {}
};

TEST(Processes, KilledRankIsNamedByAllSurvivors) {
  for (const int victim : {0, 1}) {
    Job job([&](Communicator& comm, const Pipe& told) {
      told.write(outcome_of(comm, "plan", [] {}, seconds(10)) + "\n");
      const auto die = [&] {
        if (comm.rank() == victim) ::raise(SIGKILL);
      };
      told.write(outcome_of(comm, "write", die, seconds(4)) + "\n");
    });
    const std::string expected = "write: " + std::to_string(victim) + "=Comm";
    for (int rank = 0; rank < kRanks; ++rank) {
      EXPECT_EQ(job.next_line(rank), "ok");
      if (rank == victim) continue;
      EXPECT_EQ(job.next_line(rank), expected);
    }
  }
}

TEST(Processes, StoppedRankIsLateAndCatchesUp) {
  Job job([](Communicator& comm, const Pipe& told) {
    told.write(outcome_of(comm, "plan", [] {}, seconds(10)) + "\n");
    const auto stop = [&] {
      if (comm.rank() == 2) ::raise(SIGSTOP);
    };
    told.write(outcome_of(comm, "write", stop, seconds(20)) + "\n");
    told.write(outcome_of(comm, "again", [] {}, seconds(10)) + "\n");
  });
  for (int rank = 0; rank < kRanks; ++rank) EXPECT_EQ(job.next_line(rank), "ok");
  for (int rank = 0; rank < 2; ++rank) EXPECT_EQ(job.next_line(rank), "write: 2=Deadline");
  job.rank(2).signal(SIGCONT);
  EXPECT_EQ(job.next_line(2), "write: 2=Deadline");
  for (int rank = 0; rank < kRanks; ++rank) EXPECT_EQ(job.next_line(rank), "ok");
}

TEST(Processes, StoreThatIsGoneOrStoppedHangsNobody) {
  for (const int number : {SIGKILL, SIGSTOP}) {
    Pipe go;
    Job job([&](Communicator& comm, const Pipe& told) {
      told.write(outcome_of(comm, "plan", [] {}, seconds(10)) + "\n");
      go.read_line(kLimit);
      told.write(outcome_of(comm, "write", [] {}, kDeadline + seconds(9)) + "\n");
    });
    for (int rank = 0; rank < kRanks; ++rank) EXPECT_EQ(job.next_line(rank), "ok");
    job.server().signal(number);
    go.write("\n\n\n");
    for (int rank = 0; rank < kRanks; ++rank) {
      const std::string outcome = job.next_line(rank);
      EXPECT_TRUE(outcome == "write: -1=Comm" || outcome == "write: -1=Deadline") << outcome;
    }
  }
}

TEST(Processes, RankThatEndsEarlyDoesNotDisturbTheOthers) {
  Job job([](Communicator& comm, const Pipe& told) {
    told.write(outcome_of(comm, "last", [] {}, seconds(10)) + "\n");
    if (comm.rank() != 0) std::this_thread::sleep_for(milliseconds(200));
  });
  for (int rank = 0; rank < kRanks; ++rank) {
    EXPECT_EQ(job.next_line(rank), "ok");
    EXPECT_EQ(job.rank(rank).wait(), 0);
  }
}

}  // namespace
}  // namespace dcp::test

// Saves and loads of three processes one of which is stopped or killed, in each phase.
//
// The others throw within a second of the phase's deadline, or two of a death, and name the rank and the phase, or, if
// the store went with it, that the outcome is unknown. Then the process that was stopped goes on, throws the same,
// and all three save and load again. The group of the program stays usable.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include "test/checkpoint/call_probe.h"
#include "test/checkpoint/checkpoint_support.h"
#include "test/comm/rank_process.h"
#include "test/support/gloo_group.h"

namespace dcp::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

constexpr int kRanks = 3;
constexpr std::size_t kAtOnce = 6;  // jobs
constexpr milliseconds kDeadline{1500};
constexpr milliseconds kAfterDeadline{1000};
constexpr milliseconds kAfterDeath{2000};
// A machine with other work runs these processes late.
constexpr milliseconds kBusy{1000};
constexpr seconds kLimit{60};  // of the life of a child

constexpr int kServer = -1;  // the store is held by a process of its own

/// Who is struck, where, and how.
struct Scenario {
  int signal;
  int store_holder;  // a rank, or kServer
  int coordinator;
  int victim;
  bool loads;
  std::string step;
  std::string call;
  When when = When::kBefore;
};

std::string to_string(const Scenario& scenario) {
  return c10::str(scenario.signal == SIGSTOP ? "stopped " : "killed ",
                  scenario.when == When::kBefore ? "before " : "after ", scenario.call, " of step '", scenario.step,
                  scenario.loads ? "' of a load" : "' of a save", ": rank ", scenario.victim, ", coordinator ",
                  scenario.coordinator, ", store with ", scenario.store_holder);
}

bool store_goes_too(const Scenario& scenario) { return scenario.victim == scenario.store_holder; }

/// When the victim was struck, for all processes of a job: the clock is the machine's.
struct Strike {
  std::atomic<std::int64_t> at{0};
  std::atomic<int> groups{0};  // that communicators have made, counted on each rank
  void set() { at = steady_clock::now().time_since_epoch().count(); }
  milliseconds elapsed() const {
    return std::chrono::duration_cast<milliseconds>(steady_clock::now().time_since_epoch() -
                                                    steady_clock::duration(at));
  }
};

/// One of the three processes.
class RankProcess {
 public:
  RankProcess(const Scenario& scenario, std::string path, int rank, c10::intrusive_ptr<c10d::Store> store,
              Strike& strike)
      : scenario_(scenario), path_(std::move(path)), rank_(rank), strike_(strike) {
    group_ = dcp::testing::make_gloo_group(c10::make_intrusive<c10d::PrefixStore>("program", store), rank, kRanks);
    communicator_options_.coordinator = scenario.coordinator;
    communicator_options_.group_factory = [&strike,
                                           make = gloo_group_factory({.hostname = "127.0.0.1", .interface = ""})](
                                              const auto& own_store, int group_rank, int size, milliseconds timeout) {
      auto group = make(own_store, group_rank, size, timeout);
      ++strike.groups;
      return group;
    };
    communicator_options_.deadline = kLimit;
    communicator_options_.deadlines.by_step[scenario.step] = kDeadline;
  }

  void save(int version, CallProbe probe = CallProbe()) const { save_probed(version, probe); }

  /// Runs what is struck. \returns How it ended, and what was left, such as `plan: 1=Deadline`.
  std::string run() {
    CallProbe probe([this](const std::string& call, When when) {
      if (rank_ != scenario_.victim || call != scenario_.call || when != scenario_.when) return;
      if (strike_.at != 0) return;
      // Before the ranks are connected a death cannot be told from being late. Two calls have made a group by now.
      while (strike_.groups < 2 * kRanks) std::this_thread::sleep_for(milliseconds(1));
      strike_.set();
      ::raise(scenario_.signal);
    });
    StateDict state = blank();
    std::string outcome = "ok";
    try {
      if (scenario_.loads) {
        load_probed(state, probe);
      } else {
        save_probed(2, probe);
      }
    } catch (const CheckpointError& error) {
      outcome = describe(error);
    } catch (const std::exception& error) {
      outcome = std::string("not a CheckpointError: ") + error.what();
    }
    elapsed_ = strike_.elapsed();
    if (scenario_.loads && is_pattern(state.at("w").as_dtensor().local())) outcome += "; untouched";
    return outcome;
  }
  milliseconds elapsed() const { return elapsed_; }

  /// Which save the folder holds, as this process alone loads it.
  std::string stored_version() const {
    StateDict state = {{"w", pattern({7, 2})}, {"n", -1}};
    dcp::load(state, path_);
    const std::string version = state.at("n").kind() == ValueKind::kInt ? c10::str(state.at("n").as_int()) : "?";
    if (!bit_equal(state.at("w"), Value(whole(std::atoi(version.c_str()))))) return version + " with other elements";
    return version;
  }

  /// Uses the program's own group, between two ranks.
  std::string call_survivor(int other) const {
    try {
      std::vector<at::Tensor> tensors{at::full({3}, static_cast<double>(rank_))};
      if (rank_ < other) {
        group_->send(tensors, other, 1)->wait();
        group_->recv(tensors, other, 2)->wait();
      } else {
        std::vector<at::Tensor> received{at::zeros({3})};
        group_->recv(received, other, 1)->wait();
        group_->send(tensors, other, 2)->wait();
        tensors = received;
      }
      return tensors[0].eq(other).all().item<bool>() ? "ok" : "other elements came";
    } catch (const std::exception& error) {
      return error.what();
    }
  }

  /// Uses the program's own group, and saves and loads with all ranks.
  std::string go_on() const {
    try {
      group_->barrier()->wait();
      save(3);
      StateDict state = blank();
      CallProbe probe;
      load_probed(state, probe);
      return first_difference(state, StateDict{{"w", part_of(3)}, {"n", 3}}) == "" ? "ok" : "other values";
    } catch (const std::exception& error) {
      return error.what();
    }
  }

 private:
  static at::Tensor whole(int version) { return counted({7, 2}) + 100 * version; }
  DTensor part_of(int version) const {
    return DTensor::distribute(whole(version), DeviceMesh::make({kRanks}, rank_), {Placement::shard(0)});
  }
  StateDict blank() const {
    return {{"w", pattern_on(DeviceMesh::make({kRanks}, rank_), {Placement::shard(0)}, {7, 2})}, {"n", -1}};
  }

  void save_probed(int version, CallProbe& probe) const {
    ProbedWriter writer(path_, {}, probe);
    SaveOptions options;
    options.process_group = group_;
    options.communicator_options = communicator_options_;
    options.planner = std::make_shared<ProbedSavePlanner>(probe);
    dcp::save({{"w", part_of(version)}, {"n", version}}, writer, options);
  }
  void load_probed(StateDict& state, CallProbe& probe) const {
    ProbedReader reader(path_, {}, probe);
    LoadOptions options;
    options.process_group = group_;
    options.communicator_options = communicator_options_;
    options.planner = std::make_shared<ProbedLoadPlanner>(probe);
    dcp::load(state, reader, options);
  }

  std::string describe(const CheckpointError& error) const {
    std::string text = error.step() + ":";
    for (const RankFailure& failure : error.failures()) {
      text += " " + std::to_string(failure.rank) + "=" + error_kind_name(failure.kind);
    }
    const std::string words = error.what();
    const auto says = [&](const std::string& part) { return words.find(part) != std::string::npos; };
    if (says("outcome unknown")) text += ", outcome unknown";
    if (says("store does not answer")) text += ", store does not answer";
    if (says(c10::str("step '", scenario_.step, "' within its deadline of ", kDeadline.count(), " ms"))) {
      text += ", deadline named";
    }
    if (says(c10::str("rank ", rank_, " saw, "))) text += ", wait named";
    return text;
  }

  const Scenario& scenario_;
  std::string path_;
  int rank_;
  Strike& strike_;
  c10::intrusive_ptr<c10d::ProcessGroup> group_;
  CommunicatorOptions communicator_options_;
  milliseconds elapsed_{0};
};

/// Three processes, and one more if it holds the store, that go through one scenario.
class Job {
 public:
  Job(Scenario scenario, std::string path)
      : scenario_(std::move(scenario)), path_(std::move(path)), told_(kRanks), ports_(kRanks), go_(kRanks) {
    void* const shared = ::mmap(nullptr, sizeof(Strike), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) std::abort();
    strike_ = new (shared) Strike;
    std::filesystem::create_directories(path_);
    if (scenario_.store_holder == kServer) {
      server_ = std::make_unique<Child>(
          [this] {
            const auto store = hold_store();
            std::this_thread::sleep_for(kLimit);
          },
          kLimit);
    }
    for (int rank = 0; rank < kRanks; ++rank) {
      ranks_.push_back(std::make_unique<Child>([this, rank] { be_rank(rank); }, kLimit));
    }
  }
  ~Job() { ::munmap(strike_, sizeof(Strike)); }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  void check(milliseconds& longest_after_deadline, milliseconds& longest_after_death) {
    SCOPED_TRACE(to_string(scenario_));
    const bool is_stopped = scenario_.signal == SIGSTOP;
    std::vector<int> survivors;
    for (int rank = 0; rank < kRanks; ++rank) {
      if (rank != scenario_.victim) survivors.push_back(rank);
    }
    const std::string wanted = wanted_outcome();
    for (const int rank : survivors) {
      EXPECT_EQ(next_line(rank), wanted) << "rank " << rank;
      const milliseconds elapsed(std::atoll(next_line(rank).c_str()));
      EXPECT_EQ(next_line(rank), std::to_string(wanted_version())) << "rank " << rank;
      if (is_stopped) {
        EXPECT_LE(elapsed, kDeadline + kAfterDeadline + kBusy) << "rank " << rank;
        longest_after_deadline = std::max(longest_after_deadline, elapsed - kDeadline);
      } else {
        EXPECT_LE(elapsed, kAfterDeath + kBusy) << "rank " << rank;
        longest_after_death = std::max(longest_after_death, elapsed);
      }
    }
    for (const int rank : survivors) go_[rank].write("\n");
    for (const int rank : survivors) EXPECT_EQ(next_line(rank), "ok") << "the program's group, rank " << rank;
    if (!is_stopped) return;

    ranks_[scenario_.victim]->signal(SIGCONT);
    const std::string victims = next_line(scenario_.victim);
    const std::string failures = wanted.substr(0, wanted.find_first_of(",;"));
    EXPECT_EQ(victims.substr(0, victims.find_first_of(",;")), failures) << victims;
    next_line(scenario_.victim);
    for (int rank = 0; rank < kRanks; ++rank) go_[rank].write("\n");
    for (int rank = 0; rank < kRanks; ++rank) EXPECT_EQ(next_line(rank), "ok") << "going on, rank " << rank;
  }

 private:
  std::string wanted_outcome() const {
    const bool is_stopped = scenario_.signal == SIGSTOP;
    std::string wanted = scenario_.step + ": ";
    if (store_goes_too(scenario_)) {
      wanted += is_stopped ? "-1=Deadline, outcome unknown, store does not answer, wait named"
                           : "-1=Comm, outcome unknown, wait named";
    } else {
      wanted += std::to_string(scenario_.victim) + (is_stopped ? "=Deadline" : "=Comm");
      if (scenario_.step == "commit") wanted += ", outcome unknown";
      if (is_stopped) wanted += ", deadline named";
    }
    if (scenario_.loads && scenario_.step != "read" && scenario_.step != "apply") wanted += "; untouched";
    return wanted;
  }
  int wanted_version() const { return scenario_.call == "writer.finish" && scenario_.when == When::kAfter ? 2 : 1; }

  std::string next_line(int rank) const { return told_[rank].read_line(kLimit); }

  c10::intrusive_ptr<c10d::Store> hold_store() {
    auto store = connect_store(true, 0);
    for (const Pipe& port : ports_) port.write(std::to_string(store->getPort()) + "\n");
    return store;
  }

  void be_rank(int rank) {
    c10::intrusive_ptr<c10d::Store> store;
    if (rank == scenario_.store_holder) {
      store = hold_store();
    } else {
      store = connect_store(false, static_cast<std::uint16_t>(std::stoi(ports_[rank].read_line(kLimit))));
    }
    RankProcess process(scenario_, path_, rank, store, *strike_);
    process.save(1);
    told_[rank].write(process.run() + "\n");
    told_[rank].write(std::to_string(process.elapsed().count()) + "\n");
    if (rank != scenario_.victim) {
      told_[rank].write(process.stored_version() + "\n");
      go_[rank].read_line(kLimit);
      told_[rank].write(process.call_survivor(kRanks - scenario_.victim - rank) + "\n");
    }
    go_[rank].read_line(kLimit);
    told_[rank].write(process.go_on() + "\n");
    std::this_thread::sleep_for(kLimit);  // the store lives with this process
  }

  Scenario scenario_;
  std::string path_;
  Strike* strike_;
  std::vector<Pipe> told_;
  std::vector<Pipe> ports_;
  std::vector<Pipe> go_;
  std::unique_ptr<Child> server_;
  std::vector<std::unique_ptr<Child>> ranks_;
};

void run_jobs(const std::string& name, const std::vector<Scenario>& scenarios) {
  milliseconds longest_after_deadline{0};
  milliseconds longest_after_death{0};
  std::vector<std::unique_ptr<Job>> jobs;
  for (std::size_t i = 0; i < scenarios.size(); ++i) {
    while (jobs.size() < std::min(i + kAtOnce, scenarios.size())) {
      const std::string path = c10::str(::testing::TempDir(), "/", name, jobs.size());
      jobs.push_back(std::make_unique<Job>(scenarios[jobs.size()], path));
    }
    jobs[i]->check(longest_after_deadline, longest_after_death);
    jobs[i].reset();
  }
  std::printf("%s: up to %lld ms after the deadline, %lld ms after a death\n", name.c_str(),
              static_cast<long long>(longest_after_deadline.count()),
              static_cast<long long>(longest_after_death.count()));
}

struct Moment {
  const char* step;
  const char* call;
  bool is_coordinators;
  bool loads;
  When when = When::kBefore;
};

// Each phase of a save and of a load.
const Moment kMoments[] = {
    {"plan", "planner.create_local_plan", false, false},
    {"plan", "planner.create_global_plan", true, false},
    {"write", "writer.write_data", false, false},
    {"commit", "writer.finish", true, false},
    {"commit", "writer.finish", true, false, When::kAfter},
    {"metadata", "reader.read_metadata", true, true},
    {"plan", "planner.create_local_plan", false, true},
    {"plan", "planner.create_global_plan", true, true},
    {"check", "reader.check", false, true},
    {"read", "reader.read_data", false, true},
    {"apply", "planner.commit_objects", false, true},
};

std::vector<Scenario> scenarios(int store_holder, int coordinator, int victim) {
  std::vector<Scenario> all;
  for (const Moment& moment : kMoments) {
    if (moment.is_coordinators && victim != coordinator) continue;
    for (const int number : {SIGSTOP, SIGKILL}) {
      all.push_back({number, store_holder, coordinator, victim, moment.loads, moment.step, moment.call, moment.when});
    }
  }
  return all;
}

TEST(SaveAndLoad, TheCoordinatorIsStruck) { run_jobs("coordinator", scenarios(kServer, 1, 1)); }

TEST(SaveAndLoad, AnotherRankIsStruck) { run_jobs("other", scenarios(kServer, 1, 0)); }

TEST(SaveAndLoad, TheHolderOfTheStoreIsStruck) { run_jobs("holder", scenarios(2, 0, 2)); }

TEST(SaveAndLoad, ACoordinatorThatHoldsTheStoreIsStruck) { run_jobs("both", scenarios(0, 0, 0)); }

}  // namespace
}  // namespace dcp::test

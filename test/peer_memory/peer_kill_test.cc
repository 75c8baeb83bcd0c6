// Any k ranks, any host and any memory server of a job of four die, in each phase of a save and of a recovery.
//
// Real: ranks and memory servers are processes, which talk through Gloo over loopback and through Unix sockets; SIGKILL
// ends them as they enter the phase, all victims within microseconds of each other; those that live on make a new
// meeting with new processes. Hosts are simulated: what dies with one is its ranks and its server.
//
// After each death the others have an error that names a victim, or success, the same on all of them, within seconds
// of a deadline of twenty. Then the newest step whose `.metadata` is left in any memory is found by all ranks, is
// loaded, and is that step's bit by bit, on each rank; and the job saves and loads on.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "test/comm/rank_process.h"
#include "test/peer_memory/kill_cell.h"
#include "test/peer_memory/kill_job.h"
#include "test/support/child_process.h"

namespace dcp::test {
namespace {

constexpr std::size_t kAtOnce = 6;  // jobs

// The commit is the seal of `.metadata`, at the coordinator's copies first.
const std::vector<Phase> kSavePhases = {
    {"plan", JobPart::kSave, "save planner.create_local_plan", true, "plan", 1},
    {"decide", JobPart::kSave, "save planner.create_global_plan", false, "plan", 1},
    {"write", JobPart::kSave, "save writer.write_data", true, "write", 1},
    {"create", JobPart::kSave, "save create own", true, "write", 1},
    {"write on", JobPart::kSave, "save room own again", true, "write", 1},
    {"receive a copy", JobPart::kSave, "save room copy", true, "write", 1},
    {"receive more of a copy", JobPart::kSave, "save room copy again", true, "write", 1},
    {"seal a copy", JobPart::kSave, "save seal copy", true, "write", 1},
    {"seal", JobPart::kSave, "save seal own", true, "write", 1},
    {"commit", JobPart::kSave, "save writer.finish", false, "commit", 0},
    {"write .metadata", JobPart::kSave, "save create metadata", false, "commit", 0},
    {"seal a copy of .metadata", JobPart::kSave, "save seal copy of metadata", false, "commit", 0},
    {"seal .metadata", JobPart::kSave, "save seal metadata", false, "commit", 2},
    {"committed", JobPart::kSave, "save after writer.finish", false, "commit", 2},
    {"clear", JobPart::kSave, "save writer.committed", true, "", 2},
};

const std::vector<Phase> kRecoveryPhases = {
    {"attach", JobPart::kAttach, "attach list 1", true, "look into memory", 2},
    {"connect", JobPart::kAttach, "attach group 2", true, "connect memory", 2, true},
    {"agree", JobPart::kAttach, "attach choosing", false, "choose a generation", 2},
    {"forget others", JobPart::kAttach, "attach list 2", true, "clear memory", 2},
    {"refill", JobPart::kAttach, "attach filling create", false, "fill memory", 2},
    {"give for a refill", JobPart::kAttach, "attach filling open", false, "fill memory", 2},
    {"seal a refill", JobPart::kAttach, "attach filling seal", false, "fill memory", 2},
    {"read .metadata", JobPart::kLoad, "load reader.read_metadata", false, "metadata", 2},
    {"plan a load", JobPart::kLoad, "load planner.create_local_plan", true, "plan", 2},
    {"check", JobPart::kLoad, "load reader.check", true, "check", 2},
    {"read", JobPart::kLoad, "load reader.read_data", true, "read", 2},
    {"apply", JobPart::kLoad, "load planner.commit_objects", true, "apply", 2},
};

std::vector<std::vector<int>> singles() { return {{0}, {1}, {2}, {3}}; }
std::vector<std::vector<int>> pairs() { return {{0, 1}, {0, 2}, {0, 3}, {1, 2}, {1, 3}, {2, 3}}; }
std::vector<std::vector<int>> hosts() { return {{0, 1}, {2, 3}}; }

std::vector<Phase> all_phases() {
  std::vector<Phase> all = kSavePhases;
  all.insert(all.end(), kRecoveryPhases.begin(), kRecoveryPhases.end());
  return all;
}

/// `like`, in each of the phases, with each of the victims.
std::vector<Cell> cells(const Cell& like, const std::vector<Phase>& phases,
                        const std::vector<std::vector<int>>& victims) {
  std::vector<Cell> all;
  for (const Phase& phase : phases) {
    for (const std::vector<int>& some : victims) {
      Cell& cell = all.emplace_back(like);
      cell.phase = phase;
      cell.victims = some;
    }
  }
  return all;
}

/// Jobs that run beside each other, in processes that have no threads.
class Jobs {
 public:
  explicit Jobs(const std::vector<Cell>& cells) : cells_(cells) {
    store_ = std::make_unique<Child>(
        [this] {
          const auto store = connect_store(true, 0);
          results_.write(std::to_string(store->getPort()) + "\n");
          std::this_thread::sleep_for(std::chrono::minutes(10));
        },
        std::chrono::minutes(10));
    store_port_ = static_cast<std::uint16_t>(std::stoi(results_.read_line(kKillLimit)));
  }

  void run() {
    while (next_ < cells_.size() || !running_.empty()) {
      while (running_.size() < kAtOnce && next_ < cells_.size()) start(next_++);
      const std::string line = results_.read_line(2 * kKillLimit);
      int index = 0;
      int read = 0;
      CellResult result;
      if (std::sscanf(line.c_str(), "%d %ld %ld %n", &index, &result.step, &result.longest_after_death, &read) < 3) {
        for (const auto& [hanging, job] : running_) ADD_FAILURE() << "hangs: " << to_string(cells_[hanging]);
        break;
      }
      result.wrong = line.substr(static_cast<std::size_t>(read));
      EXPECT_EQ(result.wrong, "") << to_string(cells_[static_cast<std::size_t>(index)]);
      count(result);
      running_.erase(static_cast<std::size_t>(index));
    }
    report();
  }

 private:
  void start(std::size_t index) {
    running_[index] = std::make_unique<Child>(
        [this, index] {
          CellResult result;
          try {
            result = KillJob(cells_[index], store_port_, "job " + std::to_string(index)).run();
          } catch (const std::exception& error) {
            result.wrong = error.what();
          }
          results_.write(c10::str(index, " ", result.step, " ", result.longest_after_death, " ", result.wrong, "\n"));
        },
        2 * kKillLimit);
  }

  void count(const CellResult& result) {
    ++steps_[result.step];
    longest_ = std::max(longest_, result.longest_after_death);
  }

  void report() const {
    std::printf("%zu cells, up to %ld ms after a death", cells_.size(), static_cast<long>(longest_));
    for (const auto& [step, count] : steps_) {
      if (step > 0) std::printf("; %d times step %ld was there", count, static_cast<long>(step));
      if (step == 0) std::printf("; %d times nothing was", count);
    }
    std::printf("\n");
    std::fflush(stdout);
  }

  const std::vector<Cell>& cells_;
  Pipe results_;
  std::unique_ptr<Child> store_;
  std::uint16_t store_port_ = 0;
  std::size_t next_ = 0;
  std::map<std::size_t, std::unique_ptr<Child>> running_;
  std::map<std::int64_t, int> steps_;
  std::int64_t longest_ = 0;
};

void run_cells(const std::vector<Cell>& cells) { Jobs(cells).run(); }

TEST(OwnMemory, AnyRankDies) { run_cells(cells({.copies = 1}, all_phases(), singles())); }

TEST(OwnMemory, AnyTwoRanksDie) { run_cells(cells({.copies = 2}, all_phases(), pairs())); }

TEST(OwnMemory, AnyHostDies) { run_cells(cells({.copies = 1, .ranks_per_host = 2}, all_phases(), hosts())); }

TEST(OwnMemory, OthersGoOnAlone) {
  run_cells(cells({.copies = 1, .comes_back = false}, kSavePhases, {{1}}));
  run_cells(cells({.copies = 2, .comes_back = false}, kSavePhases, {{0, 2}}));
}

TEST(MemoryServers, AnyHostOfOneRankDies) {
  run_cells(cells({.dying = Dying::kTrainersAndServer, .copies = 1, .has_servers = true}, all_phases(), singles()));
}

TEST(MemoryServers, AnyTwoHostsOfOneRankDie) {
  run_cells(cells({.dying = Dying::kTrainersAndServer, .copies = 2, .has_servers = true}, all_phases(), pairs()));
}

TEST(MemoryServers, AnyHostOfTwoRanksDies) {
  run_cells(cells({.dying = Dying::kTrainersAndServer, .copies = 1, .ranks_per_host = 2, .has_servers = true},
                  all_phases(), hosts()));
}

TEST(MemoryServers, TrainersDieAndServersKeepTheirMemory) {
  std::vector<Phase> phases = all_phases();  // but where memory is filled: no server has lost any
  std::erase_if(phases, [](const Phase& phase) { return phase.failing_step == std::string("fill memory"); });
  run_cells(cells({.copies = 1, .ranks_per_host = 2, .has_servers = true}, phases, {{0}, {3}, {0, 1, 2, 3}}));
}

TEST(MemoryServers, AServerDiesAndItsTrainersDoNot) {
  run_cells(cells({.dying = Dying::kServer, .copies = 1, .has_servers = true}, all_phases(), {{1}}));
}

// Copies of rank r are on rank r + 1.
TEST(OwnMemory, MoreDieThanThereAreCopies) {
  std::vector<Cell> all = cells({.copies = 1}, kSavePhases, pairs());
  for (Cell& cell : all) cell.is_fatal = cell.victims != std::vector{0, 2} && cell.victims != std::vector{1, 3};
  run_cells(all);
}

}  // namespace
}  // namespace dcp::test

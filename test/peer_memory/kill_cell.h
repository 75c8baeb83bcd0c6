#pragma once

#include <sys/types.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

// One cell of a matrix: which ranks of a job die, with what, and when.

namespace dcp::test {

inline constexpr int kKillRanks = 4;
/// Of the life of a process, and of each wait for one.
inline constexpr std::chrono::seconds kKillLimit{60};

/// What a job was doing.
enum class JobPart : std::uint8_t { kSave, kAttach, kLoad };

/// A moment in it.
struct Phase {
  const char* name = "";
  JobPart part = JobPart::kSave;
  const char* event = "";  ///< as `Trainer` names it
  /// Whether each rank comes to it: then all that are to die meet there, and die as they enter it. Else they die,
  /// wherever they are, when the first rank enters it.
  bool is_everybodys = false;
  /// Of the step that fails on the others, such as "write"; empty if they succeed.
  const char* failing_step = "";
  /// Which step must be there afterwards; 0: 2 if any memory that is left holds its `.metadata`, else 1.
  std::int64_t wanted = 0;
  bool is_unconnected = false;  ///< before the ranks are connected a death cannot be told from being late
};

/// What dies with the victims.
enum class Dying : std::uint8_t {
  kTrainers,           ///< and their memory with them, if it is their own
  kTrainersAndServer,  ///< of their host
  kServer,             ///< their host's memory server alone
};

struct Cell {
  Phase phase = {};
  std::vector<int> victims = {};
  Dying dying = Dying::kTrainers;
  int copies = 1;
  int ranks_per_host = 1;
  bool has_servers = false;  ///< memory is a server's of each host, not the trainers' own
  bool comes_back = true;    ///< ranks that died are started anew; else the others go on alone
  bool is_fatal = false;     ///< more is lost than the copies make good

  int host_of(int rank) const { return rank / ranks_per_host; }
  int host_count() const { return host_of(kKillRanks - 1) + 1; }
  bool is_victim(int rank) const { return std::find(victims.begin(), victims.end(), rank) != victims.end(); }
  bool kills_trainers() const { return dying != Dying::kServer; }
  bool kills_trainer(int rank) const { return kills_trainers() && is_victim(rank); }
  bool kills_server(int host) const {
    if (!has_servers || dying == Dying::kTrainers) return false;
    return std::any_of(victims.begin(), victims.end(), [&](int rank) { return host_of(rank) == host; });
  }
};

inline std::string to_string(const Cell& cell) {
  std::string text = cell.has_servers ? "mem://" : "own memory";
  text += ", " + std::to_string(cell.copies) + (cell.copies == 1 ? " copy" : " copies");
  text += ", " + std::to_string(cell.ranks_per_host) + " on a host, ";
  text += std::string(cell.phase.name) + ": ";
  for (const int rank : cell.victims) text += std::to_string(rank) + " ";
  const char* const dying[] = {"killed", "killed with their server", "lose their server"};
  text += dying[static_cast<int>(cell.dying)];
  if (!cell.comes_back) text += ", others go on";
  return text;
}

/// What all processes of a job see. In memory that they share.
struct Strike {
  std::atomic<bool> is_armed{false};
  std::atomic<bool> has_begun{false};
  std::atomic<bool> is_over{false};  ///< all victims are dead, but for the one that kills the others
  std::atomic<int> arrived{0};       ///< victims that wait for the others
  std::atomic<int> groups{0};        ///< that communicators and links have made, counted on each rank
  std::atomic<std::int64_t> at{0};   ///< when; the clock is the machine's
  pid_t trainers[kKillRanks] = {};
  pid_t servers[kKillRanks] = {};

  std::chrono::milliseconds elapsed() const {
    using std::chrono::steady_clock;
    if (at == 0) return {};
    return std::chrono::duration_cast<std::chrono::milliseconds>(steady_clock::now().time_since_epoch() -
                                                                 steady_clock::duration(at));
  }
};

}  // namespace dcp::test

#include "test/peer_memory/kill_job.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <new>
#include <stdexcept>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <utility>

#include "test/comm/rank_process.h"
#include "test/memory/unique_socket.h"
#include "torch_dcp/memory/vault_server.h"

namespace dcp::test {
namespace {

constexpr std::int64_t kAfterDeathMs = 2000;
// A machine with other work runs these processes late.
constexpr std::int64_t kBusyMs = 3000;
// Of the link, where ranks die before it is made: that cannot be told from being late.
constexpr std::int64_t kLinkMs = 2000;

void require(bool condition, const std::string& what) {
  if (!condition) throw std::runtime_error(what);
}

bool says(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

KillJob::KillJob(const Cell& cell, std::uint16_t store_port, std::string name)
    : cell_(cell), store_port_(store_port), name_(std::move(name)) {
  void* const shared = ::mmap(nullptr, sizeof(Strike), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) std::abort();
  strike_ = new (shared) Strike;
  servers_.resize(kKillRanks);
  trainers_.resize(kKillRanks);
  ends_.resize(kKillRanks);
  for (int host = 0; cell_.has_servers && host < cell_.host_count(); ++host) {
    sockets_.push_back(unique_socket());
    start_server(host);
  }
  for (int slot = 0; slot < kKillRanks; ++slot) {
    all_.push_back(slot);
    if (!cell_.kills_trainer(slot)) survivors_.push_back(slot);
    start_trainer(slot);
  }
}

KillJob::~KillJob() {
  trainers_.clear();
  servers_.clear();
  ::munmap(strike_, sizeof(Strike));
}

void KillJob::start_server(int host) {
  servers_[host].reset();
  const Pipe ready;
  servers_[host] = std::make_unique<Child>(
      [&] {
        VaultServer server({sockets_[host], "default", std::uint64_t{64} << 20, 16, {}});
        strike_->servers[host] = ::getpid();
        ready.write("ready\n");
        server.run();
      },
      kKillLimit);
  require(ready.read_line(kKillLimit) == "ready", "a memory server does not start");
}

void KillJob::start_trainer(int slot) {
  trainers_[slot].reset();
  ends_[slot] = std::make_unique<Ends>();
  trainers_[slot] = std::make_unique<Child>(
      [&] {
        const auto store = c10::make_intrusive<c10d::PrefixStore>(name_, connect_store(false, store_port_));
        const std::string server = cell_.has_servers ? sockets_[cell_.host_of(slot)] : std::string();
        Trainer(cell_, *strike_, slot, store, server).run(ends_[slot]->orders, ends_[slot]->told);
      },
      kKillLimit);
}

void KillJob::bury(const std::vector<int>& slots) {
  // All of them, before the first new process has one of their numbers.
  for (const int slot : slots) {
    if (cell_.kills_trainers()) trainers_[slot].reset();
    if (cell_.kills_server(cell_.host_of(slot))) servers_[cell_.host_of(slot)].reset();
  }
  for (int host = 0; cell_.has_servers && host < cell_.host_count(); ++host) {
    if (servers_[host]) continue;
    start_server(host);
    reopens_ = reopens_ || !cell_.kills_trainers();
  }
}

void KillJob::start_missing() {
  for (const int slot : all_) {
    if (!trainers_[slot]) start_trainer(slot);
  }
}

std::vector<int> KillJob::lost_before() const {
  if (cell_.victims.size() != 2 || cell_.ranks_per_host > 1) return cell_.victims;
  // The other one dies in the recovery, and this one once more.
  return {cell_.victims[0]};
}

void KillJob::tell_meet(const std::vector<int>& slots) {
  ++meeting_;
  strike_->groups = 0;
  const bool is_late = strike_->is_armed && cell_.phase.is_unconnected;
  for (std::size_t rank = 0; rank < slots.size(); ++rank) {
    tell(slots[rank], {.verb = "meet",
                       .meeting = meeting_,
                       .rank = static_cast<int>(rank),
                       .size = static_cast<int>(slots.size()),
                       .reopens = reopens_ && cell_.is_victim(slots[rank]),
                       .deadline_ms = is_late ? kLinkMs : 20000});
  }
}

void KillJob::tell(const std::vector<int>& slots, const Order& order) {
  for (const int slot : slots) tell(slot, order);
}

std::vector<Answer> KillJob::answers(const std::vector<int>& slots) {
  std::vector<Answer> all;
  for (const int slot : slots) all.push_back(answer_of(ends_[slot]->told.read_line(kKillLimit)));
  return all;
}

void KillJob::require_all_ok(const std::vector<int>& slots, const std::string& doing) {
  for (const Answer& one : answers(slots)) require(one.outcome == "ok", doing + ": " + one.outcome);
}

CellResult KillJob::run() {
  try {
    tell_meet(all_);
    require_all_ok(all_, "first meeting");
    tell(all_, {.verb = "save", .step = 1});
    require_all_ok(all_, "save of step 1");
    if (cell_.phase.part == JobPart::kSave) {
      strike_->is_armed = true;
      tell(all_, {.verb = "save", .step = 2});
    } else {
      begin_recovery();
    }
    check_survivors(answers(survivors_));
    wait_for_strike();
    bury(cell_.victims);
    if (cell_.comes_back) start_missing();
    check_recovery(cell_.comes_back ? all_ : survivors_);
  } catch (const std::exception& error) {
    result_.wrong = error.what();
  }
  return result_;
}

void KillJob::begin_recovery() {
  tell(all_, {.verb = "save", .step = 2});
  require_all_ok(all_, "save of step 2");
  bury(lost_before());
  start_missing();
  strike_->is_armed = true;
  tell_meet(all_);
  if (cell_.phase.part == JobPart::kAttach) return;
  require_all_ok(all_, "meeting after a loss");
  tell(all_, {.verb = "load"});
}

void KillJob::wait_for_strike() {
  const auto until = std::chrono::steady_clock::now() + kKillLimit / 2;
  while (!strike_->is_over) {
    require(std::chrono::steady_clock::now() < until, "nobody came to the phase");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  strike_->is_armed = false;
}

void KillJob::check_survivors(const std::vector<Answer>& told) {
  const std::string failing = cell_.phase.failing_step;
  const std::int64_t limit = kAfterDeathMs + kBusyMs + (cell_.phase.is_unconnected ? kLinkMs : 0);
  for (const Answer& one : told) {
    require(one.outcome == told[0].outcome, "survivors differ: " + told[0].outcome + "; " + one.outcome);
    require(one.elapsed_ms <= limit, c10::str(one.elapsed_ms, " ms after the death: ", one.outcome));
    result_.longest_after_death = std::max(result_.longest_after_death, one.elapsed_ms);
    is_saved_ = is_saved_ || (cell_.phase.part == JobPart::kSave && one.outcome == "ok");
    if (one.outcome == "ok" && (failing.empty() || !cell_.kills_trainers())) continue;
    // A rank whose memory server is gone says so in the first step that needs it.
    if (cell_.kills_trainers()) require(!failing.empty(), "a survivor's call: " + one.outcome);
    require(says(one.outcome, "CheckpointError " + (cell_.kills_trainers() ? failing + ": " : "")),
            "a survivor's call: " + one.outcome);
    const bool is_named = std::any_of(cell_.victims.begin(), cell_.victims.end(),
                                      [&](int rank) { return says(one.outcome, "rank " + std::to_string(rank)); });
    require(is_named, "no victim is named: " + one.outcome);
  }
}

void KillJob::check_recovery(const std::vector<int>& slots) {
  tell_meet(slots);
  const std::vector<Answer> met = answers(slots);
  std::int64_t wanted = 0;
  for (const Answer& one : met) wanted = std::max(wanted, one.held);
  require(cell_.is_fatal || wanted >= 1, "no memory holds any .metadata");
  require(cell_.is_fatal || cell_.phase.wanted == 0 || cell_.phase.wanted == wanted,
          c10::str("the newest .metadata is of step ", wanted));
  require(cell_.is_fatal || !is_saved_ || wanted == 2, "a save has returned, and its .metadata is not there");
  if (cell_.is_fatal) wanted = 0;
  for (const Answer& one : met) {
    require(one.outcome == "ok", "meeting after the deaths: " + one.outcome);
    require(one.step == wanted, c10::str("found step ", one.step, " instead of ", wanted, "; lost: ", one.said));
  }
  tell(slots, {.verb = "load"});
  if (cell_.is_fatal) {
    check_loss(answers(slots));
  } else {
    check_loaded(answers(slots), wanted);
  }
  result_.step = wanted;
  tell(slots, {.verb = "save", .step = 3});
  require_all_ok(slots, "save of step 3");
  tell(slots, {.verb = "load"});
  check_loaded(answers(slots), 3);
}

void KillJob::check_loaded(const std::vector<Answer>& told, std::int64_t step) {
  for (const Answer& one : told) {
    require(one.outcome == "ok", c10::str("load of step ", step, ": ", one.outcome));
    require(one.step == step, c10::str("loaded step ", one.step, " instead of ", step));
  }
}

void KillJob::check_loss(const std::vector<Answer>& told) {
  for (const Answer& one : told) {
    require(one.outcome == told[0].outcome, "ranks differ: " + told[0].outcome + "; " + one.outcome);
    require(says(one.outcome, "CheckpointError metadata: ") && says(one.outcome, "incomplete checkpoint"),
            "a load of what is lost: " + one.outcome);
    require(says(one.outcome, "nobody holds "), "what is missing is not named: " + one.outcome);
  }
}

}  // namespace dcp::test

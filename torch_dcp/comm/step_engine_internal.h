#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "torch_dcp/comm/byte_exchange_internal.h"
#include "torch_dcp/comm/communicator.h"
#include "torch_dcp/comm/rendezvous_store_internal.h"
#include "torch_dcp/comm/session_internal.h"

namespace dcp {

struct StepEngineOptions {
  int rank = 0;
  int size = 1;
  int coordinator = 0;
  std::chrono::milliseconds deadline{0};
  DeadlineOptions deadlines;
  std::chrono::milliseconds grace{0};
  std::chrono::milliseconds watch_interval{0};
};

/// Runs rank steps over a group of its own, so that every rank returns or every rank
/// throws the same error, and none waits for ever.
///
/// A step in generation G:
///
///  1. Each rank runs its own part, and meanwhile makes the group if there is none yet: once
///     they are connected, the others notice at once when a rank dies. One that fails
///     marks the step as cancelled in the store, for those still at work, and goes on with
///     its failure in an envelope.
///  2. Envelopes go to the coordinator, which merges them (failures come first) and
///     sends the outcome to each rank, which takes it in.
///  3. Each rank acknowledges. The coordinator then writes the step's decision,
///     'complete', into the store and sends word. Whoever hears of it returns.
///
/// A rank that meets an error in 2 or 3, or whose deadline passes, ends the generation:
/// it marks the generation as broken, writes what it saw and drops its group, which
/// wakes those that wait for it; the others' watchers see the mark. Then it looks for the
/// step's decision. One rank judges: it reads what all ranks wrote, once all of them have
/// been counted or the grace is over, and decides the step with the failures that follow.
/// The first decision holds for all: a rank that lost its group in 3 finds 'complete' and
/// returns, and a coordinator that came too late finds the failures and throws. All ranks
/// that threw meet again in generation G + 1, with a new group.
///
/// So but for the judge a rank makes a number of calls to the store that does not grow with
/// the group: the store serves all of them.
///
/// A rank that gives the store up throws 'outcome unknown'; should the store come back, the
/// call that was left behind writes that as the decision, unless there is one, for a rank
/// that was stopped together with the store.
///
/// So generations and steps count alike on all ranks. A rank that arrives late in a step
/// finds it decided, throws the same error, and is in time for later ones.
///
/// Every call to group or store runs on a thread that can be left behind.
class StepEngine {
 public:
  /// Makes the group of a generation; runs on a thread that may be left behind.
  using MakeExchange = std::function<std::shared_ptr<ByteExchange>(std::int64_t generation, RendezvousLimits limits)>;

  StepEngine(StepEngineOptions options, std::shared_ptr<StepStore> store, MakeExchange make_exchange);
  /// Tells the others that this rank has left.
  ~StepEngine();
  StepEngine(const StepEngine&) = delete;
  StepEngine& operator=(const StepEngine&) = delete;

  /// \throws dcp::CheckpointError alike on every rank.
  void run(const std::string& label, const StepParts& parts);

  const Session& session() const { return *session_; }
  const StepEngineOptions& options() const { return options_; }

 private:
  struct Attempt;
  struct Making;

  Envelope run_local(Attempt& attempt);
  void exchange(Attempt& attempt, Envelope mine);
  std::vector<Envelope> merge(std::vector<Envelope> gathered, const StepParts& parts) const;
  void take_in(Attempt& attempt, Envelope answer);
  void agree(Attempt& attempt);

  void begin_exchange(const Attempt& attempt);
  void ensure_exchange(const Attempt& attempt);
  void await(std::function<void()> work, const Attempt& attempt) const;
  void await(BoundedCall& call, const Attempt& attempt) const;

  Report observe(const Attempt& attempt) const;
  void end_generation(Attempt& attempt, const Report& report);
  Decision resolve(const Attempt& attempt, const Report& report);
  void drop_exchange();

  bool is_coordinator() const { return options_.rank == options_.coordinator; }

  StepEngineOptions options_;
  std::shared_ptr<StepStore> store_;
  std::shared_ptr<Session> session_;
  MakeExchange make_exchange_;
  std::shared_ptr<Making> making_;  // of the group, until it is `exchange_`
  std::shared_ptr<ByteExchange> exchange_;
  std::unique_ptr<Watcher> watcher_;
};

}  // namespace dcp

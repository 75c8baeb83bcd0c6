#include "torch_dcp/comm/step_engine_internal.h"

#include <algorithm>
#include <atomic>
#include <new>
#include <thread>
#include <utility>

namespace dcp {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// How much longer than its deadline a call into the group may run: the group's own
// time-out shall come first.
constexpr milliseconds kDeadlineSlack{300};
// How long a call goes on after the generation was seen to be broken: the reset
// connection normally ends it sooner.
constexpr milliseconds kBreakSlack{200};
// How long a store may take to answer before it counts as gone; it serves all ranks at once.
constexpr milliseconds kStorePatience{1000};
constexpr milliseconds kStorePatiencePerRank{4};
// How long giving up a group, or leaving, may hold a rank up.
constexpr milliseconds kDropPatience{500};
// Up to this many ranks each looks whether all have been counted; in larger groups the
// coordinator does so, and the others only wait for the decision.
constexpr int kSmallGroup = 16;

struct Inquest {
  Position at;
  int rank;
  int size;
  int coordinator;
  milliseconds deadline;
  milliseconds grace;
};

std::vector<RankSign> read_signs(StepStore& store, const Inquest& inquest) {
  std::vector<RankSign> signs(inquest.size);
  for (int rank = 0; rank < inquest.size; ++rank) signs[rank] = store.sign(inquest.at.generation, rank);
  return signs;
}

// Waits until the step is decided, by this rank if it is the one that judges.
//
// In round 0, before the grace is over, that takes the signs of all ranks. From then on
// there is a round each grace, lest the judge of the last one died over it.
Decision hold(StepStore& store, const Inquest& inquest) {
  const milliseconds longest_pause = milliseconds(20) + milliseconds(inquest.size / 4);
  const bool counts = inquest.size <= kSmallGroup || inquest.rank == inquest.coordinator;
  const TimePoint start = steady_clock::now();
  int round = 0;
  for (milliseconds pause{2};; pause = std::min(2 * pause, longest_pause)) {
    if (auto decided = store.decision(inquest.at)) return *decided;
    const auto waited = steady_clock::now() - start;
    if (round == 0 && waited >= inquest.grace) round = 1;
    const bool is_due = round == 0 ? counts && store.settled_count(inquest.at.generation) >= inquest.size
                                   : waited >= round * inquest.grace;
    if (is_due && store.elect(inquest.at, round++)) {
      return store.decide(inquest.at, judge(read_signs(store, inquest), inquest.at, inquest.deadline, inquest.grace));
    }
    std::this_thread::sleep_for(pause);
  }
}

// The same words on every rank, although each saw something else.
Decision undecidable(const std::string& label, bool is_gone) {
  Decision decision{false, label, {}};
  decision.failures.push_back(
      {-1, is_gone ? ErrorKind::kComm : ErrorKind::kDeadline,
       c10::str("outcome unknown: the group's exchange in step '", label, "' failed, and the store ",
                is_gone ? "is gone with the process that held it"
                        : "does not answer: the process that holds it is stopped or cannot be reached",
                ", so no rank can be named"),
       DCP_WHERE});
  return decision;
}

}  // namespace

struct StepEngine::Attempt {
  const StepParts& parts;
  Position at;
  milliseconds deadline;
  TimePoint until{};
  const char* waits_for = "";
  // What failed in this rank's own part of the step.
  std::optional<RankFailure> early = std::nullopt;
  // What the step came to, once this rank has taken it in: no failures is success.
  std::optional<std::vector<RankFailure>> outcome = std::nullopt;
  // Set when this rank could not take its answer in.
  std::optional<RankFailure> own_failure = std::nullopt;
};

// A group in the making.
struct StepEngine::Making {
  // Shared with the call, which may be left behind.
  struct Limits {
    std::atomic<TimePoint> until{TimePoint::max()};
    std::atomic<bool> is_established{false};
    std::atomic<int> turn{0};
  };

  std::shared_ptr<Limits> limits = std::make_shared<Limits>();
  std::shared_ptr<std::shared_ptr<ByteExchange>> made = std::make_shared<std::shared_ptr<ByteExchange>>();
  std::optional<BoundedCall> call;
};

StepEngine::StepEngine(StepEngineOptions options, std::shared_ptr<StepStore> store, MakeExchange make_exchange)
    : options_(options),
      store_(std::move(store)),
      session_(std::make_shared<Session>(store_, options_.rank)),
      make_exchange_(std::move(make_exchange)),
      watcher_(std::make_unique<Watcher>(session_, options_.watch_interval)) {}

StepEngine::~StepEngine() {
  watcher_.reset();
  try {
    const auto leave = [store = store_, session = session_, rank = options_.rank] {
      const std::int64_t generation = session->position().generation;
      store->leave(rank);
      store->announce_break(generation);
      if (session->settle(generation)) store->count_settled(generation);
    };
    run_bounded(leave, steady_clock::now() + session_->rest_of(kDropPatience));
  } catch (...) {
    // The store is gone; then the others notice the closed connections.
  }
  drop_exchange();
}

void StepEngine::run(const std::string& label, const StepParts& parts) {
  Attempt attempt{parts, session_->begin_step(label), options_.deadlines.of(label, options_.deadline)};
  struct EndStep {
    Session& session;
    ~EndStep() { session.end_step(); }
  } end_step{*session_};

  try {
    begin_exchange(attempt);
  } catch (...) {
    // No thread could be started. ensure_exchange() tries again, and its failure is the step's.
  }
  Envelope mine = run_local(attempt);
  session_->enter(Phase::kWaiting);
  attempt.until = steady_clock::now() + attempt.deadline;
  try {
    exchange(attempt, std::move(mine));
    agree(attempt);
  } catch (...) {
    end_generation(attempt, observe(attempt));
  }
  if (!attempt.outcome->empty()) throw CheckpointError(label, *attempt.outcome, DCP_WHERE);
}

Envelope StepEngine::run_local(Attempt& attempt) {
  if (session_->broken()) return {};
  Envelope mine;
  try {
    if (attempt.parts.local) mine.body = attempt.parts.local();
    return mine;
  } catch (...) {
    attempt.early = current_failure(options_.rank);
    mine = failure_envelope({*attempt.early});
  }
  try {
    run_bounded([store = store_, at = attempt.at] { store->cancel(at); },
                steady_clock::now() + session_->rest_of(kDropPatience));
  } catch (...) {
    // Only spares the others needless work; the envelope carries the failure.
  }
  return mine;
}

void StepEngine::exchange(Attempt& attempt, Envelope mine) {
  attempt.waits_for = "while the group was being made";
  ensure_exchange(attempt);
  attempt.waits_for = is_coordinator() ? "waiting for the ranks' parts" : "bringing its part to the coordinator";
  auto envelopes = std::make_shared<std::vector<Envelope>>(1);
  envelopes->front() = std::move(mine);
  await([envelopes, exchange = exchange_, stamp = make_stamp(attempt.at.step, attempt.at.label),
         until = attempt.until] { *envelopes = exchange->gather(std::move(envelopes->front()), stamp, until); },
        attempt);

  if (is_coordinator()) {
    session_->enter(Phase::kGlobal);
    *envelopes = merge(std::move(*envelopes), attempt.parts);
    session_->enter(Phase::kWaiting);
  }
  attempt.waits_for = is_coordinator() ? "bringing the ranks their answers" : "waiting for the coordinator's answer";
  auto answer = std::make_shared<Envelope>();
  await(
      [envelopes, answer, exchange = exchange_, scatter = attempt.parts.answer_per_rank, until = attempt.until] {
        if (scatter) {
          *answer = exchange->scatter(std::move(*envelopes), until);
        } else {
          *answer = exchange->broadcast(envelopes->empty() ? Envelope() : std::move(envelopes->front()), until);
        }
      },
      attempt);
  take_in(attempt, std::move(*answer));
}

std::vector<Envelope> StepEngine::merge(std::vector<Envelope> gathered, const StepParts& parts) const {
  const std::size_t answer_count = parts.answer_per_rank ? static_cast<std::size_t>(options_.size) : 1;
  std::vector<RankFailure> failures = collect_failures(gathered);
  if (failures.empty()) {
    try {
      std::vector<Bytes> payloads;
      payloads.reserve(gathered.size());
      for (Envelope& envelope : gathered) payloads.push_back(std::move(envelope.body));
      std::vector<Bytes> answers = parts.global ? parts.global(std::move(payloads)) : std::vector<Bytes>(answer_count);
      DCP_CHECK(answers.size() == answer_count, kInvalidArgument, "the coordinator's part of the step gave ",
                answers.size(), " answers instead of ", answer_count);
      std::vector<Envelope> envelopes(answer_count);
      for (std::size_t i = 0; i < answer_count; ++i) envelopes[i].body = std::move(answers[i]);
      return envelopes;
    } catch (...) {
      failures = {current_failure(options_.rank)};
    }
  }
  return std::vector<Envelope>(answer_count, failure_envelope(failures));
}

void StepEngine::take_in(Attempt& attempt, Envelope answer) {
  if (answer.failed) {
    ByteReader reader(answer.body);
    attempt.outcome = decode_failures(reader);
    return;
  }
  session_->enter(Phase::kReceive);
  try {
    if (attempt.parts.receive) attempt.parts.receive(std::move(answer.body));
  } catch (...) {
    attempt.own_failure = current_failure(options_.rank);
    throw;
  }
  session_->enter(Phase::kWaiting);
  attempt.outcome.emplace();
}

void StepEngine::agree(Attempt& attempt) {
  attempt.waits_for = is_coordinator() ? "waiting until all ranks have their answers, or for the store"
                                       : "waiting for the coordinator's word that all ranks have their answers";
  auto decision = std::make_shared<Decision>();
  await(
      [decision, exchange = exchange_, store = store_, at = attempt.at, is_coordinator = is_coordinator(),
       until = attempt.until] {
        exchange->gather({}, make_stamp(at.step, at.label), until);
        if (is_coordinator) *decision = store->decide(at, {true, at.label, {}});
        if (decision->complete) exchange->broadcast({}, until);
      },
      attempt);
  DCP_CHECK(decision->complete, kCancelled, "another rank ended the step");
}

void StepEngine::begin_exchange(const Attempt& attempt) {
  if (exchange_ || session_->broken()) return;
  auto making = std::make_shared<Making>();
  const auto check = [limits = making->limits, session = session_, store = store_] {
    // Looking for those that left costs a call to the store: not at every turn.
    constexpr int kTurns = 8;
    if (limits->is_established) return false;
    DCP_CHECK(!session->broken(), kCancelled, "the group's exchange has failed elsewhere");
    DCP_CHECK(steady_clock::now() < limits->until.load(), kDeadline, "not all ranks came to make the group");
    if (++limits->turn % kTurns == 0) DCP_CHECK(!store->anyone_left(), kComm, "a rank has left the group");
    return true;
  };
  making->call.emplace([made = making->made, limits = making->limits, check, make = make_exchange_, store = store_,
                        generation = attempt.at.generation, wait = attempt.deadline] {
    // A rank that comes late must not look for the others where they were.
    DCP_CHECK(!store->is_broken(generation), kCancelled, "the group's exchange has failed elsewhere");
    *made = make(generation, {check, wait});
    limits->is_established = true;
  });
  making_ = std::move(making);
}

void StepEngine::ensure_exchange(const Attempt& attempt) {
  DCP_CHECK(!session_->broken(), kCancelled, "the group's exchange has failed elsewhere");
  if (exchange_) return;
  if (!making_) begin_exchange(attempt);
  DCP_CHECK(making_, kCancelled, "the group's exchange has failed elsewhere");
  making_->limits->until = attempt.until;
  await(*making_->call, attempt);
  exchange_ = std::move(*making_->made);
  making_ = nullptr;
}

void StepEngine::await(std::function<void()> work, const Attempt& attempt) const {
  BoundedCall call(std::move(work));
  await(call, attempt);
}

void StepEngine::await(BoundedCall& call, const Attempt& attempt) const {
  std::optional<TimePoint> broken_since;
  const auto give_up = [&] {
    if (!session_->broken()) return false;
    if (!broken_since) broken_since = steady_clock::now();
    return steady_clock::now() - *broken_since > kBreakSlack;
  };
  if (call.wait(attempt.until + kDeadlineSlack, give_up)) return;
  DCP_CHECK(!broken_since, kCancelled, "the group's exchange has failed elsewhere");
  DCP_THROW(kDeadline, "the group or its store does not answer");
}

Report StepEngine::observe(const Attempt& attempt) const {
  Report report;
  report.position = session_->position();
  if (attempt.early && attempt.early->kind != ErrorKind::kCancelled) report.early = attempt.early;
  if (attempt.own_failure) {
    report.observed = Observed::kOwn;
    report.failure = *attempt.own_failure;
    return report;
  }
  report.failure = current_failure(options_.rank);
  const auto lost = [&] {
    report.observed = Observed::kLost;
    report.failure.kind = ErrorKind::kComm;
  };
  try {
    throw;
  } catch (const Error& error) {
    switch (error.kind()) {
      case ErrorKind::kCancelled:
        report.observed = Observed::kFollowed;
        break;
      case ErrorKind::kDeadline:
        report.observed = Observed::kTimeout;
        break;
      case ErrorKind::kComm:
        lost();
        break;
      default:
        report.observed = Observed::kOwn;
        break;
    }
  } catch (const std::bad_alloc&) {
    report.observed = Observed::kOwn;
  } catch (...) {
    lost();
  }
  // The group says in its own words that its time-out came; the clock says it surely.
  const milliseconds margin = std::min(milliseconds(50), attempt.deadline / 10);
  if (report.observed == Observed::kLost && steady_clock::now() >= attempt.until - margin) {
    report.observed = Observed::kTimeout;
    report.failure.kind = ErrorKind::kDeadline;
  }
  return report;
}

void StepEngine::end_generation(Attempt& attempt, const Report& report) {
  const Decision decision = resolve(attempt, report);
  if (decision.complete) {
    // Every rank has the outcome; only word of that was lost. The next step finds the
    // generation broken.
    DCP_CHECK(attempt.outcome, kInternal, "step '", attempt.at.label, "' was completed without this rank");
    return;
  }
  session_->begin_generation();
  CheckpointError error(decision.label, decision.failures, DCP_WHERE);
  if (decision.failures.front().rank < 0) {
    error.add_context(c10::str("rank ", options_.rank, " saw, ", attempt.waits_for, ": ", report.failure.message));
  }
  throw error;
}

Decision StepEngine::resolve(const Attempt& attempt, const Report& report) {
  const Position& at = attempt.at;
  const Inquest inquest{at, options_.rank, options_.size, options_.coordinator, attempt.deadline, options_.grace};
  const milliseconds patience = kStorePatience + options_.size * kStorePatiencePerRank;
  const bool is_first = !session_->broken();
  session_->note_break(at.generation);
  auto held = std::make_shared<Decision>(undecidable(at.label, true));
  bool has_answered = false;
  try {
    const auto is_given_up = std::make_shared<std::atomic<bool>>(false);
    const auto tell = [=, store = store_, session = session_, rank = options_.rank] {
      if (is_first) store->announce_break(at.generation);
      if (!*is_given_up) store->write_report(at.generation, rank, report);
      if (*is_given_up) {
        store->decide(at, undecidable(at.label, false));
      } else if (session->settle(at.generation)) {
        store->count_settled(at.generation);
      }
    };
    has_answered = run_bounded(tell, steady_clock::now() + session_->rest_of(patience));
    *is_given_up = !has_answered;
    drop_exchange();
    if (has_answered) {
      const auto ask = [held, store = store_, inquest] { *held = hold(*store, inquest); };
      // Long enough for a second judge, should the first one die over it.
      has_answered = run_bounded(ask, steady_clock::now() + 2 * options_.grace + patience);
    }
    // A call that was left behind may write to `held` at any time.
    if (!has_answered) held = std::make_shared<Decision>(undecidable(at.label, false));
  } catch (...) {
    // The store is gone too, which is what `held` says from the beginning.
  }
  drop_exchange();
  return std::move(*held);
}

void StepEngine::drop_exchange() {
  if (making_) {
    making_->limits->until = TimePoint::min();  // ends it at its next wait
    if (making_->limits->is_established) exchange_ = std::move(*making_->made);
    making_ = nullptr;
  }
  if (!exchange_) return;
  // Destroying a group waits for its operations, perhaps until their time-out.
  auto last = std::make_shared<std::shared_ptr<ByteExchange>>(std::move(exchange_));
  exchange_ = nullptr;
  try {
    run_bounded([last] { last->reset(); }, steady_clock::now() + kDropPatience);
  } catch (...) {
    // No thread could be started: then the group is destroyed here, when `last` goes.
  }
}

}  // namespace dcp

#include "torch_dcp/comm/step_engine_internal.h"

#include <algorithm>
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
// How long a store may take to answer before it counts as gone.
constexpr milliseconds kStorePatience{3000};
// How long giving up a group, or leaving, may hold a rank up.
constexpr milliseconds kDropPatience{500};
// Up to this many ranks each looks through all reports at once; in larger groups the
// coordinator does so, and others only if it does not.
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

milliseconds turn(const Inquest& inquest) {
  if (inquest.size <= kSmallGroup || inquest.rank == inquest.coordinator) return milliseconds(0);
  const int place = inquest.rank < inquest.coordinator ? inquest.rank : inquest.rank - 1;
  return inquest.grace / 2 + milliseconds(50) * std::min(place, 8);
}

// Waits until the step is decided, by another rank or by what all ranks have written.
Decision hold(StepStore& store, const Inquest& inquest) {
  const TimePoint start = steady_clock::now();
  const TimePoint my_turn = start + turn(inquest);
  for (milliseconds pause{2};; pause = std::min(2 * pause, milliseconds(20))) {
    if (auto decided = store.decision(inquest.at)) return *decided;
    const TimePoint now = steady_clock::now();
    const bool over = now >= start + inquest.grace;
    if (now >= my_turn) {
      const std::vector<RankSign> signs = read_signs(store, inquest);
      if (over || std::all_of(signs.begin(), signs.end(), is_settled)) {
        return store.decide(inquest.at, judge(signs, inquest.at, inquest.deadline, inquest.grace));
      }
    }
    std::this_thread::sleep_for(pause);
  }
}

// The same words on every rank, although each saw something else.
Decision undecidable(const std::string& label, bool timed_out) {
  Decision decision{false, label, {}};
  decision.failures.push_back(
      {-1, timed_out ? ErrorKind::kDeadline : ErrorKind::kComm,
       "the group's exchange failed and its store does not answer: the process that holds the store is gone or "
       "stopped, so no rank can be named",
       DCP_WHERE});
  return decision;
}

}  // namespace

struct StepEngine::Attempt {
  const StepParts& parts;
  Position at;
  TimePoint until;
  // What the step came to, once this rank has taken it in: no failures is success.
  std::optional<std::vector<RankFailure>> outcome;
  // Set when this rank could not take its answer in.
  std::optional<RankFailure> own_failure;
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
    const auto leave = [store = store_, rank = options_.rank, generation = session_->position().generation] {
      store->leave(rank);
      store->announce_break(generation);
    };
    run_bounded(leave, steady_clock::now() + kDropPatience);
  } catch (...) {
    // The store is gone; then the others notice the closed connections.
  }
  drop_exchange();
}

void StepEngine::run(const std::string& label, const StepParts& parts) {
  Attempt attempt{parts, session_->begin_step(label), {}, {}, {}};
  struct EndStep {
    Session& session;
    ~EndStep() { session.end_step(); }
  } end_step{*session_};

  Envelope mine = run_local(attempt);
  session_->enter(Phase::kWaiting);
  attempt.until = steady_clock::now() + options_.deadline;
  try {
    exchange(attempt, std::move(mine));
    agree(attempt);
  } catch (...) {
    end_generation(attempt, observe(attempt));
  }
  if (!attempt.outcome->empty()) throw CheckpointError(label, *attempt.outcome, DCP_WHERE);
}

Envelope StepEngine::run_local(const Attempt& attempt) {
  if (session_->broken()) return {};
  Envelope mine;
  try {
    if (attempt.parts.local) mine.body = attempt.parts.local();
    return mine;
  } catch (...) {
    mine = failure_envelope({current_failure(options_.rank)});
  }
  try {
    run_bounded([store = store_, at = attempt.at] { store->cancel(at); }, steady_clock::now() + kDropPatience);
  } catch (...) {
    // Only spares the others needless work; the envelope carries the failure.
  }
  return mine;
}

void StepEngine::exchange(Attempt& attempt, Envelope mine) {
  ensure_exchange(attempt);
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

void StepEngine::ensure_exchange(const Attempt& attempt) {
  DCP_CHECK(!session_->broken(), kCancelled, "the group's exchange has failed elsewhere");
  if (exchange_) return;
  auto established = std::make_shared<std::atomic<bool>>(false);
  auto made = std::make_shared<std::shared_ptr<ByteExchange>>();
  const auto limits = rendezvous_limits(attempt.until, established);
  await(
      [=, make = make_exchange_, store = store_, generation = attempt.at.generation] {
        // A rank that comes late must not look for the others where they were.
        DCP_CHECK(!store->is_broken(generation), kCancelled, "the group's exchange has failed elsewhere");
        *made = make(generation, limits);
        *established = true;
      },
      attempt);
  exchange_ = std::move(*made);
}

RendezvousLimits StepEngine::rendezvous_limits(TimePoint until, std::shared_ptr<std::atomic<bool>> established) const {
  // Looking for those that left costs a call to the store: not at every turn.
  constexpr int kTurns = 8;
  auto turn = std::make_shared<std::atomic<int>>(0);
  const auto check = [=, session = session_, store = store_] {
    if (*established) return;
    DCP_CHECK(!session->broken(), kCancelled, "the group's exchange has failed elsewhere");
    DCP_CHECK(steady_clock::now() < until, kDeadline, "not all ranks came to make the group");
    if (++*turn % kTurns == 0) {
      DCP_CHECK(!store->anyone_left(), kComm, "a rank has left the group");
    }
  };
  return {check, options_.deadline};
}

void StepEngine::await(std::function<void()> work, const Attempt& attempt) const {
  std::optional<TimePoint> broken_since;
  const auto give_up = [&] {
    if (!session_->broken()) return false;
    if (!broken_since) broken_since = steady_clock::now();
    return steady_clock::now() - *broken_since > kBreakSlack;
  };
  if (run_bounded(std::move(work), attempt.until + kDeadlineSlack, give_up)) return;
  DCP_CHECK(!broken_since, kCancelled, "the group's exchange has failed elsewhere");
  DCP_THROW(kDeadline, "the group or its store does not answer");
}

Report StepEngine::observe(const Attempt& attempt) const {
  Report report;
  report.position = session_->position();
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
  const milliseconds margin = std::min(milliseconds(50), options_.deadline / 10);
  if (report.observed == Observed::kLost && steady_clock::now() >= attempt.until - margin) {
    report.observed = Observed::kTimeout;
    report.failure.kind = ErrorKind::kDeadline;
  }
  return report;
}

void StepEngine::end_generation(Attempt& attempt, const Report& report) {
  const std::optional<Decision> decided = resolve(attempt.at, report);
  if (decided && decided->complete) {
    // Every rank has the outcome; only word of that was lost. The next step finds the
    // generation broken.
    DCP_CHECK(attempt.outcome, kInternal, "step '", attempt.at.label, "' was completed without this rank");
    return;
  }
  session_->begin_generation();
  const Decision decision = decided ? *decided : undecidable(attempt.at.label, report.observed == Observed::kTimeout);
  CheckpointError error(decision.label, decision.failures, DCP_WHERE);
  if (!decided) error.add_context(c10::str("this rank saw: ", report.failure.message));
  throw error;
}

std::optional<Decision> StepEngine::resolve(const Position& at, const Report& report) {
  const Inquest inquest{at, options_.rank, options_.size, options_.coordinator, options_.deadline, options_.grace};
  const TimePoint until = steady_clock::now() + options_.grace + kStorePatience;
  session_->note_break(at.generation);
  std::optional<Decision> decision;
  try {
    const auto tell = [store = store_, at, rank = options_.rank, report] {
      store->write_report(at.generation, rank, report);
      store->announce_break(at.generation);
    };
    const bool told = run_bounded(tell, steady_clock::now() + kStorePatience);
    drop_exchange();
    auto held = std::make_shared<Decision>();
    if (told && run_bounded([held, store = store_, inquest] { *held = hold(*store, inquest); }, until)) {
      decision = std::move(*held);
    }
  } catch (...) {
    // The store is gone too: the caller reports that when there is no decision.
  }
  drop_exchange();
  return decision;
}

void StepEngine::drop_exchange() {
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

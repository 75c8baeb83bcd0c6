#include "torch_dcp/comm/session_internal.h"

#include <algorithm>
#include <utility>

namespace dcp {

Position Session::position() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return position_;
}

Position Session::begin_step(const std::string& label) {
  const std::lock_guard<std::mutex> lock(mutex_);
  DCP_CHECK(position_.phase == Phase::kBetweenSteps, kState, "step '", label, "' was started inside step '",
            position_.label, "': a communicator serves one step at a time");
  ++position_.step;
  position_.label = label;
  position_.phase = Phase::kLocal;
  cancelled_ = broken_.load();
  return position_;
}

void Session::enter(Phase phase) {
  const std::lock_guard<std::mutex> lock(mutex_);
  position_.phase = phase;
}

void Session::end_step() {
  const std::lock_guard<std::mutex> lock(mutex_);
  position_.phase = Phase::kBetweenSteps;
  cancelled_ = false;
}

void Session::begin_generation() {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++position_.generation;
  // Counted anew, so that ranks which disagree on the end of a generation (the store was
  // gone) agree again in a later one.
  position_.step = 0;
  broken_ = position_.generation < next_watched_;
  cancelled_ = false;
}

void Session::note_break(std::int64_t generation) {
  const std::lock_guard<std::mutex> lock(mutex_);
  next_watched_ = std::max(next_watched_, generation + 1);
  if (position_.generation != generation) return;
  broken_ = true;
  cancelled_ = position_.phase != Phase::kBetweenSteps;
}

bool Session::settle(std::int64_t generation) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (generation < next_settled_) return false;
  next_settled_ = generation + 1;
  return true;
}

void Session::note_cancel(const Position& seen) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (position_.generation == seen.generation && position_.step == seen.step) cancelled_ = true;
}

void Session::watch() {
  struct Asking {
    Session& session;
    explicit Asking(Session& asker) : session(asker) { session.set_asked(std::chrono::steady_clock::now()); }
    ~Asking() { session.set_asked(std::nullopt); }
  } asking(*this);
  look();
}

void Session::set_asked(std::optional<TimePoint> since) {
  const std::lock_guard<std::mutex> lock(mutex_);
  asked_since_ = since;
}

std::chrono::milliseconds Session::rest_of(std::chrono::milliseconds patience) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!asked_since_) return patience;
  const auto waited = std::chrono::steady_clock::now() - *asked_since_;
  return std::max(patience - std::chrono::floor<std::chrono::milliseconds>(waited), patience / 5);
}

void Session::look() {
  const Position now = position();
  const std::int64_t generation = next_generation();
  const bool works = now.phase == Phase::kLocal || now.phase == Phase::kGlobal;
  if (works && !cancelled() && store_->is_cancelled(now)) note_cancel(now);

  // A rank that stays behind answers for later generations too: the others' next
  // steps fail for want of it, and it should be named as late, not as gone.
  if (!store_->is_broken(generation)) return;
  note_break(generation);
  const RankSign mine{Report{position(), Observed::kNothing, {}}};
  store_->write_alive(generation, rank_, *mine.report);
  if (is_settled(mine) && settle(generation)) store_->count_settled(generation);
}

std::int64_t Session::next_generation() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::max(next_watched_, position_.generation);
}

Watcher::Watcher(std::shared_ptr<Session> session, std::chrono::milliseconds interval)
    : session_(std::move(session)),
      thread_([control = control_, session = session_, interval] { run(control, session, interval); }) {}

Watcher::~Watcher() {
  constexpr std::chrono::milliseconds kPatience{1000};
  std::unique_lock<std::mutex> lock(control_->mutex);
  control_->stop = true;
  control_->signal.notify_all();
  const bool ended = control_->signal.wait_for(lock, session_->rest_of(kPatience), [&] { return control_->ended; });
  lock.unlock();
  if (ended) {
    thread_.join();
  } else {
    thread_.detach();
  }
}

void Watcher::run(const std::shared_ptr<Control>& control, const std::shared_ptr<Session>& session,
                  std::chrono::milliseconds interval) {
  std::unique_lock<std::mutex> lock(control->mutex);
  while (!control->stop) {
    lock.unlock();
    bool usable = true;
    try {
      session->watch();
    } catch (...) {
      // The store is gone, perhaps since its host has finished before this rank.
      // That alone is no failure: if an exchange fails as well, it will be said then.
      usable = false;
    }
    lock.lock();
    if (!usable) break;
    control->signal.wait_for(lock, interval, [&] { return control->stop; });
  }
  control->ended = true;
  control->signal.notify_all();
}

}  // namespace dcp

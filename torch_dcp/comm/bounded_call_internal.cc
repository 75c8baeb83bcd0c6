#include "torch_dcp/comm/bounded_call_internal.h"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <utility>

#include "torch_dcp/comm/broken_pipe_internal.h"

namespace dcp {
namespace {

constexpr std::chrono::milliseconds kGiveUpInterval{10};

}  // namespace

struct BoundedCall::State {
  std::mutex mutex;
  std::condition_variable ended_signal;
  bool ended = false;
  std::exception_ptr error;
};

std::chrono::milliseconds time_left(TimePoint until) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
  return std::max(left, std::chrono::milliseconds(1));
}

BoundedCall::BoundedCall(std::function<void()> work)
    : state_(std::make_shared<State>()),
      thread_([state = state_, work = std::move(work)]() mutable { run(state, std::move(work)); }) {}

BoundedCall::~BoundedCall() {
  std::unique_lock<std::mutex> lock(state_->mutex);
  const bool ended = state_->ended;
  lock.unlock();
  if (ended) {
    thread_.join();
  } else {
    thread_.detach();
  }
}

void BoundedCall::run(const std::shared_ptr<State>& state, std::function<void()> work) {
  std::exception_ptr error;
  std::optional<NoBrokenPipeSignal> no_signal;  // also while `work` is destroyed
  try {
    no_signal.emplace();
    work();
  } catch (...) {
    error = std::current_exception();
  }
  // What the work holds goes before its end is told: whoever waits for the end of
  // a group's destruction must not return earlier.
  work = nullptr;
  const std::lock_guard<std::mutex> lock(state->mutex);
  state->error = std::move(error);
  state->ended = true;
  state->ended_signal.notify_all();
}

bool BoundedCall::wait(TimePoint until, const std::function<bool()>& give_up) {
  std::unique_lock<std::mutex> lock(state_->mutex);
  while (!state_->ended && std::chrono::steady_clock::now() < until) {
    const TimePoint slice = give_up ? std::min(until, std::chrono::steady_clock::now() + kGiveUpInterval) : until;
    state_->ended_signal.wait_until(lock, slice, [&] { return state_->ended; });
    if (state_->ended || !give_up) continue;
    lock.unlock();
    const bool stop = give_up();
    lock.lock();
    if (stop) break;
  }
  if (!state_->ended) return false;
  if (state_->error) std::rethrow_exception(state_->error);
  return true;
}

bool run_bounded(std::function<void()> work, TimePoint until, const std::function<bool()>& give_up) {
  return BoundedCall(std::move(work)).wait(until, give_up);
}

}  // namespace dcp

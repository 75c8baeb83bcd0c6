#include "torch_dcp/comm/bounded_call_internal.h"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

namespace dcp {
namespace {

constexpr std::chrono::milliseconds kGiveUpInterval{10};

struct Call {
  std::mutex mutex;
  std::condition_variable ended_signal;
  bool ended = false;
  std::exception_ptr error;
};

void run(const std::shared_ptr<Call>& call, std::function<void()> work) {
  std::exception_ptr error;
  try {
    work();
  } catch (...) {
    error = std::current_exception();
  }
  // What the work holds goes before its end is told: whoever waits for the end of
  // a group's destruction must not return earlier.
  work = nullptr;
  const std::lock_guard<std::mutex> lock(call->mutex);
  call->error = std::move(error);
  call->ended = true;
  call->ended_signal.notify_all();
}

}  // namespace

std::chrono::milliseconds time_left(TimePoint until) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
  return std::max(left, std::chrono::milliseconds(1));
}

bool run_bounded(std::function<void()> work, TimePoint until, const std::function<bool()>& give_up) {
  auto call = std::make_shared<Call>();
  std::thread thread([call, work = std::move(work)]() mutable { run(call, std::move(work)); });

  std::unique_lock<std::mutex> lock(call->mutex);
  while (!call->ended && std::chrono::steady_clock::now() < until) {
    const TimePoint slice = give_up ? std::min(until, std::chrono::steady_clock::now() + kGiveUpInterval) : until;
    call->ended_signal.wait_until(lock, slice, [&] { return call->ended; });
    if (call->ended || !give_up) continue;
    lock.unlock();
    const bool stop = give_up();
    lock.lock();
    if (stop) break;
  }
  const bool ended = call->ended;
  lock.unlock();
  if (!ended) {
    thread.detach();
    return false;
  }
  thread.join();
  if (call->error) std::rethrow_exception(call->error);
  return true;
}

}  // namespace dcp

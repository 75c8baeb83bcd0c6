#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <thread>

namespace dcp {

using TimePoint = std::chrono::steady_clock::time_point;

/// What is left until `until`, at least one millisecond (zero means "no limit" to c10d).
std::chrono::milliseconds time_left(TimePoint until);

/// Work on a thread of its own, which can be left behind.
///
/// Calls into a store or a group may hang for ever when a peer is stopped. Only such a
/// thread keeps that from its caller. SIGPIPE is blocked there, and in threads that the work starts.
class BoundedCall {
 public:
  /// \param work  Must own, or share, all that it touches: a call that is left behind runs
  ///              on alone and its exception is dropped with it.
  explicit BoundedCall(std::function<void()> work);
  /// Leaves the call behind unless it has ended.
  ~BoundedCall();
  BoundedCall(const BoundedCall&) = delete;
  BoundedCall& operator=(const BoundedCall&) = delete;

  /// Waits until `until`, or until `give_up` returns true (asked every few milliseconds; may
  /// be empty).
  ///
  /// \returns true if the work has ended.
  /// \throws What the work threw.
  bool wait(TimePoint until, const std::function<bool()>& give_up = {});

 private:
  struct State;
  static void run(const std::shared_ptr<State>& state, std::function<void()> work);

  std::shared_ptr<State> state_;
  std::thread thread_;
};

/// Runs `work` and waits for it: BoundedCall(work).wait(until, give_up).
bool run_bounded(std::function<void()> work, TimePoint until, const std::function<bool()>& give_up = {});

}  // namespace dcp

#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "torch_dcp/comm/bounded_call_internal.h"
#include "torch_dcp/comm/step_store_internal.h"
#include "torch_dcp/comm/verdict_internal.h"

namespace dcp {

/// Where a rank is, and what its watcher has learnt: shared by the rank's own thread, the
/// watcher and calls that were left behind. Thread safety: full.
class Session {
 public:
  Session(std::shared_ptr<StepStore> store, int rank) : store_(std::move(store)), rank_(rank) {}

  Position position() const;

  /// \throws dcp::Error kState inside a step: no step starts within another.
  Position begin_step(const std::string& label);
  void enter(Phase phase);
  void end_step();
  /// Leaves a broken generation behind.
  void begin_generation();
  void note_break(std::int64_t generation);
  /// \returns true on the first call for a generation: then this rank is to be counted as settled in it.
  bool settle(std::int64_t generation);

  /// Whether another rank's failure makes work on this step useless.
  bool cancelled() const noexcept { return cancelled_.load(std::memory_order_relaxed); }
  /// Whether the present generation's exchange has failed somewhere.
  bool broken() const noexcept { return broken_.load(std::memory_order_acquire); }

  /// Looks into the store once, and answers there for a rank that is busy.
  void watch();
  /// How long to wait for the store yet, if it may take `patience` to answer: less if `watch` already waits for it, at
  /// least a fifth.
  std::chrono::milliseconds rest_of(std::chrono::milliseconds patience) const;

 private:
  void look();
  void set_asked(std::optional<TimePoint> since);
  void note_cancel(const Position& seen);
  // The first generation of which it is not known that it is broken.
  std::int64_t next_generation() const;

  const std::shared_ptr<StepStore> store_;
  const int rank_;
  mutable std::mutex mutex_;
  Position position_;
  std::atomic<bool> cancelled_{false};
  std::atomic<bool> broken_{false};
  std::int64_t next_watched_ = 0;         // generations before it are known to be broken
  std::int64_t next_settled_ = 0;         // generations before it have counted this rank
  std::optional<TimePoint> asked_since_;  // while `watch` waits for the store
};

/// A thread that lets a session watch, until it is destroyed or the store fails.
class Watcher {
 public:
  Watcher(std::shared_ptr<Session> session, std::chrono::milliseconds interval);
  /// Waits for the thread; one that hangs in the store is left behind.
  ~Watcher();
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;

 private:
  struct Control {
    std::mutex mutex;
    std::condition_variable signal;
    bool stop = false;
    bool ended = false;
  };

  static void run(const std::shared_ptr<Control>& control, const std::shared_ptr<Session>& session,
                  std::chrono::milliseconds interval);

  std::shared_ptr<Control> control_ = std::make_shared<Control>();
  std::shared_ptr<Session> session_;
  std::thread thread_;
};

}  // namespace dcp

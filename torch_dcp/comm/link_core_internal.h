#pragma once

#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "torch_dcp/base/bytes.h"
#include "torch_dcp/comm/bounded_call_internal.h"
#include "torch_dcp/comm/link_notice_internal.h"

namespace c10d {
class ProcessGroup;
class Work;
}  // namespace c10d

namespace dcp {

/// What is under a PeerLink: a group for this link alone, what its ranks tell each other about its end, and the waits.
///
/// Each rank posts two receives of a notice to each peer. A rank that leaves, or breaks the link, sends one notice to
/// each peer and closes its connections. So where the second receive fails, the peer is gone, and the first says how it
/// went; where neither was sent, it died. A thread looks at them every few milliseconds: asking such a receive costs a
/// microsecond, because a wait that was aborted before returns at once, and throws if the connection is closed.
///
/// Waits lie in the caller's thread, directly in the group, with a time-out longer than their own: a wait that times
/// out within Gloo closes all connections before anybody was told why. The same thread as above aborts them when their
/// time is over, when they are to ask something, and when the link is broken.
///
/// Needs of the group's backend what Gloo has: `send`, `recv` and `recvAnysource` from several threads at once, works
/// that can be aborted and waited for again, and that a wait which times out closes all connections.
///
/// Thread safety: full.
class LinkCore {
 public:
  using Group = c10::intrusive_ptr<c10d::ProcessGroup>;
  using Work = c10::intrusive_ptr<c10d::Work>;
  enum class Direction : std::uint8_t { kSend, kReceive };

  static constexpr std::uint32_t kMaxTag = std::uint32_t{1} << 30;

  LinkCore(Group group, int rank, int size, std::chrono::milliseconds deadline);
  ~LinkCore();
  LinkCore(const LinkCore&) = delete;
  LinkCore& operator=(const LinkCore&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  std::chrono::milliseconds deadline() const { return deadline_; }
  std::optional<LinkEnd> end() const;

  /// \param doing  For errors: "sending the head to rank 2".
  Work post(Direction direction, int peer, std::uint32_t tag, MutableByteSpan bytes,
            std::shared_ptr<const void> keep_alive, const std::string& doing);
  void await(const Work& work, int peer, const std::string& doing, const std::function<void()>& give_up);
  /// Takes over a transfer that nobody waits for: what it uses stays until it is through, and its deadline counts.
  void leave_behind(Work work, int peer, std::string doing) noexcept;

  /// The first reason counts.
  void break_off(ErrorKind kind, const std::string& reason);
  /// Tells the peers that this rank leaves, and closes the connections. Idempotent, not to be called in `handle`.
  void close();

  void serve(std::uint32_t tag, std::size_t byte_count, std::function<void(int rank, const Bytes& bytes)> handle);
  void stop_serving();

 private:
  struct Peer;
  struct Wait {
    Work work;
    TimePoint until;
    bool asks;
    const std::atomic<bool>* stopped;
  };
  struct Left {
    Work work;
    int peer;
    std::string doing;
  };
  struct Slot;

  enum class Result : std::uint8_t { kDone, kAborted };

  Group group() const;
  bool is_over() const { return is_over_.load(std::memory_order_acquire); }
  Result wait_once(const Work& work, TimePoint until, bool asks, const std::atomic<bool>* stopped);
  [[noreturn]] void throw_end(const std::string& doing) const;
  [[noreturn]] void fail(int peer, const std::string& doing, const std::string& cause);

  void expect_notices();
  void tell_all(c10d::ProcessGroup& group, const Bytes& notice) noexcept;
  Group take_end(LinkEnd end);
  void look();
  void look_at(Peer& peer, std::optional<LinkEnd>& told, std::optional<LinkEnd>& lost);
  void close_connections(c10d::ProcessGroup& group) noexcept;

  void watch();
  void wait_for_left();
  void run_server(std::uint32_t tag, std::size_t byte_count, const std::function<void(int, const Bytes&)>& handle);
  void post_slot(Slot& slot, std::uint32_t tag);
  std::optional<int> await_slot(Slot& slot);

  const int rank_;
  const int size_;
  const std::chrono::milliseconds deadline_;

  mutable std::mutex mutex_;
  std::condition_variable signal_;  // of `stop_`, `left_` and `left_count_`
  Group group_;
  std::optional<LinkEnd> end_;
  std::atomic<bool> is_over_{false};
  bool stop_ = false;
  std::vector<Wait*> waits_;
  std::vector<Work> kept_;  // what must stay until the connections are closed
  std::deque<Left> left_;
  std::size_t left_count_ = 0;  // with the one that is waited for
  std::thread left_thread_;

  std::mutex look_mutex_;
  std::vector<Peer> peers_;  // guarded by look_mutex_
  std::thread watch_thread_;

  std::mutex serve_mutex_;
  std::thread serve_thread_;  // guarded by serve_mutex_
  std::atomic<std::thread::id> server_id_{};
  bool has_served_ = false;  // guarded by serve_mutex_
  std::atomic<bool> stop_serving_{false};
};

}  // namespace dcp

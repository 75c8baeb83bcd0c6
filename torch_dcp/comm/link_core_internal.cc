#include "torch_dcp/comm/link_core_internal.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>

#include "torch_dcp/comm/broken_pipe_internal.h"
#include "torch_dcp/comm/link_notice_internal.h"

namespace dcp {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr int kNoticeTag = (1 << 30) + 1;
constexpr int kNobodysTag = (1 << 30) + 2;

constexpr milliseconds kTick{4};
constexpr int kTicksPerLook = 4;
// How much later than its own limit a wait ends in the group: only if it could not be aborted.
constexpr milliseconds kGroupSlack{5000};
// How long the notice of a peer whose connection failed may take to show.
constexpr milliseconds kNoticePatience{50};
// How long a rank that leaves, or breaks the link, waits until its peers have taken its notice.
constexpr milliseconds kTellPatience{200};
// How long leaving waits for transfers that nobody waits for, and for the group's end.
constexpr milliseconds kLeavePatience{1000};

at::Tensor tensor_over(MutableByteSpan bytes, std::shared_ptr<const void> keep_alive) {
  return at::from_blob(
      bytes.data(), {static_cast<std::int64_t>(bytes.size())}, [kept = std::move(keep_alive)](void*) {},
      at::TensorOptions(at::kByte));
}

at::Tensor tensor_over(const std::shared_ptr<Bytes>& bytes) { return tensor_over(*bytes, bytes); }

void abort_wait(const LinkCore::Work& work) noexcept {
  try {
    work->abort();
  } catch (...) {
    // A backend that cannot: then the wait's own limit ends it.
  }
}

}  // namespace

struct LinkCore::Peer {
  int rank = 0;
  std::shared_ptr<Bytes> notice;
  Work first;   // fills `notice`
  Work second;  // never comes
  bool is_closed = false;
  bool has_left = false;
};

struct LinkCore::Slot {
  std::shared_ptr<Bytes> bytes;
  Work work;
};

LinkCore::LinkCore(Group group, int rank, int size, milliseconds deadline)
    : rank_(rank), size_(size), deadline_(deadline), group_(std::move(group)) {
  if (size_ == 1) return;
  expect_notices();
  watch_thread_ = std::thread([this] { watch(); });
}

LinkCore::~LinkCore() { close(); }

std::optional<LinkEnd> LinkCore::end() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return end_;
}

LinkCore::Group LinkCore::group() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return end_ ? nullptr : group_;
}

void LinkCore::throw_end(const std::string& doing) const {
  const LinkEnd end = this->end().value_or(LinkEnd());
  throw Error(end.kind, c10::str(doing, ": ", end.reason), DCP_WHERE);
}

LinkCore::Work LinkCore::post(Direction direction, int peer, std::uint32_t tag, MutableByteSpan bytes,
                              std::shared_ptr<const void> keep_alive, const std::string& doing) {
  const auto group = this->group();
  if (!group) throw_end(doing);
  std::vector<at::Tensor> tensors{tensor_over(bytes, std::move(keep_alive))};
  std::string cause;
  try {
    const NoBrokenPipeSignal no_signal;
    return direction == Direction::kSend ? group->send(tensors, peer, static_cast<int>(tag))
                                         : group->recv(tensors, peer, static_cast<int>(tag));
  } catch (const std::exception& error) {
    cause = error.what();
  }
  fail(peer, doing, cause);
}

LinkCore::Result LinkCore::wait_once(const Work& work, TimePoint until, bool asks, const std::atomic<bool>* stopped) {
  Wait wait{work, until, asks, stopped};
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (end_) return Result::kAborted;
    waits_.push_back(&wait);
  }
  struct Forget {
    LinkCore& core;
    const Wait* wait;
    ~Forget() {
      const std::lock_guard<std::mutex> lock(core.mutex_);
      std::erase(core.waits_, wait);
    }
  } forget{*this, &wait};
  return work->wait(time_left(until) + kGroupSlack) ? Result::kDone : Result::kAborted;
}

void LinkCore::await(const Work& work, int peer, const std::string& doing, const std::function<void()>& give_up) {
  const TimePoint until = steady_clock::now() + deadline_;
  for (;;) {
    std::string cause;
    try {
      if (wait_once(work, until, static_cast<bool>(give_up), nullptr) == Result::kDone) return;
    } catch (const std::exception& error) {
      cause = error.what();
    }
    if (!cause.empty()) fail(peer, doing, cause);
    if (is_over()) throw_end(doing);
    if (steady_clock::now() >= until) {
      break_off(ErrorKind::kDeadline, c10::str("rank ", rank_, " waited ", deadline_.count(), " ms: ", doing));
      throw_end(doing);
    }
    if (!give_up) continue;
    try {
      give_up();
    } catch (...) {
      const RankFailure failure = current_failure(rank_);
      break_off(failure.kind, c10::str("rank ", rank_, " gave up ", doing, ": ", failure.message));
      throw;
    }
  }
}

void LinkCore::fail(int peer, const std::string& doing, const std::string& cause) {
  const TimePoint until = steady_clock::now() + kNoticePatience;
  for (;;) {
    look();
    if (is_over()) throw_end(doing);
    {
      const std::lock_guard<std::mutex> lock(look_mutex_);
      DCP_CHECK(!peers_[peer].has_left, kComm, doing, ": rank ", peer, " has left");
    }
    if (steady_clock::now() >= until) break;
    std::this_thread::sleep_for(milliseconds(1));
  }
  break_off(ErrorKind::kComm, c10::str("rank ", rank_, " failed ", doing, ": ", cause));
  throw_end(doing);
}

void LinkCore::leave_behind(Work work, int peer, std::string doing) noexcept {
  try {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (end_) return;  // the connections are closed, or nobody will look at what arrives
    kept_.push_back(work);
    left_.push_back({std::move(work), peer, std::move(doing)});
    ++left_count_;
    if (!left_thread_.joinable()) left_thread_ = std::thread([this] { wait_for_left(); });
    signal_.notify_all();
  } catch (...) {
    // No memory, or no thread: it stays in `kept_`, if that much could be had.
  }
}

void LinkCore::wait_for_left() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    signal_.wait(lock, [&] { return stop_ || !left_.empty(); });
    if (left_.empty()) return;
    Left one = std::move(left_.front());
    left_.pop_front();
    std::erase(kept_, one.work);
    lock.unlock();
    bool is_through = true;
    try {
      await(one.work, one.peer, one.doing, {});
    } catch (const Error&) {
      // The link is broken, or that peer has left; whoever uses the link will be told.
      is_through = false;
    }
    lock.lock();
    if (!is_through) kept_.push_back(std::move(one.work));
    --left_count_;
    signal_.notify_all();
  }
}

// The end of a link.

void LinkCore::expect_notices() {
  const NoBrokenPipeSignal no_signal;
  for (int rank = 0; rank < size_; ++rank) {
    Peer& peer = peers_.emplace_back();
    peer.rank = rank;
    if (rank == rank_) continue;
    peer.notice = std::make_shared<Bytes>(kNoticeBytes);
    std::vector<at::Tensor> first{tensor_over(peer.notice)};
    std::vector<at::Tensor> second{tensor_over(std::make_shared<Bytes>(kNoticeBytes))};
    peer.first = group_->recv(first, rank, kNoticeTag);
    peer.second = group_->recv(second, rank, kNoticeTag);
  }
}

// \returns the group, to the first that ends the link.
LinkCore::Group LinkCore::take_end(LinkEnd end) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (end_) return nullptr;
  end_ = std::move(end);
  is_over_.store(true, std::memory_order_release);
  return group_;
}

void LinkCore::break_off(ErrorKind kind, const std::string& reason) {
  const LinkEnd end{kind, reason};
  const Group group = take_end(end);
  if (!group) return;
  tell_all(*group, encode_notice(end));
  close_connections(*group);
}

void LinkCore::tell_all(c10d::ProcessGroup& group, const Bytes& notice) noexcept {
  std::vector<Work> works;
  for (int rank = 0; rank < size_; ++rank) {
    if (rank == rank_) continue;
    try {
      const NoBrokenPipeSignal no_signal;
      std::vector<at::Tensor> tensors{tensor_over(std::make_shared<Bytes>(notice))};
      works.push_back(group.send(tensors, rank, kNoticeTag));
    } catch (...) {
      // The connection is closed: that peer is gone, or knows.
    }
  }
  // A peer that has only just made its link, or to which much is on its way, takes it a little later.
  const TimePoint until = steady_clock::now() + kTellPatience;
  for (const Work& work : works) {
    try {
      work->wait(time_left(until));
    } catch (...) {
      // Its connection is closed; by the peer, or because this took too long.
    }
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  kept_.insert(kept_.end(), works.begin(), works.end());
}

// A wait that times out closes all the group's connections. This one is for what nobody sends.
void LinkCore::close_connections(c10d::ProcessGroup& group) noexcept {
  try {
    const NoBrokenPipeSignal no_signal;
    std::vector<at::Tensor> tensors{tensor_over(std::make_shared<Bytes>(1))};
    const Work work = group.recvAnysource(tensors, kNobodysTag);
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      kept_.push_back(work);
    }
    work->wait(milliseconds(1));
  } catch (...) {
    // It timed out, as it should. Where it could not begin, the connections are closed with the group.
  }
}

void LinkCore::look() {
  std::optional<LinkEnd> told;
  std::optional<LinkEnd> lost;
  {
    const std::lock_guard<std::mutex> lock(look_mutex_);
    for (Peer& peer : peers_) {
      if (peer.second && !peer.is_closed) look_at(peer, told, lost);
    }
  }
  // What a rank said about the end comes first: its own end follows from it.
  if (told) break_off(told->kind, told->reason);
  if (lost) break_off(lost->kind, lost->reason);
}

void LinkCore::look_at(Peer& peer, std::optional<LinkEnd>& told, std::optional<LinkEnd>& lost) {
  try {
    peer.second->abort();
    peer.second->wait(kNoticePatience);
    return;
  } catch (const std::exception&) {
    peer.is_closed = true;
  }
  std::optional<LinkEnd> end;
  try {
    peer.first->wait(kNoticePatience);
    end = decode_notice(*peer.notice);
    peer.has_left = !end;
    if (end && !told) told = std::move(end);
  } catch (const std::exception&) {
    if (!lost) {
      lost = LinkEnd{ErrorKind::kComm, c10::str("rank ", peer.rank, " is gone: its connection is closed")};
    }
  }
}

void LinkCore::watch() {
  const NoBrokenPipeSignal no_signal;
  std::unique_lock<std::mutex> lock(mutex_);
  for (int turn = 1; !stop_; ++turn) {
    signal_.wait_for(lock, kTick, [&] { return stop_; });
    const TimePoint now = steady_clock::now();
    for (const Wait* wait : waits_) {
      const bool is_stopped = wait->stopped != nullptr && *wait->stopped;
      if (end_ || wait->asks || is_stopped || wait->until <= now) abort_wait(wait->work);
    }
    if (end_ || turn % kTicksPerLook != 0) continue;
    lock.unlock();
    look();
    lock.lock();
  }
}

void LinkCore::close() {
  if (size_ == 1) {
    take_end({ErrorKind::kState, "the link was closed"});
    return;
  }
  stop_serving();
  std::thread left_thread;
  {
    std::unique_lock<std::mutex> lock(mutex_);
    if (stop_) return;
    signal_.wait_for(lock, std::min(deadline_, kLeavePatience), [&] { return end_ || left_count_ == 0; });
  }
  if (const Group group = take_end({ErrorKind::kState, "the link was closed"})) {
    tell_all(*group, encode_notice(std::nullopt));
    close_connections(*group);
  }
  // Only now: the watching thread ends the waits of others.
  while (true) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (waits_.empty() && left_.empty()) {
      stop_ = true;
      left_thread = std::move(left_thread_);
      signal_.notify_all();
      break;
    }
    lock.unlock();
    std::this_thread::sleep_for(milliseconds(1));
  }
  if (left_thread.joinable()) left_thread.join();
  if (watch_thread_.joinable()) watch_thread_.join();
  {
    const std::lock_guard<std::mutex> lock(look_mutex_);
    for (Peer& peer : peers_) peer.first = peer.second = nullptr;
  }
  auto last = std::make_shared<std::pair<Group, std::vector<Work>>>();
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    *last = {std::move(group_), std::move(kept_)};
    kept_.clear();
  }
  try {
    run_bounded([last] { *last = {}; }, steady_clock::now() + kLeavePatience);
  } catch (...) {
    // No thread could be started: then the group is destroyed here, when `last` goes.
  }
}

// Serving.

void LinkCore::serve(std::uint32_t tag, std::size_t byte_count,
                     std::function<void(int rank, const Bytes& bytes)> handle) {
  DCP_CHECK(tag <= kMaxTag && byte_count > 0 && handle, kInvalidArgument, "cannot serve messages of ", byte_count,
            " bytes under tag ", tag);
  const std::lock_guard<std::mutex> lock(serve_mutex_);
  DCP_CHECK(!has_served_ && !stop_serving_, kState, "a link serves once");
  has_served_ = true;
  if (size_ == 1) return;
  serve_thread_ =
      std::thread([this, tag, byte_count, handle = std::move(handle)] { run_server(tag, byte_count, handle); });
}

void LinkCore::stop_serving() {
  stop_serving_ = true;
  if (server_id_ == std::this_thread::get_id()) return;
  const std::lock_guard<std::mutex> lock(serve_mutex_);
  if (serve_thread_.joinable()) serve_thread_.join();
}

void LinkCore::post_slot(Slot& slot, std::uint32_t tag) {
  slot.work = nullptr;
  const auto group = this->group();
  if (!group) throw_end("serving");
  std::vector<at::Tensor> tensors{tensor_over(slot.bytes)};
  slot.work = group->recvAnysource(tensors, static_cast<int>(tag));
}

// \returns nothing when serving is over.
std::optional<int> LinkCore::await_slot(Slot& slot) {
  constexpr std::chrono::minutes kTurn{1};
  while (!stop_serving_ && !is_over()) {
    if (wait_once(slot.work, steady_clock::now() + kTurn, false, &stop_serving_) == Result::kDone) {
      return slot.work->sourceRank();
    }
  }
  return std::nullopt;
}

void LinkCore::run_server(std::uint32_t tag, std::size_t byte_count,
                          const std::function<void(int, const Bytes&)>& handle) {
  // Two at a time, so that the next message travels while one is handled.
  std::array<Slot, 2> slots;
  int from = -1;
  try {
    server_id_ = std::this_thread::get_id();
    const NoBrokenPipeSignal no_signal;
    for (Slot& slot : slots) {
      slot.bytes = std::make_shared<Bytes>(byte_count);
      post_slot(slot, tag);
    }
    for (std::size_t turn = 0;; ++turn) {
      Slot& slot = slots[turn % slots.size()];
      const std::optional<int> source = await_slot(slot);
      if (!source) break;
      const Bytes bytes = *slot.bytes;
      post_slot(slot, tag);
      from = *source;
      handle(from, bytes);
      from = -1;
    }
  } catch (...) {
    const RankFailure failure = current_failure(rank_);
    look();
    break_off(failure.kind, from < 0 ? c10::str("rank ", rank_, " cannot serve: ", failure.message)
                                     : c10::str("rank ", rank_, ", serving rank ", from, ": ", failure.message));
  }
  // A message that comes yet finds its place: without, its connection would be stuck.
  const std::lock_guard<std::mutex> lock(mutex_);
  for (Slot& slot : slots) {
    if (slot.work) kept_.push_back(std::move(slot.work));
  }
}

}  // namespace dcp

#include "torch_dcp/comm/peer_link.h"

#include <algorithm>
#include <atomic>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>

#include "torch_dcp/base/error.h"
#include "torch_dcp/comm/group_store_internal.h"
#include "torch_dcp/comm/link_core_internal.h"
#include "torch_dcp/comm/rendezvous_store_internal.h"

namespace dcp {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// How much longer than the deadline making the group may take: it ends by itself when the deadline has passed.
constexpr milliseconds kMakingSlack{500};
// How long the store may take to say who came.
constexpr milliseconds kStorePatience{1000};

// A link's group in the making; shared with the call, which may be left behind.
//
//     torch_dcp/links/NAME/creations/RANK   counter; the link's number
//     torch_dcp/links/NAME/NUMBER/came/RANK
//     torch_dcp/links/NAME/NUMBER/failed    why it cannot be made
//     torch_dcp/links/NAME/NUMBER/gloo/...  rendezvous
struct Making {
  PeerLinkOptions options;
  c10::intrusive_ptr<c10d::Store> store;
  int rank = 0;
  int size = 1;
  TimePoint until{};
  std::string root{};
  std::atomic<int> turn{0};
  std::atomic<bool> is_made{false};
};

// Apart from Making, which the group's store holds: no circle.
using Made = std::shared_ptr<c10::intrusive_ptr<c10d::ProcessGroup>>;

// Throws to end a wait for another rank's part.
bool check_making(Making& making) {
  constexpr int kTurns = 8;  // asking the store costs a call
  if (making.is_made) return false;
  DCP_CHECK(steady_clock::now() < making.until, kDeadline, "not all ranks came");
  const std::string failed = making.root + "failed";
  if (++making.turn % kTurns == 0 && making.store->check({failed})) {
    DCP_THROW(kComm, making.store->get_to_str(failed));
  }
  return true;
}

void make_group(const std::shared_ptr<Making>& making, const Made& made) {
  making->store = own_connection(making->store);
  const std::string links = c10::str("torch_dcp/links/", making->options.name, "/");
  making->root = c10::str(links, making->store->add(c10::str(links, "creations/", making->rank), 1), "/");
  making->store->set(c10::str(making->root, "came/", making->rank), Bytes{1});
  const auto store = make_rendezvous_store(making->store, making->root + "gloo/",
                                           {[making] { return check_making(*making); }, making->options.deadline});
  try {
    auto group = making->options.group_factory(store, making->rank, making->size, making->options.deadline);
    DCP_CHECK(group && group->getRank() == making->rank && group->getSize() == making->size, kInvalidArgument,
              "the group factory did not make a group with this rank as ", making->rank, " of ", making->size);
    making->is_made = true;
    *made = std::move(group);
  } catch (...) {
    const RankFailure failure = current_failure(making->rank);
    if (failure.kind != ErrorKind::kDeadline) {
      const std::string text = c10::str("rank ", making->rank, ": ", failure.message);
      making->store->compareSet(making->root + "failed", Bytes(), Bytes(text.begin(), text.end()));
    }
    throw;
  }
}

// "rank 2", "ranks 2, 5"; empty if all came, or if the store does not say.
std::string missing_ranks(const std::shared_ptr<Making>& making) {
  auto missing = std::make_shared<std::string>();
  int count = 0;
  const auto ask = [making, missing, count]() mutable {
    if (making->root.empty()) return;
    std::string list;
    for (int rank = 0; rank < making->size; ++rank) {
      if (making->store->check({c10::str(making->root, "came/", rank)})) continue;
      list += c10::str(count++ == 0 ? "" : ", ", rank);
    }
    if (count > 0) *missing = (count == 1 ? "rank " : "ranks ") + list;
  };
  try {
    if (run_bounded(ask, steady_clock::now() + kStorePatience)) return *missing;
  } catch (const std::exception&) {
    // The store is gone: then nobody can be named.
  }
  return {};
}

[[noreturn]] void throw_late(const std::shared_ptr<Making>& making) {
  const std::string missing = missing_ranks(making);
  DCP_THROW(kDeadline, "making link '", making->options.name,
            "': ", missing.empty() ? "not all ranks were connected" : missing + " did not come", " within ",
            making->options.deadline.count(), " ms");
}

c10::intrusive_ptr<c10d::ProcessGroup> make_group_bounded(const std::shared_ptr<Making>& making) {
  const Made made = std::make_shared<c10::intrusive_ptr<c10d::ProcessGroup>>();
  bool is_made = false;
  try {
    is_made = run_bounded([making, made] { make_group(making, made); }, making->until + kMakingSlack);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kDeadline) throw_late(making);
    throw Error(error.kind(), c10::str("making link '", making->options.name, "': ", error.what_without_backtrace()),
                DCP_WHERE);
  } catch (const std::exception& error) {
    if (steady_clock::now() >= making->until) throw_late(making);
    DCP_THROW(kComm, "making link '", making->options.name, "': ", error.what());
  }
  if (!is_made) throw_late(making);
  return std::move(*made);
}

}  // namespace

PeerLinkOptions::PeerLinkOptions() = default;
PeerLinkOptions::PeerLinkOptions(const PeerLinkOptions&) = default;
PeerLinkOptions& PeerLinkOptions::operator=(const PeerLinkOptions&) = default;
PeerLinkOptions::PeerLinkOptions(PeerLinkOptions&&) noexcept = default;
PeerLinkOptions& PeerLinkOptions::operator=(PeerLinkOptions&&) noexcept = default;
PeerLinkOptions::~PeerLinkOptions() = default;

struct PeerLink::Transfer::State {
  State(std::shared_ptr<LinkCore> core, LinkCore::Work work, int peer, std::string doing)
      : core(std::move(core)), work(std::move(work)), peer(peer), doing(std::move(doing)) {}
  ~State() {
    if (work) core->leave_behind(std::move(work), peer, std::move(doing));
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  std::shared_ptr<LinkCore> core;
  LinkCore::Work work;  // null once it was waited for
  int peer;
  std::string doing;
};

PeerLink::Transfer::Transfer(std::unique_ptr<State> state) : state_(std::move(state)) {}
PeerLink::Transfer::Transfer(Transfer&&) noexcept = default;
PeerLink::Transfer& PeerLink::Transfer::operator=(Transfer&&) noexcept = default;
PeerLink::Transfer::~Transfer() = default;

void PeerLink::Transfer::wait(const std::function<void()>& give_up) {
  DCP_CHECK(state_, kState, "this transfer was moved away");
  if (!state_->work) return;
  // Whatever comes of it: where waiting fails the connection is closed, and nothing touches the memory any more.
  const LinkCore::Work work = std::move(state_->work);
  state_->work = nullptr;
  state_->core->await(work, state_->peer, state_->doing, give_up);
}

std::shared_ptr<PeerLink> PeerLink::create(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                                           const PeerLinkOptions& options) {
  DCP_CHECK(group, kInvalidArgument, "there is no group for a link");
  DCP_CHECK(options.deadline.count() > 0, kInvalidArgument, "a link's deadline must be positive");
  const int rank = group->getRank();
  const int size = group->getSize();
  c10::intrusive_ptr<c10d::ProcessGroup> own;
  if (size > 1) {
    DCP_CHECK(options.group_factory, kInvalidArgument, "a link needs a group factory");
    const c10::intrusive_ptr<c10d::Store> store = options.store ? options.store : store_of(group);
    DCP_CHECK(store, kInvalidArgument, "the group has no store that can be found; set PeerLinkOptions::store");
    const auto making = std::make_shared<Making>();
    making->options = options;
    making->store = store;
    making->rank = rank;
    making->size = size;
    making->until = steady_clock::now() + options.deadline;
    own = make_group_bounded(making);
  }
  return std::shared_ptr<PeerLink>(
      new PeerLink(std::make_shared<LinkCore>(std::move(own), rank, size, options.deadline)));
}

PeerLink::PeerLink(std::shared_ptr<LinkCore> core) : core_(std::move(core)) {}
PeerLink::~PeerLink() { core_->close(); }

int PeerLink::rank() const { return core_->rank(); }
int PeerLink::size() const { return core_->size(); }
bool PeerLink::is_broken() const { return core_->end().has_value(); }
milliseconds PeerLink::deadline() const { return core_->deadline(); }

std::string PeerLink::broken_reason() const {
  const auto end = core_->end();
  return end ? end->reason : std::string();
}

void PeerLink::throw_if_broken(const std::string& doing) const {
  const auto end = core_->end();
  if (end) throw Error(end->kind, c10::str(doing, ": ", end->reason), DCP_WHERE);
}

PeerLink::Transfer PeerLink::start(bool sends, int rank, std::uint32_t tag, MutableByteSpan bytes,
                                   std::shared_ptr<const void> keep_alive, const std::string& what) {
  std::string doing =
      sends ? c10::str("sending ", what, " to rank ", rank) : c10::str("receiving ", what, " from rank ", rank);
  DCP_CHECK(rank >= 0 && rank < size() && rank != this->rank(), kInvalidArgument, doing, ": this is rank ",
            this->rank(), " of ", size());
  DCP_CHECK(tag <= LinkCore::kMaxTag, kInvalidArgument, doing, ": tag ", tag, " is too large");
  DCP_CHECK(!bytes.empty(), kInvalidArgument, doing, ": there are no bytes");
  const auto direction = sends ? LinkCore::Direction::kSend : LinkCore::Direction::kReceive;
  auto work = core_->post(direction, rank, tag, bytes, std::move(keep_alive), doing);
  return Transfer(std::make_unique<Transfer::State>(core_, std::move(work), rank, std::move(doing)));
}

PeerLink::Transfer PeerLink::send(int rank, std::uint32_t tag, ByteSpan bytes, std::shared_ptr<const void> keep_alive,
                                  std::string what) {
  // The group takes tensors, which have no constant form; it only reads what it sends.
  return start(true, rank, tag, {const_cast<std::uint8_t*>(bytes.data()), bytes.size()}, std::move(keep_alive), what);
}

PeerLink::Transfer PeerLink::receive(int rank, std::uint32_t tag, MutableByteSpan bytes,
                                     std::shared_ptr<const void> keep_alive, std::string what) {
  return start(false, rank, tag, bytes, std::move(keep_alive), what);
}

void PeerLink::break_off(const std::string& reason) { core_->break_off(ErrorKind::kComm, reason); }

void PeerLink::serve(std::uint32_t tag, std::size_t byte_count,
                     std::function<void(int rank, const Bytes& bytes)> handle) {
  core_->serve(tag, byte_count, std::move(handle));
}

void PeerLink::stop_serving() { core_->stop_serving(); }

}  // namespace dcp

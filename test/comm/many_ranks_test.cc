// What a failure costs in a large group: calls to the store, which serves all ranks.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "test/support/rank_runner.h"
#include "torch_dcp/base/error.h"
#include "torch_dcp/comm/communicator.h"
#include "torch_dcp/comm/rank_step.h"

namespace dcp {
namespace {

using std::chrono::milliseconds;
using testing::RankContext;
using testing::run_ranks;

/// The store that all ranks share; serves one call at a time, as a server does, and is in no hurry.
struct Server {
  c10::intrusive_ptr<c10d::HashStore> store = c10::make_intrusive<c10d::HashStore>();
  std::mutex mutex;
};

/// One rank's client of the server: counts its calls, and refuses them once the rank is dead.
class CountingStore final : public c10d::HashStore {
 public:
  explicit CountingStore(Server& server) : server_(server) {}

  using c10d::HashStore::compareSet;
  using c10d::HashStore::set;
  void set(const std::string& key, const Bytes& value) override {
    call([&](c10d::HashStore& store) { store.set(key, value); });
  }
  Bytes compareSet(const std::string& key, const Bytes& expected, const Bytes& desired) override {
    return call([&](c10d::HashStore& store) { return store.compareSet(key, expected, desired); });
  }
  Bytes get(const std::string& key) override {
    return call([&](c10d::HashStore& store) { return store.get(key); });
  }
  std::int64_t add(const std::string& key, std::int64_t value) override {
    return call([&](c10d::HashStore& store) { return store.add(key, value); });
  }
  bool check(const std::vector<std::string>& keys) override {
    return call([&](c10d::HashStore& store) { return store.check(keys); });
  }

  void die() { is_dead_ = true; }
  int calls() const { return calls_; }

 private:
  template <typename Call>
  std::invoke_result_t<const Call&, c10d::HashStore&> call(const Call& make) {
    ++calls_;
    DCP_CHECK(!is_dead_, kComm, "this rank is dead");
    const std::lock_guard<std::mutex> lock(server_.mutex);
    std::this_thread::sleep_for(std::chrono::microseconds(50));
    return make(*server_.store);
  }

  Server& server_;
  std::atomic<int> calls_{0};
  std::atomic<bool> is_dead_{false};
};

/// What the ranks of a group send each other. As with Gloo, only who waits for a rank notices that it has gone.
class Hub {
 public:
  // Who sends, to whom (-1: to all), and its how manieth.
  using Slot = std::tuple<int, int, int>;

  explicit Hub(int size) : is_gone_(static_cast<std::size_t>(size)) {}

  void put(const Slot& slot, const at::Tensor& tensor) {
    const std::lock_guard<std::mutex> lock(mutex_);
    sent_[slot] = tensor.clone();
    signal_.notify_all();
  }
  at::Tensor take(const Slot& slot, milliseconds timeout) {
    std::unique_lock<std::mutex> lock(mutex_);
    const auto sender = static_cast<std::size_t>(std::get<0>(slot));
    const bool is_in_time = signal_.wait_for(lock, timeout, [&] { return sent_.count(slot) > 0 || is_gone_[sender]; });
    TORCH_CHECK(is_in_time, "timed out");
    TORCH_CHECK(sent_.count(slot) > 0, "connection reset by peer");
    return sent_.at(slot);
  }
  void leave(int rank) {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_gone_[static_cast<std::size_t>(rank)] = true;
    signal_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable signal_;
  std::map<Slot, at::Tensor> sent_;
  std::vector<bool> is_gone_;
};

/// One rank of a group of threads; far cheaper than connections between all of them.
class ThreadGroup final : public c10d::ProcessGroup {
 public:
  ThreadGroup(std::shared_ptr<Hub> hub, int rank, int size) : c10d::ProcessGroup(rank, size), hub_(std::move(hub)) {}
  ~ThreadGroup() override { hub_->leave(getRank()); }

  using Works = c10::intrusive_ptr<c10d::Work>;
  Works broadcast(std::vector<at::Tensor>& tensors, const c10d::BroadcastOptions& options) override {
    const int root = static_cast<int>(options.rootRank);
    if (getRank() == root) {
      put(-1, tensors[0]);
    } else {
      tensors[0].copy_(take(root, -1, options.timeout));
    }
    return done();
  }
  Works gather(std::vector<std::vector<at::Tensor>>& outputs, std::vector<at::Tensor>& inputs,
               const c10d::GatherOptions& options) override {
    const int root = static_cast<int>(options.rootRank);
    put(root, inputs[0]);
    if (getRank() != root) return done();
    for (int rank = 0; rank < getSize(); ++rank) outputs[0][rank].copy_(take(rank, root, options.timeout));
    return done();
  }
  Works scatter(std::vector<at::Tensor>& outputs, std::vector<std::vector<at::Tensor>>& inputs,
                const c10d::ScatterOptions& options) override {
    const int root = static_cast<int>(options.rootRank);
    if (getRank() == root) {
      for (int rank = 0; rank < getSize(); ++rank) put(rank, inputs[0][rank]);
    }
    outputs[0].copy_(take(root, getRank(), options.timeout));
    return done();
  }

 private:
  struct Done final : c10d::Work {
    bool wait(milliseconds) override { return true; }
  };
  static Works done() { return c10::make_intrusive<Done>(); }

  void put(int to, const at::Tensor& tensor) { hub_->put({getRank(), to, sent_[to]++}, tensor); }
  at::Tensor take(int from, int to, milliseconds timeout) {
    return hub_->take({from, to, taken_[{from, to}]++}, timeout);
  }

  std::shared_ptr<Hub> hub_;
  std::map<int, int> sent_;
  std::map<std::pair<int, int>, int> taken_;
};

/// The hubs of a run, one for each group that is made.
class Hubs {
 public:
  explicit Hubs(int size) : size_(size) {}
  std::shared_ptr<Hub> of_group(std::size_t number) {
    const std::lock_guard<std::mutex> lock(mutex_);
    while (hubs_.size() <= number) hubs_.push_back(std::make_shared<Hub>(size_));
    return hubs_[number];
  }
  void leave_all(int rank) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& hub : hubs_) hub->leave(rank);
  }

 private:
  const int size_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<Hub>> hubs_;
};

struct Cost {
  int judges = 0;  // calls of the rank that made most
  int others = 0;  // calls of the rank that made second most
  std::int64_t all = 0;
};

/// `victim` dies without a word between two steps; what that costs the others in the second one.
Cost cost_of_silent_death(int size, int victim) {
  Server server;
  Hubs hubs(size);
  std::vector<int> calls(static_cast<std::size_t>(size));
  std::vector<std::optional<CheckpointError>> errors(static_cast<std::size_t>(size));
  std::vector<milliseconds> elapsed(static_cast<std::size_t>(size));
  run_ranks(size,
            [&](RankContext& context) {
              const int rank = context.rank();
              const auto store = c10::make_intrusive<CountingStore>(server);
              CommunicatorOptions options;
              options.deadline = milliseconds(60'000);
              options.store = store;
              options.group_factory = [&, made = std::make_shared<std::size_t>(0)](const auto&, int group_rank,
                                                                                   int group_size, milliseconds) {
                return c10::make_intrusive<ThreadGroup>(hubs.of_group((*made)++), group_rank, group_size);
              };
              Communicator comm = Communicator::create(context.unconnected_group(), options);
              status_step(comm, "plan", [] {});
              if (rank == victim) {
                store->die();
                hubs.leave_all(rank);
                return;
              }
              const int calls_before = store->calls();
              const auto start = std::chrono::steady_clock::now();
              try {
                status_step(comm, "write", [] {});
              } catch (const CheckpointError& error) {
                errors[rank] = error;
              }
              elapsed[rank] = std::chrono::duration_cast<milliseconds>(std::chrono::steady_clock::now() - start);
              calls[rank] = store->calls() - calls_before;
            },
            {.deadline = std::chrono::seconds(60)});

  Cost cost;
  for (int rank = 0; rank < size; ++rank) {
    if (rank == victim) continue;
    if (!errors[rank]) {
      ADD_FAILURE() << "rank " << rank << " did not throw";
      continue;
    }
    EXPECT_EQ(errors[rank]->failures().size(), 1u) << errors[rank]->what_without_backtrace();
    EXPECT_EQ(errors[rank]->failures()[0].rank, victim);
    EXPECT_EQ(errors[rank]->kind(), ErrorKind::kComm);
    EXPECT_LT(elapsed[rank].count(), 5000);
    cost.all += calls[rank];
    if (calls[rank] > cost.judges) std::swap(cost.judges, calls[rank]);
    cost.others = std::max(cost.others, calls[rank]);
  }
  return cost;
}

TEST(ManyRanks, ASilentDeathCostsEachRankTheSameInGroupsOfAllSizes) {
  for (const int size : {8, 64}) {
    for (const int victim : {0, size / 2}) {  // the coordinator, another
      const Cost cost = cost_of_silent_death(size, victim);
      const std::string what = c10::str("rank ", victim, " of ", size, ": ", cost.all, " calls, the judge ",
                                        cost.judges, ", each other up to ", cost.others);
      RecordProperty(c10::str("calls_", size, "_", victim), what);
      // Looking for the decision until the grace is over, and the watcher's looks: time, not ranks.
      EXPECT_LE(cost.others, 120) << what;
      EXPECT_LE(cost.judges, 120 + 4 * size) << what;
      EXPECT_LE(cost.all, 120 * size) << what;
    }
  }
}

}  // namespace
}  // namespace dcp

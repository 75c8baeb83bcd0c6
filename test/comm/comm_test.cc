#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <numeric>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include "test/support/rank_runner.h"
#include "torch_dcp/comm/communicator.h"
#include "torch_dcp/comm/group_factory.h"
#include "torch_dcp/comm/rank_step.h"

namespace dcp {

// A value that refuses to be decoded where it is negative.
struct Touchy {
  std::int64_t value = 0;
};
void encode(ByteWriter& writer, const Touchy& touchy) { writer.i64(touchy.value); }
void decode(ByteReader& reader, Touchy& touchy) {
  touchy.value = reader.i64();
  DCP_CHECK(touchy.value >= 0, kCorruptData, "touchy value ", touchy.value);
}

namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using testing::RankContext;
using testing::run_ranks;

const int kWorlds[] = {1, 2, 3, 5};

// What every rank saw of one step, by rank.
struct Seen {
  explicit Seen(int size) : errors(size), elapsed(size) {}

  void run(int rank, const std::function<void()>& step) {
    const auto start = steady_clock::now();
    try {
      step();
    } catch (const CheckpointError& error) {
      errors[rank] = error;
    }
    elapsed[rank] = std::chrono::duration_cast<milliseconds>(steady_clock::now() - start);
  }

  std::vector<std::optional<CheckpointError>> errors;
  std::vector<milliseconds> elapsed;
};

std::vector<int> failed_ranks(const CheckpointError& error) {
  std::vector<int> ranks;
  for (const RankFailure& failure : error.failures()) ranks.push_back(failure.rank);
  return ranks;
}

// Every rank in `ranks` threw the same error: `step`, with failures of `failed`.
void expect_same_error(const Seen& seen, const std::string& step, const std::vector<int>& failed,
                       const std::vector<int>& ranks) {
  for (const int rank : ranks) {
    SCOPED_TRACE("rank " + std::to_string(rank));
    ASSERT_TRUE(seen.errors[rank]) << "did not throw";
    EXPECT_EQ(seen.errors[rank]->step(), step);
    EXPECT_EQ(failed_ranks(*seen.errors[rank]), failed) << seen.errors[rank]->what_without_backtrace();
    EXPECT_EQ(seen.errors[rank]->failures(), seen.errors[ranks[0]]->failures());
  }
}

std::vector<int> all_ranks(int size) {
  std::vector<int> ranks(size);
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

CommunicatorOptions with_deadline(int deadline_ms, int coordinator = 0) {
  CommunicatorOptions options;
  options.deadline = milliseconds(deadline_ms);
  options.coordinator = coordinator;
  return options;
}

Bytes pattern(std::size_t byte_count, int seed) {
  Bytes bytes(byte_count);
  for (std::size_t i = 0; i < byte_count; ++i) bytes[i] = static_cast<std::uint8_t>(i * 31 + seed);
  return bytes;
}

void expect_all_steps_work(Communicator& comm) {
  const int rank = comm.rank();
  const int size = comm.size();
  std::vector<std::string> names;
  for (int i = 0; i < size; ++i) names.push_back("r" + std::to_string(i));

  EXPECT_EQ(all_gather_step<std::string>(comm, "names", [&] { return names[rank]; }), names);
  EXPECT_EQ(reduce_step(
                comm, "sum", [&] { return std::int64_t{rank + 1}; },
                [](std::vector<std::int64_t> all) { return std::accumulate(all.begin(), all.end(), std::int64_t{0}); }),
            size * (size + 1) / 2);
  EXPECT_EQ(reduce_scatter_step(
                comm, "reverse", [&] { return names[rank]; },
                [](std::vector<std::string> all) { return std::vector<std::string>(all.rbegin(), all.rend()); }),
            names[size - 1 - rank]);
  EXPECT_EQ(broadcast_step(comm, "who", [&] { return names[rank]; }), names[comm.coordinator()]);
  bool ran = false;
  status_step(comm, "status", [&] { ran = true; });
  EXPECT_TRUE(ran);
}

TEST(RankStep, EveryKindOnEveryWorldAndCoordinator) {
  for (const int size : kWorlds) {
    for (const int coordinator : {0, size - 1}) {
      run_ranks(size, [&](RankContext& context) {
        Communicator comm = context.communicator(with_deadline(10'000, coordinator));
        EXPECT_EQ(comm.size(), size);
        EXPECT_EQ(comm.rank(), context.rank());
        EXPECT_EQ(comm.is_coordinator(), context.rank() == coordinator);
        expect_all_steps_work(comm);
      });
    }
  }
}

TEST(RankStep, SingleNeedsNoGroup) {
  Communicator comm = Communicator::single();
  EXPECT_EQ(comm.size(), 1);
  EXPECT_TRUE(comm.is_coordinator());
  EXPECT_FALSE(comm.cancelled());
  expect_all_steps_work(comm);
  EXPECT_EQ(comm.all_gather({1, 2}), std::vector<Bytes>({{1, 2}}));
  EXPECT_EQ(comm.scatter({{7}}), Bytes{7});
  Seen seen(1);
  seen.run(0, [&] { status_step(comm, "alone", [] { throw 42; }); });
  expect_same_error(seen, "alone", {0}, {0});
}

TEST(Communicator, MovesBytesOfAllSizes) {
  // Around the size up to which bytes travel in the head, and large; uneven and empty.
  const std::vector<std::size_t> sizes{0, 1, 486, 487, 488, 512, 100'000, 5'000'001};
  for (const int size : {2, 5}) {
    run_ranks(size, [&](RankContext& context) {
      Communicator comm = context.communicator(with_deadline(10'000, size - 1));
      const auto bytes_of = [&](int rank, std::size_t round) {
        return pattern(sizes[(rank * 3 + round) % sizes.size()], rank);
      };
      for (std::size_t round = 0; round < sizes.size(); ++round) {
        std::vector<Bytes> expected;
        for (int rank = 0; rank < size; ++rank) expected.push_back(bytes_of(rank, round));
        const Bytes& mine = expected[comm.rank()];
        EXPECT_EQ(comm.gather(mine), comm.is_coordinator() ? expected : std::vector<Bytes>());
        EXPECT_EQ(comm.all_gather(mine), expected);
        EXPECT_EQ(comm.broadcast(mine), expected[size - 1]);
        EXPECT_EQ(comm.scatter(comm.is_coordinator() ? expected : std::vector<Bytes>()), mine);
      }
    });
  }
}

TEST(RankStep, LocalFailuresAreTheSameEverywhereAndCostNoGroup) {
  for (const int size : kWorlds) {
    // Each rank alone, all together, and all but the coordinator.
    std::vector<std::vector<int>> cases{all_ranks(size)};
    for (int rank = 0; rank < size; ++rank) cases.push_back({rank});
    if (size > 2) cases.push_back({1, size - 1});
    std::vector<Seen> seen(cases.size() * 2, Seen(size));
    run_ranks(size, [&](RankContext& context) {
      Communicator comm = context.communicator();
      for (std::size_t i = 0; i < cases.size(); ++i) {
        const bool fails = std::count(cases[i].begin(), cases[i].end(), context.rank()) > 0;
        seen[2 * i].run(context.rank(), [&] {
          reduce_step(
              comm, "plan",
              [&] {
                DCP_CHECK(!fails, kKey, "no key 'w' on rank ", context.rank());
                return true;
              },
              [](std::vector<bool>) { return true; });
        });
        seen[2 * i + 1].run(context.rank(), [&] {
          status_step(comm, "write", [&] {
            if (fails) throw 42;
          });
        });
        expect_all_steps_work(comm);
      }
    });
    for (std::size_t i = 0; i < cases.size(); ++i) {
      expect_same_error(seen[2 * i], "plan", cases[i], all_ranks(size));
      expect_same_error(seen[2 * i + 1], "write", cases[i], all_ranks(size));
      const RankFailure& first = seen[2 * i].errors[0]->failures()[0];
      EXPECT_EQ(first.kind, ErrorKind::kKey);
      EXPECT_EQ(first.message, "no key 'w' on rank " + std::to_string(cases[i][0]));
      EXPECT_NE(first.where.find("comm_test.cc"), std::string::npos);
    }
  }
}

TEST(RankStep, GlobalFailureIsTheCoordinators) {
  for (const int coordinator : {0, 2}) {
    Seen reduce(3), scatter(3), count(3), broadcast(3);
    run_ranks(3, [&](RankContext& context) {
      Communicator comm = context.communicator(with_deadline(10'000, coordinator));
      const int rank = context.rank();
      const auto local = [&] { return rank; };
      reduce.run(rank, [&] {
        reduce_step(comm, "global plan", local, [](std::vector<int>) -> int { throw std::runtime_error("overlap"); });
      });
      scatter.run(rank, [&] {
        reduce_scatter_step(comm, "deal", local, [](std::vector<int>) -> std::vector<int> { throw 42; });
      });
      count.run(rank, [&] {
        reduce_scatter_step(comm, "count", local, [](std::vector<int>) { return std::vector<int>(2); });
      });
      broadcast.run(rank, [&] { broadcast_step(comm, "tell", []() -> int { throw 42; }); });
      expect_all_steps_work(comm);
    });
    expect_same_error(reduce, "global plan", {coordinator}, all_ranks(3));
    EXPECT_EQ(reduce.errors[0]->failures()[0].message, "overlap");
    expect_same_error(scatter, "deal", {coordinator}, all_ranks(3));
    expect_same_error(count, "count", {coordinator}, all_ranks(3));
    expect_same_error(broadcast, "tell", {coordinator}, all_ranks(3));
  }
}

TEST(RankStep, FailureInTakingAnAnswerIn) {
  std::vector<Seen> seen(3, Seen(3));
  run_ranks(3, [&](RankContext& context) {
    Communicator comm = context.communicator();
    for (int bad = 0; bad < 3; ++bad) {
      seen[bad].run(context.rank(), [&] {
        reduce_scatter_step(
            comm, "deal", [] { return true; },
            [&](std::vector<bool>) {
              std::vector<Touchy> answers(3);
              answers[bad].value = -1;
              return answers;
            });
      });
      expect_all_steps_work(comm);
    }
  });
  for (int bad = 0; bad < 3; ++bad) {
    expect_same_error(seen[bad], "deal", {bad}, all_ranks(3));
    EXPECT_EQ(seen[bad].errors[0]->kind(), ErrorKind::kCorruptData);
  }
}

TEST(RankStep, FailureStopsLongWorkElsewhere) {
  Seen seen(3);
  run_ranks(3, [&](RankContext& context) {
    Communicator comm = context.communicator();
    status_step(comm, "first", [] {});
    seen.run(context.rank(), [&] {
      status_step(comm, "write", [&] {
        DCP_CHECK(context.rank() != 1, kIo, "no space left");
        const auto until = steady_clock::now() + std::chrono::seconds(15);
        while (steady_clock::now() < until) {
          comm.throw_if_cancelled();
          std::this_thread::sleep_for(milliseconds(5));
        }
      });
    });
    EXPECT_FALSE(comm.cancelled());
    expect_all_steps_work(comm);
  });
  // Those that were cancelled are no failures.
  expect_same_error(seen, "write", {1}, all_ranks(3));
  EXPECT_EQ(seen.errors[0]->kind(), ErrorKind::kIo);
  for (const milliseconds elapsed : seen.elapsed) EXPECT_LT(elapsed.count(), 5000);
}

TEST(RankStep, StepInsideAStepIsRefused) {
  Seen seen(2);
  run_ranks(2, [&](RankContext& context) {
    Communicator comm = context.communicator();
    seen.run(context.rank(), [&] {
      status_step(comm, "outer", [&] {
        if (context.rank() == 1) status_step(comm, "inner", [] {});
      });
    });
    expect_all_steps_work(comm);
  });
  expect_same_error(seen, "outer", {1}, all_ranks(2));
  EXPECT_EQ(seen.errors[0]->kind(), ErrorKind::kState);
}

TEST(RankStep, RanksInDifferentStepsAreTold) {
  std::vector<std::optional<ErrorKind>> kinds(3);
  run_ranks(3, [&](RankContext& context) {
    Communicator comm = context.communicator();
    try {
      status_step(comm, context.rank() == 2 ? "load" : "save", [] {});
    } catch (const CheckpointError& error) {
      kinds[context.rank()] = error.kind();
    }
    expect_all_steps_work(comm);
  });
  for (const auto& kind : kinds) EXPECT_EQ(kind, ErrorKind::kState);
}

TEST(Deadline, LateRankIsNamedAndLaterCatchesUp) {
  for (const int late : {0, 1}) {
    constexpr int kDeadline = 1500;
    Seen seen(3), second(3);
    run_ranks(3, [&](RankContext& context) {
      Communicator comm = context.communicator(with_deadline(kDeadline));
      expect_all_steps_work(comm);
      // The second failure is over, for the others, before the late rank has thrown the first.
      seen.run(context.rank(), [&] {
        status_step(comm, "write", [&] {
          if (context.rank() == late) std::this_thread::sleep_for(milliseconds(3700));
        });
      });
      second.run(context.rank(), [&] { status_step(comm, "again", [] {}); });
      expect_all_steps_work(comm);
    });
    expect_same_error(seen, "write", {late}, all_ranks(3));
    expect_same_error(second, "again", {late}, all_ranks(3));
    EXPECT_EQ(seen.errors[0]->kind(), ErrorKind::kDeadline);
    EXPECT_NE(seen.errors[0]->failures()[0].message.find("in its own part of step 'write'"), std::string::npos)
        << seen.errors[0]->failures()[0].message;
    for (int rank = 0; rank < 3; ++rank) {
      if (rank == late) continue;
      EXPECT_LT(seen.elapsed[rank].count(), kDeadline + 2000);
    }
  }
}

// Only this step's deadline is short. What a rank had to say is not lost with the exchange.
TEST(Deadline, OfOneStepNamesWhoWasLateAndWhoHadFailed) {
  Seen seen(3);
  run_ranks(3, [&](RankContext& context) {
    CommunicatorOptions options = with_deadline(20'000);
    options.deadlines.by_step["write"] = milliseconds(700);
    Communicator comm = context.communicator(options);
    status_step(comm, "plan", [&] {
      if (context.rank() == 2) std::this_thread::sleep_for(milliseconds(900));
    });
    seen.run(context.rank(), [&] {
      status_step(comm, "write", [&] {
        DCP_CHECK(context.rank() != 1, kIo, "no space left");
        if (context.rank() == 2) std::this_thread::sleep_for(milliseconds(1800));
      });
    });
    expect_all_steps_work(comm);
  });
  expect_same_error(seen, "write", {1, 2}, all_ranks(3));
  EXPECT_EQ(seen.errors[0]->failures()[0].message, "no space left");
  const RankFailure& late = seen.errors[0]->failures()[1];
  EXPECT_EQ(late.kind, ErrorKind::kDeadline);
  EXPECT_NE(late.message.find("step 'write' within its deadline of 700 ms"), std::string::npos) << late.message;
}

TEST(Deadline, RankThatNeverCameIsNamed) {
  Seen seen(3);
  run_ranks(3, [&](RankContext& context) {
    if (context.rank() == 1) return;  // not even a communicator
    Communicator comm = context.communicator(with_deadline(700));
    seen.run(context.rank(), [&] { status_step(comm, "plan", [] {}); });
  });
  expect_same_error(seen, "plan", {1}, {0, 2});
  EXPECT_EQ(seen.errors[0]->kind(), ErrorKind::kDeadline);
}

TEST(Deadline, SlowCoordinatorIsNamed) {
  Seen seen(3);
  run_ranks(3, [&](RankContext& context) {
    Communicator comm = context.communicator(with_deadline(1500));
    seen.run(context.rank(), [&] {
      reduce_step(
          comm, "plan", [] { return true; },
          [](std::vector<bool>) {
            std::this_thread::sleep_for(milliseconds(2200));
            return true;
          });
    });
    expect_all_steps_work(comm);
  });
  expect_same_error(seen, "plan", {0}, all_ranks(3));
  EXPECT_NE(seen.errors[0]->failures()[0].message.find("merging"), std::string::npos);
}

TEST(Departure, RankThatLeftIsNamedAtOnce) {
  for (const int leaver : {0, 1}) {
    Seen seen(3), second(3);
    run_ranks(3, [&](RankContext& context) {
      Communicator comm = context.communicator();
      expect_all_steps_work(comm);
      if (context.rank() == leaver) return;
      seen.run(context.rank(), [&] { status_step(comm, "write", [] {}); });
      second.run(context.rank(), [&] { status_step(comm, "again", [] {}); });
    });
    const std::vector<int> rest{leaver == 0 ? 1 : 0, 2};
    expect_same_error(seen, "write", {leaver}, rest);
    expect_same_error(second, "again", {leaver}, rest);
    for (const int rank : rest) {
      EXPECT_EQ(seen.errors[rank]->kind(), ErrorKind::kComm);
      EXPECT_LT(seen.elapsed[rank].count(), 2000);
      EXPECT_LT(second.elapsed[rank].count(), 3000);
    }
  }
}

// Large enough that not every rank looks through all reports at once.
TEST(Departure, InALargeGroup) {
  constexpr int kSize = 18;
  Seen seen(kSize), gone(kSize);
  run_ranks(kSize, [&](RankContext& context) {
    Communicator comm = context.communicator();
    seen.run(context.rank(), [&] {
      reduce_scatter_step(
          comm, "deal", [] { return true; },
          [](std::vector<bool>) {
            std::vector<Touchy> answers(kSize);
            answers[kSize - 1].value = -1;
            return answers;
          });
    });
    expect_all_steps_work(comm);
    if (comm.is_coordinator()) return;
    gone.run(context.rank(), [&] { status_step(comm, "write", [] {}); });
  });
  expect_same_error(seen, "deal", {kSize - 1}, all_ranks(kSize));
  std::vector<int> rest = all_ranks(kSize);
  rest.erase(rest.begin());
  expect_same_error(gone, "write", {0}, rest);
}

TEST(Communicator, ManyOneAfterAnotherAndTwoAtOnce) {
  run_ranks(2, [](RankContext& context) {
    for (int i = 0; i < 5; ++i) {
      Communicator one = context.communicator();
      Communicator two = context.communicator();
      EXPECT_EQ(two.all_gather({std::uint8_t(context.rank())}), std::vector<Bytes>({{0}, {1}}));
      EXPECT_EQ(one.all_gather({std::uint8_t(context.rank() + 8)}), std::vector<Bytes>({{8}, {9}}));
    }
  });
}

TEST(Communicator, TwoSubGroupsAtOnce) {
  run_ranks(4, [](RankContext& context) {
    const bool in_a = context.rank() < 2;
    std::minstd_rand random(context.rank());
    Communicator comm = context.sub_communicator(in_a ? std::vector<int>{0, 1} : std::vector<int>{2, 3},
                                                 in_a ? "a" : "b", with_deadline(10'000));
    // Ranks are those within the group.
    EXPECT_EQ(comm.rank(), context.rank() % 2);
    EXPECT_EQ(comm.is_coordinator(), context.rank() % 2 == 0);
    for (int round = 0; round < 20; ++round) {
      std::this_thread::sleep_for(milliseconds(random() % 4));
      const std::string mine = in_a ? "a" : "b";
      EXPECT_EQ(all_gather_step<std::string>(comm, "save", [&] { return mine; }), std::vector<std::string>(2, mine));
    }
  });
}

// Refuses to be used for anything but what a communicator may ask.
class PoisonedGroup : public c10d::ProcessGroup {
 public:
  using c10d::ProcessGroup::ProcessGroup;
  using Work = c10::intrusive_ptr<c10d::Work>;
  Work broadcast(std::vector<at::Tensor>&, const c10d::BroadcastOptions&) override { return used(); }
  Work allreduce(std::vector<at::Tensor>&, const c10d::AllreduceOptions&) override { return used(); }
  Work allgather(std::vector<std::vector<at::Tensor>>&, std::vector<at::Tensor>&,
                 const c10d::AllgatherOptions&) override {
    return used();
  }
  Work gather(std::vector<std::vector<at::Tensor>>&, std::vector<at::Tensor>&, const c10d::GatherOptions&) override {
    return used();
  }
  Work scatter(std::vector<at::Tensor>&, std::vector<std::vector<at::Tensor>>&, const c10d::ScatterOptions&) override {
    return used();
  }
  Work send(std::vector<at::Tensor>&, int, int) override { return used(); }
  Work recv(std::vector<at::Tensor>&, int, int) override { return used(); }
  Work barrier(const c10d::BarrierOptions&) override { return used(); }

 private:
  static Work used() {
    ADD_FAILURE() << "the caller's group was used";
    return {};
  }
};

TEST(Communicator, NeverUsesTheCallersGroup) {
  run_ranks(2, [](RankContext& context) {
    auto group = c10::make_intrusive<PoisonedGroup>(context.store(), context.rank(), 2);
    CommunicatorOptions options;  // the device is found: all ranks are on this machine
    options.store = context.store();
    Communicator comm = Communicator::create(group, options);
    expect_all_steps_work(comm);
    Seen seen(2);
    seen.run(context.rank(), [&] { status_step(comm, "fail", [] { throw 42; }); });
    EXPECT_TRUE(seen.errors[context.rank()]);
    expect_all_steps_work(comm);
  });
}

TEST(Communicator, RefusesBadOptions) {
  run_ranks(2, [](RankContext& context) {
    for (const int coordinator : {-1, 2}) {
      try {
        context.communicator(with_deadline(1000, coordinator));
        ADD_FAILURE() << "coordinator " << coordinator << " was accepted";
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
      }
    }
  });
}

TEST(Communicator, FactoryThatFailsIsThatRanksFailure) {
  Seen seen(3);
  run_ranks(3, [&](RankContext& context) {
    CommunicatorOptions options = with_deadline(10'000);
    options.store = c10::make_intrusive<c10d::PrefixStore>("factory", context.store());
    if (context.rank() == 2) {
      options.group_factory = [](const auto&, int, int, milliseconds) -> c10::intrusive_ptr<c10d::ProcessGroup> {
        DCP_THROW(kUnsupported, "no such network");
      };
    }
    Communicator comm = Communicator::create(context.unconnected_group(), options);
    seen.run(context.rank(), [&] { status_step(comm, "plan", [] {}); });
  });
  expect_same_error(seen, "plan", {2}, all_ranks(3));
  EXPECT_EQ(seen.errors[0]->kind(), ErrorKind::kUnsupported);
  for (const milliseconds elapsed : seen.elapsed) EXPECT_LT(elapsed.count(), 5000);
}

// As a store whose server is stopped: its callers hang until it goes on.
class StoppableStore : public c10d::HashStore {
 public:
  void stop() { set_stopped(true); }
  void go_on() { set_stopped(false); }

  using c10d::HashStore::compareSet;
  using c10d::HashStore::set;
  void set(const std::string& key, const Bytes& value) override {
    pass();
    c10d::HashStore::set(key, value);
  }
  Bytes compareSet(const std::string& key, const Bytes& expected, const Bytes& desired) override {
    pass();
    return c10d::HashStore::compareSet(key, expected, desired);
  }
  bool check(const std::vector<std::string>& keys) override {
    pass();
    return c10d::HashStore::check(keys);
  }

 private:
  void set_stopped(bool stopped) {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopped_ = stopped;
    signal_.notify_all();
  }
  void pass() {
    std::unique_lock<std::mutex> lock(mutex_);
    signal_.wait(lock, [&] { return !stopped_; });
  }

  std::mutex mutex_;
  std::condition_variable signal_;
  bool stopped_ = false;
};

TEST(Store, StoppedStoreHangsNobody) {
  auto store = c10::make_intrusive<StoppableStore>();
  Seen seen(3), late(3);
  std::atomic<int> done{0};
  run_ranks(3, [&](RankContext& context) {
    CommunicatorOptions options = with_deadline(1000);
    options.store = store;
    Communicator comm = context.communicator(options);
    expect_all_steps_work(comm);
    if (context.rank() == 1) store->stop();
    // The coordinator cannot decide the step.
    seen.run(context.rank(),
             [&] { status_step(comm, "write", [] { std::this_thread::sleep_for(milliseconds(100)); }); });
    ++done;
    while (done < 3) std::this_thread::sleep_for(milliseconds(5));
    if (context.rank() == 1) store->go_on();
    // All are in one generation again at the latest after one more failure.
    for (int attempt = 0; attempt < 2; ++attempt) {
      late.errors[context.rank()].reset();
      late.run(context.rank(), [&] { status_step(comm, "again", [] {}); });
    }
    EXPECT_FALSE(late.errors[context.rank()]);
  });
  expect_same_error(seen, "write", {-1}, all_ranks(3));
  EXPECT_EQ(seen.errors[0]->kind(), ErrorKind::kDeadline);
  for (const milliseconds elapsed : seen.elapsed) EXPECT_LT(elapsed.count(), 1000 + 9000);
}

TEST(RankRunner, TellsWhatEveryRankThrew) {
  try {
    run_ranks(3, [](RankContext& context) {
      context.note("thinking");
      if (context.rank() > 0) throw std::runtime_error("rank " + std::to_string(context.rank()) + " is unwell");
    });
    ADD_FAILURE() << "did not throw";
  } catch (const std::runtime_error& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("rank 1 is unwell"), std::string::npos) << text;
    EXPECT_NE(text.find("rank 2 (last note: thinking): rank 2 is unwell"), std::string::npos) << text;
    EXPECT_EQ(text.find("rank 0"), std::string::npos) << text;
  }
}

TEST(RankRunnerDeathTest, NamesWhereRanksHang) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(run_ranks(2,
                        [](RankContext& context) {
                          context.note("sleeping soundly");
                          if (context.rank() == 1) std::this_thread::sleep_for(std::chrono::hours(1));
                        },
                        {.deadline = milliseconds(200)}),
              ::testing::ExitedWithCode(1), "rank 0: ended.*\n.*rank 1: HANGS; last note: sleeping soundly");
}

TEST(RankRunner, GroupsWork) {
  run_ranks(3, [](RankContext& context) {
    EXPECT_EQ(context.group()->getSize(), 3);
    const auto& pair = context.sub_group({2, 0}, "pair");
    ASSERT_EQ(static_cast<bool>(pair), context.rank() != 1);
    if (pair) {
      EXPECT_EQ(pair->getRank(), context.rank() == 2 ? 0 : 1);
    }
    context.group()->barrier()->wait();
  });
}

/// Writes to a pipe that nobody reads, as Gloo does to a peer that is gone. Returns the system's error.
int write_to_nobody() {
  int ends[2] = {-1, -1};
  if (::pipe(ends) != 0) return -1;
  ::close(ends[0]);
  const char byte = 0;
  const int error_number = ::write(ends[1], &byte, 1) == 1 ? 0 : errno;
  ::close(ends[1]);
  return error_number;
}

// The signal would end the program without a word.
TEST(Communicator, APeerThatIsGoneSendsNoSignal) {
  std::atomic<int> of_call = 0;
  std::atomic<int> of_groups_thread = 0;
  run_ranks(2, [&](RankContext& ranks) {
    CommunicatorOptions options = with_deadline(10'000);
    options.store = c10::make_intrusive<c10d::PrefixStore>("pipe", ranks.store());
    options.group_factory = [&, make = gloo_group_factory({.hostname = "127.0.0.1", .interface = ""})](
                                const auto& store, int rank, int size, milliseconds timeout) {
      of_call = write_to_nobody();
      std::thread([&] { of_groups_thread = write_to_nobody(); }).join();
      return make(store, rank, size, timeout);
    };
    Communicator comm = Communicator::create(ranks.unconnected_group(), options);
    EXPECT_EQ(comm.all_gather({}).size(), 2u);
    sigset_t blocked;
    ASSERT_EQ(::pthread_sigmask(SIG_BLOCK, nullptr, &blocked), 0);
    EXPECT_EQ(sigismember(&blocked, SIGPIPE), 0) << "the program's own thread is left alone";
  });
  EXPECT_EQ(of_call, EPIPE);
  EXPECT_EQ(of_groups_thread, EPIPE);
}

}  // namespace
}  // namespace dcp

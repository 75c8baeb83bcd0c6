// Saves into memory beside a copy to disk that takes its time.

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "test/checkpoint/checkpoint_support.h"
#include "test/peer_memory/process_counts.h"
#include "test/peer_memory/tiered_job.h"
#include "test/support/fault_injecting_file_system.h"
#include "test/support/rank_runner.h"
#include "torch_dcp/io/memory_file_system.h"
#include "torch_dcp/peer_memory/tiered_storage.h"
#include "torch_dcp/state_dict/equal.h"
#include "torch_dcp/storage/filesystem_reader.h"

namespace dcp::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Clock = std::chrono::steady_clock;

/// Where threads wait until it is opened; stays open then.
class Gate {
 public:
  void pass() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return is_open_; });
  }
  void open() {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_open_ = true;
    changed_.notify_all();
  }
  bool is_open() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return is_open_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_open_ = false;
};

/// A disk that begins no file of a step's folder before a gate is opened.
struct SlowDisk {
  explicit SlowDisk(const std::string& folder) {
    // The thread of a flush may be left behind, so the hook owns the gate.
    files->set_hook([gate = gate, folder](const FileEvent& event) {
      if (event.op == FileOp::kCreate && event.path.find(folder) != std::string::npos) gate->pass();
    });
  }

  std::shared_ptr<Gate> gate = std::make_shared<Gate>();
  std::shared_ptr<FileSystem> below = make_memory_file_system();
  std::shared_ptr<FaultInjectingFileSystem> files = std::make_shared<FaultInjectingFileSystem>(below);
};

TEST(TieredBusy, ASaveThatIsDueStaysInMemoryIfItMaySkip) {
  const SlowDisk disk("step-000001");
  const Vaults vaults = make_vaults();
  run_ranks(kRanks, [&](RankContext& ranks) {
    const Job job(ranks, vaults, disk.files);
    TieredWriterOptions options;
    options.skip_if_busy = true;
    const auto writer = job.writer(1, options);
    job.save(*writer, 1);
    EXPECT_TRUE(writer->warnings().empty());
    job.save(*writer, 2);
    ASSERT_EQ(writer->warnings().size(), 1u);
    EXPECT_NE(writer->warnings()[0].find("step 2 stays in memory alone"), std::string::npos) << writer->warnings()[0];
    EXPECT_EQ(writer->last_flush().value().step, 1);
    EXPECT_FALSE(writer->last_flush().value().has_ended);
    EXPECT_TRUE(job.load(2).is_memory);

    job.communicator->gather({});
    disk.gate->open();
    writer->wait_for_flush();
    // All ranks' flushes have ended, which is what the coordinator decides by.
    job.communicator->gather({});
    job.communicator->broadcast({});
    job.save(*writer, 3);
    EXPECT_TRUE(writer->warnings().empty());
    writer->wait_for_flush();
    EXPECT_EQ(writer->last_flush().value().step, 3);
  });
  EXPECT_TRUE(is_complete("run/step-000001", disk.below));
  EXPECT_TRUE(is_complete("run/step-000003", disk.below));
  EXPECT_EQ(disk.below->list_directory("run").size(), 2u);
}

TEST(TieredBusy, ASaveThatIsDueWaitsForTheOneBefore) {
  const SlowDisk disk("step-000001");
  const Vaults vaults = make_vaults();
  run_ranks(kRanks, [&](RankContext& ranks) {
    const Job job(ranks, vaults, disk.files);
    const auto writer = job.writer(1);
    job.save(*writer, 1);
    const std::jthread opening([&] {
      std::this_thread::sleep_for(milliseconds(200));
      disk.gate->open();
    });
    job.save(*writer, 2);
    EXPECT_TRUE(disk.gate->is_open());
    EXPECT_TRUE(is_complete("run/step-000001", disk.below));
    writer->wait_for_flush();
  });
  EXPECT_EQ(Place{disk.below}.rebuild("run/step-000002").at("step").as_int(), 2);
}

/// Memory forgets a generation after two more saves; the copy of it to disk has not begun by then.
TEST(TieredBusy, LaterSavesOvertakeAFlush) {
  const SlowDisk disk("step-000010");
  const Vaults vaults = make_vaults();
  run_ranks(kRanks, [&](RankContext& ranks) {
    const Job job(ranks, vaults, disk.files);
    const auto writer = job.writer(10);
    job.save(*writer, 10);
    const std::uint64_t flushed = writer->committed_generation().value().number;
    for (std::int64_t step = 11; step <= 15; ++step) job.save(*writer, step);
    for (const VaultGeneration& held : vaults[static_cast<std::size_t>(ranks.rank())]->list()) {
      EXPECT_GT(held.number, flushed + 2) << "memory still has what is on its way to disk";
    }
    EXPECT_FALSE(writer->last_flush().value().has_ended);
    job.communicator->gather({});
    disk.gate->open();
    writer->wait_for_flush();
    EXPECT_TRUE(job.load(15).is_memory);
  });
  // From disk alone, bit for bit.
  const Vaults empty = make_vaults();
  run_ranks(kRanks,
            [&](RankContext& ranks) { EXPECT_EQ(Job(ranks, empty, disk.below).load(10).place, "run/step-000010"); });
}

TEST(TieredBusy, TheDestructorWaitsNoLongerThanItsDeadline) {
  const SlowDisk disk("step-000002");
  const Vaults vaults = make_vaults();
  const std::size_t threads = thread_count();
  run_ranks(kRanks, [&](RankContext& ranks) {
    const Job job(ranks, vaults, disk.files);
    TieredWriterOptions options;
    options.close_deadline = milliseconds(300);
    auto writer = job.writer(1, options);
    job.save(*writer, 1);
    writer->wait_for_flush();
    job.save(*writer, 2);
    const auto begin = Clock::now();
    writer.reset();
    const auto taken = Clock::now() - begin;
    EXPECT_GE(taken, milliseconds(300));
    EXPECT_LT(taken, seconds(10)) << "beside the deadline it has two seconds to stop";
    EXPECT_FALSE(disk.gate->is_open());
    // What is in memory is as good as before.
    EXPECT_TRUE(job.load(2).is_memory);
  });
  EXPECT_TRUE(is_complete("run/step-000001", disk.below));
  EXPECT_FALSE(is_complete("run/step-000002", disk.below));

  // What was left behind ends, and makes no checkpoint.
  disk.gate->open();
  const auto limit = Clock::now() + seconds(20);
  while (thread_count() > threads && Clock::now() < limit) std::this_thread::sleep_for(milliseconds(10));
  EXPECT_LE(thread_count(), threads);
  EXPECT_FALSE(is_complete("run/step-000002", disk.below));
}

/// Within its deadline the destructor lets a flush end.
TEST(TieredBusy, TheDestructorWaitsForAFlush) {
  const SlowDisk disk("step-000001");
  const Vaults vaults = make_vaults();
  run_ranks(kRanks, [&](RankContext& ranks) {
    const Job job(ranks, vaults, disk.files);
    auto writer = job.writer(1);
    job.save(*writer, 1);
    const std::jthread opening([&] {
      std::this_thread::sleep_for(milliseconds(200));
      disk.gate->open();
    });
    writer.reset();
    EXPECT_TRUE(disk.gate->is_open());
  });
  EXPECT_EQ(Place{disk.below}.rebuild("run/step-000001").at("step").as_int(), 1);
}

}  // namespace
}  // namespace dcp::test

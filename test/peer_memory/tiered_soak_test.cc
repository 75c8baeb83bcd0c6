// Many saves in one process: nothing grows.

#include <gtest/gtest.h>
#include <malloc.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "test/peer_memory/process_counts.h"
#include "test/peer_memory/tiered_job.h"
#include "test/support/rank_runner.h"
#include "torch_dcp/io/local_file_system.h"
#include "torch_dcp/peer_memory/tiered_storage.h"
#include "torch_dcp/storage/filesystem_reader.h"

namespace dcp::test {
namespace {

constexpr std::int64_t kFirst = 41;  // both generations and all buffers have been in use by then, and two flushes
constexpr std::int64_t kSaves = 200;
constexpr std::int64_t kDiskEvery = 20;
constexpr std::int64_t kStepsOfASave = 3;

/// What the process has taken.
struct Taken {
  std::size_t descriptors = 0;
  std::size_t threads = 0;
  std::int64_t heap_bytes = 0;    ///< 0 where a sanitizer has the heap
  std::uint64_t used_bytes = 0;   ///< of all vaults
  std::uint64_t vault_bytes = 0;  ///< with what they keep for later
};

Taken measure(const Vaults& vaults) {
  Taken taken;
  taken.descriptors = descriptor_count();
  taken.threads = thread_count();
  const struct mallinfo2 heap = ::mallinfo2();
  taken.heap_bytes = static_cast<std::int64_t>(heap.uordblks + heap.hblkhd);
  for (const auto& vault : vaults) {
    const VaultUse use = vault->use();
    taken.used_bytes += use.used_bytes;
    taken.vault_bytes += use.used_bytes + use.spare_bytes;
  }
  std::printf("%zu descriptors, %zu threads, %lld bytes of heap, %llu and %llu bytes of vaults\n", taken.descriptors,
              taken.threads, static_cast<long long>(taken.heap_bytes),
              static_cast<unsigned long long>(taken.used_bytes), static_cast<unsigned long long>(taken.vault_bytes));
  return taken;
}

TEST(TieredSoak, TwoHundredSavesGrowNothing) {
  std::filesystem::current_path(::testing::TempDir());
  const auto disk = local_file_system();
  const Vaults vaults = make_vaults();
  Taken first;
  Taken last;
  Taken after_exchanges;
  run_ranks(kRanks,
            [&](RankContext& ranks) {
              const Job job(ranks, vaults, disk);
              const auto writer = job.writer(kDiskEvery);
              for (std::int64_t step = 1; step <= kSaves; ++step) {
                job.save(*writer, step);
                EXPECT_TRUE(writer->warnings().empty());
                if (step != kFirst && step != kSaves) continue;
                writer->wait_for_flush();
                job.communicator->all_gather({});
                if (ranks.rank() == 0) (step == kFirst ? first : last) = measure(vaults);
                job.communicator->broadcast({});
              }
              // Every exchange leaves a key in the store and more in the heap, whatever it brings.
              for (std::int64_t i = kFirst; i < kSaves; ++i) {
                for (std::int64_t step = 0; step < kStepsOfASave; ++step) job.communicator->all_gather({});
              }
              if (ranks.rank() == 0) after_exchanges = measure(vaults);
              job.communicator->broadcast({});
              EXPECT_TRUE(job.load(kSaves).is_memory);
            },
            {.deadline = std::chrono::seconds(120)});
  for (std::int64_t step = kDiskEvery; step <= kSaves; step += kDiskEvery) {
    const std::string digits = std::to_string(step);
    EXPECT_TRUE(is_complete("run/step-" + std::string(6 - digits.size(), '0') + digits, disk)) << step;
  }
  EXPECT_LE(last.descriptors, first.descriptors + 4);
  EXPECT_LE(last.threads, first.threads + kRanks) << "a flush's thread of each rank may wait to be joined";
  const std::int64_t of_exchanges = after_exchanges.heap_bytes - last.heap_bytes;
  EXPECT_LE(last.heap_bytes - first.heap_bytes, of_exchanges * 3 / 2 + (std::int64_t{128} << 10))
      << "saves keep more than the exchanges that they are made of";
  EXPECT_LE(last.used_bytes, first.used_bytes + first.used_bytes / 100) << "names and numbers have more digits";
  EXPECT_LE(last.vault_bytes, first.vault_bytes * 2) << "a flush may have held a generation";
}

}  // namespace
}  // namespace dcp::test

// What is saved into memory and to disk, and which of both is loaded.

#include "torch_dcp/peer_memory/tiered_storage.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "test/checkpoint/checkpoint_support.h"
#include "test/peer_memory/tiered_job.h"
#include "test/support/fault_injecting_file_system.h"
#include "test/support/rank_runner.h"
#include "torch_dcp/base/error.h"
#include "torch_dcp/io/memory_file_system.h"
#include "torch_dcp/state_dict/equal.h"
#include "torch_dcp/storage/filesystem_reader.h"

namespace dcp::test {
namespace {

TEST(Tiered, TakesTheNewestOfMemoryAndDisk) {
  const auto disk = make_memory_file_system();
  Vaults vaults = make_vaults();
  run_ranks(kRanks, [&](RankContext& ranks) {
    const Job job(ranks, vaults, disk);
    const auto writer = job.writer(2);
    for (std::int64_t step = 1; step <= 5; ++step) job.save(*writer, step);
    writer->wait_for_flush();
    EXPECT_EQ(writer->last_flush().value().step, 4);
    const TieredSource source = job.load(5);
    EXPECT_TRUE(source.is_memory);
    EXPECT_EQ(source.step, 5);
    EXPECT_NE(source.place.find("(step 5)"), std::string::npos) << source.place;
  });
  EXPECT_TRUE(is_complete("run/step-000002", disk));
  EXPECT_TRUE(is_complete("run/step-000004", disk));
  EXPECT_EQ(disk->list_directory("run").size(), 2u);

  // All memory is lost, and the newest folder is incomplete: the one before.
  disk->remove_file("run/step-000004/__3_0.distcp");
  vaults = make_vaults();
  run_ranks(kRanks, [&](RankContext& ranks) {
    const TieredSource source = Job(ranks, vaults, disk).load(2);
    EXPECT_FALSE(source.is_memory);
    EXPECT_EQ(source.place, "run/step-000002");
    if (ranks.rank() == 0) {
      ASSERT_EQ(source.passed_over.size(), 1u);
      EXPECT_NE(source.passed_over[0].find("step-000004"), std::string::npos) << source.passed_over[0];
    }
  });
}

TEST(Tiered, DiskThatIsNewerIsTakenAndNoneIsSaid) {
  const auto disk = make_memory_file_system();
  const Vaults vaults = make_vaults();
  run_ranks(kRanks, [&](RankContext& ranks) {
    const Job job(ranks, vaults, disk);
    job.save(*job.writer(0), 3);
    Place place{disk, job.communicator};
    place.save(state_at(ranks, 9), "run/step-000009");
    EXPECT_FALSE(job.load(9).is_memory);
  });
  const Vaults empty = make_vaults();
  ErrorsByRank errors(kRanks);
  run_ranks(kRanks, [&](RankContext& ranks) {
    const Job job(ranks, empty, make_memory_file_system());
    errors.run(ranks.rank(), [&] { job.load(0); });
  });
  errors.expect({0}, {"incomplete checkpoint", "the memory of the 4 ranks", "folders of 'run'"});
  EXPECT_EQ(errors.kind(), ErrorKind::kNotFound);
}

TEST(Tiered, AFlushIsWhatFileSystemWriterWrites) {
  const auto disk = make_memory_file_system();
  const Vaults vaults = make_vaults();
  run_ranks(kRanks, [&](RankContext& ranks) {
    const Job job(ranks, vaults, disk);
    const auto writer = job.writer(1);
    job.save(*writer, 7);
    writer->wait_for_flush();
    Place{disk, job.communicator}.save(state_at(ranks, 7), "reference");
  });
  const auto ours = contents_of(*disk, "run/step-000007");
  const auto reference = contents_of(*disk, "reference");
  EXPECT_EQ(ours.size(), reference.size());
  int data_files = 0;
  for (const auto& [name, bytes] : reference) {
    if (!name.ends_with(".distcp")) continue;
    ++data_files;
    ASSERT_TRUE(ours.contains(name)) << name;
    EXPECT_EQ(ours.at(name), bytes) << name;
  }
  EXPECT_EQ(data_files, kRanks);
  const Place place{disk};
  EXPECT_EQ(place.metadata("run/step-000007").storage_meta->checkpoint_id, "run/step-000007");
  EXPECT_EQ(first_difference(place.rebuild("run/step-000007"), place.rebuild("reference")), "");
}

TEST(Tiered, AFolderIsReplacedAsAWhole) {
  const auto disk = make_memory_file_system();
  const Vaults vaults = make_vaults();
  run_ranks(kRanks, [&](RankContext& ranks) {
    const Job job(ranks, vaults, disk);
    Place{disk, job.communicator}.save(state_at(ranks, 1), "run/step-000006");
    const auto writer = job.writer(6);
    job.save(*writer, 6);
    writer->wait_for_flush();
  });
  const auto names = names_in(*disk, "run/step-000006");
  EXPECT_EQ(names.size(), 2u + kRanks) << "the old files are gone";
  EXPECT_EQ(Place{disk}.rebuild("run/step-000006").at("step").as_int(), 6);
}

/// Every change of the flush is the last one that is done: what was there before is what is there after.
TEST(Tiered, AFlushThatEndsAtAnyMomentLeavesOldOrNew) {
  int cells = 0;
  int committed = 0;
  for (std::uint64_t changes = 0;; ++changes) {
    const auto below = make_memory_file_system();
    const auto disk = std::make_shared<FaultInjectingFileSystem>(below);
    const Vaults vaults = make_vaults(2);
    std::atomic<int> failed = 0;
    run_ranks(2, [&](RankContext& ranks) {
      const Job job(ranks, vaults, disk);
      const auto writer = job.writer(1);
      job.save(*writer, 1);
      writer->wait_for_flush();
      ranks.note("first flush done");
      job.communicator->gather({});
      if (ranks.rank() == 0) disk->stop_after_changes(changes);
      job.communicator->broadcast({});
      job.save(*writer, 2);
      try {
        writer->wait_for_flush();
      } catch (const CheckpointError&) {
        ++failed;
        EXPECT_FALSE(writer->last_flush().value().error.empty());
      }
      // Training goes on, and what is in memory is newer.
      EXPECT_EQ(job.memory->newest().value().step, 2);
    });
    ++cells;
    const bool is_new = is_complete("run/step-000002", below);
    committed += is_new ? 1 : 0;
    EXPECT_TRUE(is_complete("run/step-000001", below));
    EXPECT_TRUE(failed == 0 || failed == 2) << failed;
    EXPECT_TRUE(is_new || failed > 0) << changes;
    if (is_new) {
      EXPECT_EQ(Place{below}.rebuild("run/step-000002").at("step").as_int(), 2);
    }
    if (!disk->is_stopped()) break;
    ASSERT_LT(cells, 200);
  }
  EXPECT_GT(cells, 10);
  EXPECT_LT(committed, cells);
  std::printf("%d cells, %d with the new checkpoint\n", cells, committed);
}

TEST(Tiered, AFailedFlushIsToldAndTrainingGoesOn) {
  const auto disk = std::make_shared<FaultInjectingFileSystem>(make_memory_file_system());
  disk->fail({.op = FileOp::kAppend, .path_contains = "__1_0", .is_lasting = true});
  const Vaults vaults = make_vaults();
  run_ranks(kRanks, [&](RankContext& ranks) {
    const Job job(ranks, vaults, disk);
    TieredWriterOptions options;
    options.most_failed_flushes = 2;
    const auto writer = job.writer(1, options);
    job.save(*writer, 1);
    EXPECT_TRUE(writer->warnings().empty());
    job.save(*writer, 2);
    ASSERT_EQ(writer->warnings().size(), 1u);
    EXPECT_NE(writer->warnings()[0].find("step 1 is in memory alone"), std::string::npos) << writer->warnings()[0];
    EXPECT_NE(writer->warnings()[0].find("No space left"), std::string::npos) << writer->warnings()[0];
    EXPECT_THROW(writer->wait_for_flush(), CheckpointError);
    EXPECT_NO_THROW(writer->wait_for_flush());
    EXPECT_THROW(job.save(*writer, 3), CheckpointError) << "two in a row";
    job.save(*writer, 4);
    EXPECT_TRUE(job.load(4).is_memory);
    writer->set_step(-1);
    if (ranks.rank() == 0) {
      EXPECT_EQ(names_in(*disk, "run/step-000001"), std::vector<std::string>());
    }
  });
}

TEST(Tiered, OptionsAreChecked) {
  EXPECT_THROW(TieredReader(nullptr, ""), Error);
  EXPECT_THROW(TieredReader(nullptr, "run", {.folder = "step"}), Error);
  EXPECT_THROW(TieredReader(nullptr, "run", {.folder = "a/{step}"}), Error);
}

}  // namespace
}  // namespace dcp::test

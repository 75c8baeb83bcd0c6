#include "torch_dcp/peer_memory/tiered_storage.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include "test/checkpoint/checkpoint_support.h"
#include "test/support/fault_injecting_file_system.h"
#include "torch_dcp/checkpoint/load.h"
#include "torch_dcp/checkpoint/save.h"
#include "torch_dcp/memory/memory_vault.h"

namespace dcp::test {
namespace {

constexpr int kRanks = 4;
using Vaults = std::vector<std::shared_ptr<MemoryVault>>;

Vaults make_vaults(int count = kRanks) {
  Vaults vaults;
  for (int i = 0; i < count; ++i) {
    MemoryVaultOptions options;
    options.budget_bytes = std::uint64_t{64} << 20;
    vaults.push_back(make_memory_vault(options));
  }
  return vaults;
}

CommunicatorOptions loopback() {
  CommunicatorOptions options;
  options.deadline = std::chrono::seconds(20);
  options.group_factory = gloo_group_factory({.hostname = "127.0.0.1", .interface = {}});
  return options;
}

at::Tensor weight(std::int64_t step) { return counted({1000, 37}) + static_cast<double>(step); }

StateDict state_at(const RankContext& ranks, std::int64_t step) {
  return {{"w", split(weight(step), ranks)},
          {"replicated", counted({5}) + static_cast<double>(step)},
          {"step", step},
          {"name", "of step " + std::to_string(step)}};
}

StateDict empty_state(const RankContext& ranks) {
  return {
      {"w", split_pattern({1000, 37}, ranks)}, {"replicated", pattern({5})}, {"step", std::int64_t{-1}}, {"name", ""}};
}

/// One rank of a job that saves into memory and to disk.
struct Job {
  Job(RankContext& context, const Vaults& vaults, std::shared_ptr<FileSystem> disk_files)
      : ranks(context), disk(std::move(disk_files)), group(context.unconnected_group()) {
    PeerMemoryOptions options;
    options.host = "host " + std::to_string(ranks.rank());
    options.deadline = std::chrono::seconds(20);
    options.communicator_options = loopback();
    memory = PeerMemory::attach(vaults[static_cast<std::size_t>(ranks.rank())], group, options);
    communicator = std::make_shared<Communicator>(ranks.communicator());
  }

  std::unique_ptr<TieredWriter> writer(std::int64_t disk_every, TieredWriterOptions options = {}) const {
    options.disk_every = disk_every;
    options.file_system = disk;
    options.communicator_options = loopback();
    return std::make_unique<TieredWriter>(memory, group, "run", options);
  }

  void save(TieredWriter& writer, std::int64_t step) const {
    writer.set_step(step);
    SaveOptions options;
    options.communicator = communicator;
    dcp::save(state_at(ranks, step), writer, options);
  }

  TieredSource load(std::int64_t expected_step) const {
    TieredReaderOptions reader_options;
    reader_options.reader.file_system = disk;
    TieredReader reader(memory, "run", reader_options);
    StateDict state = empty_state(ranks);
    LoadOptions options;
    options.communicator = communicator;
    dcp::load(state, reader, options);
    EXPECT_EQ(first_difference(state, state_at(ranks, expected_step)), "") << "rank " << ranks.rank();
    return reader.source().value();
  }

  RankContext& ranks;
  std::shared_ptr<FileSystem> disk;
  c10::intrusive_ptr<c10d::ProcessGroup> group;
  std::shared_ptr<PeerMemory> memory;
  std::shared_ptr<Communicator> communicator;
};

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
    if (failed == 0) EXPECT_TRUE(is_new) << changes;
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

/// Lines of a file of this process's state, such as its descriptors.
std::size_t descriptor_count() {
  std::size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) count += entry.is_symlink() ? 1 : 0;
  return count;
}

std::size_t thread_count() {
  std::size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) count += entry.is_directory();
  return count;
}

TEST(Tiered, TwoHundredSavesGrowNothing) {
  const auto disk = make_memory_file_system();
  const Vaults vaults = make_vaults();
  std::vector<std::size_t> descriptors(2);
  std::vector<std::size_t> threads(2);
  std::vector<std::uint64_t> bytes(2);
  const auto measure = [&](std::size_t when) {
    descriptors[when] = descriptor_count();
    threads[when] = thread_count();
    for (const auto& vault : vaults) bytes[when] += vault->use().used_bytes + vault->use().spare_bytes;
  };
  run_ranks(kRanks,
            [&](RankContext& ranks) {
              const Job job(ranks, vaults, disk);
              const auto writer = job.writer(20);
              for (std::int64_t step = 1; step <= 200; ++step) {
                job.save(*writer, step);
                EXPECT_TRUE(writer->warnings().empty());
                if (step != 41 && step != 200) continue;
                writer->wait_for_flush();
                job.communicator->broadcast({});
                if (ranks.rank() == 0) measure(step == 41 ? 0 : 1);
                job.communicator->broadcast({});
              }
              EXPECT_TRUE(job.load(200).is_memory);
            },
            {.deadline = std::chrono::seconds(120)});
  EXPECT_EQ(disk->list_directory("run").size(), 10u);
  EXPECT_LE(descriptors[1], descriptors[0] + 4);
  EXPECT_LE(threads[1], threads[0] + kRanks) << "a flush's thread of each rank may wait to be joined";
  EXPECT_LE(bytes[1], bytes[0] * 2) << "a flush may have held a generation";
}

TEST(Tiered, OptionsAreChecked) {
  EXPECT_THROW(TieredReader(nullptr, ""), Error);
  EXPECT_THROW(TieredReader(nullptr, "run", {.folder = "step"}), Error);
  EXPECT_THROW(TieredReader(nullptr, "run", {.folder = "a/{step}"}), Error);
}

}  // namespace
}  // namespace dcp::test

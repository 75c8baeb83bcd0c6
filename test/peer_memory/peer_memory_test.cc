#include "torch_dcp/peer_memory/peer_memory.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include "test/checkpoint/checkpoint_support.h"
#include "torch_dcp/checkpoint/load.h"
#include "torch_dcp/checkpoint/save.h"
#include "torch_dcp/memory/memory_vault.h"
#include "torch_dcp/peer_memory/peer_memory_impl_internal.h"
#include "torch_dcp/peer_memory/process_group_storage.h"
#include "torch_dcp/plan/default_save_planner.h"

namespace dcp::test {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

/// The memories of a job's ranks, which stay when its ranks end.
struct Memories {
  explicit Memories(int count, std::uint64_t budget_bytes = 64 * kMiB) : budget(budget_bytes) {
    for (int i = 0; i < count; ++i) vaults.push_back(new_vault());
  }

  std::shared_ptr<MemoryVault> new_vault() const {
    MemoryVaultOptions options;
    options.budget_bytes = budget;
    return make_memory_vault(options);
  }

  /// As when rank and process are lost, and the rank comes back.
  void lose(int rank) { vaults[static_cast<std::size_t>(rank)] = new_vault(); }
  /// As when the rank does not come back.
  void remove(int rank) { vaults.erase(vaults.begin() + rank); }
  int size() const { return static_cast<int>(vaults.size()); }

  std::uint64_t budget;
  std::vector<std::shared_ptr<MemoryVault>> vaults;
};

PeerMemoryOptions memory_options(const RankContext& ranks, int copies, int ranks_per_host = 1) {
  PeerMemoryOptions options;
  options.copies = copies;
  options.host = "host " + std::to_string(ranks.rank() / ranks_per_host);
  options.deadline = std::chrono::seconds(20);
  options.communicator_options.deadline = std::chrono::seconds(20);
  options.communicator_options.group_factory = gloo_group_factory({.hostname = "127.0.0.1", .interface = {}});
  return options;
}

std::shared_ptr<PeerMemory> attach(RankContext& ranks, const Memories& memories, const PeerMemoryOptions& options) {
  return PeerMemory::attach(memories.vaults[static_cast<std::size_t>(ranks.rank())], ranks.unconnected_group(),
                            options);
}

at::Tensor weight(std::int64_t step) { return counted({1000, 37}) + static_cast<double>(step); }

StateDict state_at(const RankContext& ranks, std::int64_t step) {
  return {{"w", split(weight(step), ranks)},
          {"column", split(weight(step) * 2, ranks, 1)},
          {"replicated", counted({5}) + static_cast<double>(step)},
          {"step", step},
          {"name", "of step " + std::to_string(step)}};
}

StateDict empty_state(const RankContext& ranks) {
  return {{"w", split_pattern({1000, 37}, ranks)},
          {"column", split_pattern({1000, 37}, ranks, 1)},
          {"replicated", pattern({5})},
          {"step", std::int64_t{-1}},
          {"name", ""}};
}

void save_step(const RankContext& ranks, const std::shared_ptr<PeerMemory>& memory,
               const std::shared_ptr<Communicator>& communicator, std::int64_t step) {
  ProcessGroupStorageWriter writer(memory, {.step = step});
  SaveOptions options;
  options.communicator = communicator;
  save(state_at(ranks, step), writer, options);
}

void expect_step(const RankContext& ranks, const std::shared_ptr<PeerMemory>& memory,
                 const std::shared_ptr<Communicator>& communicator, std::int64_t step) {
  StateDict state = empty_state(ranks);
  ProcessGroupStorageReader reader(memory);
  LoadOptions options;
  options.communicator = communicator;
  load(state, reader, options);
  EXPECT_EQ(first_difference(state, state_at(ranks, step)), "") << "rank " << ranks.rank();
}

std::shared_ptr<Communicator> communicator_of(const RankContext& ranks) {
  return std::make_shared<Communicator>(ranks.communicator());
}

void save_steps(const Memories& memories, int copies, std::vector<std::int64_t> steps, int ranks_per_host = 1) {
  run_ranks(memories.size(), [&](RankContext& ranks) {
    const auto memory = attach(ranks, memories, memory_options(ranks, copies, ranks_per_host));
    const auto communicator = communicator_of(ranks);
    for (const std::int64_t step : steps) save_step(ranks, memory, communicator, step);
  });
}

void expect_recovery(const Memories& memories, int copies, std::int64_t step, int ranks_per_host = 1) {
  run_ranks(memories.size(), [&](RankContext& ranks) {
    const auto memory = attach(ranks, memories, memory_options(ranks, copies, ranks_per_host));
    ASSERT_TRUE(memory->newest());
    EXPECT_EQ(memory->newest()->step, step);
    expect_step(ranks, memory, communicator_of(ranks), step);
  });
}

TEST(PeerMemory, SavesAndLoadsInOneJob) {
  const Memories memories(4);
  run_ranks(4, [&](RankContext& ranks) {
    const auto memory = attach(ranks, memories, memory_options(ranks, 1));
    EXPECT_FALSE(memory->newest());
    const auto communicator = communicator_of(ranks);
    for (std::int64_t step = 10; step < 14; ++step) {
      save_step(ranks, memory, communicator, step);
      ASSERT_TRUE(memory->newest());
      EXPECT_EQ(memory->newest()->step, step);
      expect_step(ranks, memory, communicator, step);
    }
    // The newest and the one before.
    EXPECT_EQ(memory->vault()->list().size(), 2u);
  });
}

TEST(PeerMemory, AnyLostRankComesBack) {
  for (int lost = 0; lost < 4; ++lost) {
    Memories memories(4);
    save_steps(memories, 1, {7, 8});
    memories.lose(lost);
    expect_recovery(memories, 1, 8);
    // Its copies are there again: another may be lost.
    memories.lose((lost + 1) % 4);
    expect_recovery(memories, 1, 8);
  }
}

TEST(PeerMemory, AnyTwoLostRanksWithTwoCopies) {
  for (int first = 0; first < 4; ++first) {
    for (int second = first + 1; second < 4; ++second) {
      Memories memories(4);
      save_steps(memories, 2, {3});
      memories.lose(first);
      memories.lose(second);
      expect_recovery(memories, 2, 3);
    }
  }
}

TEST(PeerMemory, AWholeHostIsLost) {
  for (int host = 0; host < 2; ++host) {
    Memories memories(4);
    save_steps(memories, 1, {3}, 2);
    memories.lose(2 * host);
    memories.lose(2 * host + 1);
    expect_recovery(memories, 1, 3, 2);
  }
}

TEST(PeerMemory, FewerAndMoreRanksLoad) {
  Memories memories(4);
  save_steps(memories, 1, {5});
  memories.remove(2);
  expect_recovery(memories, 1, 5);
  // The copies of what the lost rank held are made again: one more may go.
  memories.remove(0);
  expect_recovery(memories, 1, 5);
  for (int i = 0; i < 3; ++i) memories.vaults.push_back(memories.new_vault());
  expect_recovery(memories, 1, 5);
}

TEST(PeerMemory, MoreThanTheCopiesAreLost) {
  Memories memories(4);
  save_steps(memories, 1, {5});
  memories.lose(0);
  memories.lose(1);
  run_ranks(4, [&](RankContext& ranks) {
    const auto memory = attach(ranks, memories, memory_options(ranks, 1));
    EXPECT_FALSE(memory->newest());
    EXPECT_FALSE(memory->report().lost.empty());
    ProcessGroupStorageReader reader(memory);
    StateDict state = empty_state(ranks);
    LoadOptions options;
    options.communicator = communicator_of(ranks);
    try {
      load(state, reader, options);
      FAIL() << "loaded what is lost";
    } catch (const CheckpointError& error) {
      EXPECT_NE(std::string(error.what_without_backtrace()).find("incomplete checkpoint"), std::string::npos)
          << error.what_without_backtrace();
    }
    EXPECT_TRUE(is_pattern(state.at("replicated").as_tensor()));
    // A new beginning.
    const auto communicator = communicator_of(ranks);
    save_step(ranks, memory, communicator, 6);
    expect_step(ranks, memory, communicator, 6);
  });
}

TEST(PeerMemory, DamagedBytesAreNotUsed) {
  Memories memories(4);
  save_steps(memories, 1, {5});
  // Of one of two copies: the other is taken.
  const auto vault = memories.vaults[1];
  int damaged = 0;
  const std::vector<VaultGeneration> generations = vault->list();
  for (const VaultFile& file : generations.at(0).files) {
    const auto original = vault->open(1, file.name);
    Bytes bytes(file.size);
    original->read_at(0, bytes);
    bytes[bytes.size() / 2] ^= 4;
    const auto writer = vault->create(1, file.name);
    writer->append(bytes);
    writer->seal(file.note);
    ++damaged;
  }
  run_ranks(4, [&](RankContext& ranks) {
    const auto memory = attach(ranks, memories, memory_options(ranks, 1));
    EXPECT_EQ(memory->report().lost.size(), static_cast<std::size_t>(damaged));
    EXPECT_EQ(memory->report().refilled.size(), static_cast<std::size_t>(damaged));
    expect_step(ranks, memory, communicator_of(ranks), 5);
  });
  expect_recovery(memories, 1, 5);
}

TEST(PeerMemory, AFullMemoryIsEveryRanksErrorAndLosesNothing) {
  Memories memories(3, 2 * kMiB);
  run_ranks(3, [&](RankContext& ranks) {
    const auto memory = attach(ranks, memories, memory_options(ranks, 1));
    const auto communicator = communicator_of(ranks);
    save_step(ranks, memory, communicator, 1);
    ProcessGroupStorageWriter writer(memory, {.step = 2});
    SaveOptions options;
    options.communicator = communicator;
    StateDict large = state_at(ranks, 2);
    large.insert_or_assign("large", split(counted({3, 1000, 1000}), ranks));
    try {
      save(large, writer, options);
      FAIL() << "saved more than there is room for";
    } catch (const CheckpointError& error) {
      const std::string message = error.what_without_backtrace();
      EXPECT_EQ(error.step(), "write");
      EXPECT_NE(message.find("memory budget"), std::string::npos) << message;
      EXPECT_NE(message.find("generation 2"), std::string::npos) << message;
    }
    EXPECT_EQ(memory->newest()->step, 1);
    expect_step(ranks, memory, communicator, 1);
    save_step(ranks, memory, communicator, 3);
    expect_step(ranks, memory, communicator, 3);
  });
}

TEST(PeerMemory, ASaveThatFailsOnOneRankLeavesTheOneBefore) {
  const Memories memories(3);
  run_ranks(3, [&](RankContext& ranks) {
    const auto memory = attach(ranks, memories, memory_options(ranks, 1));
    const auto communicator = communicator_of(ranks);
    save_step(ranks, memory, communicator, 1);
    const std::uint64_t used = memory->vault()->use().used_bytes;

    class Failing final : public DefaultSavePlanner {
     public:
      at::Tensor resolve_tensor(const WriteItem& item) const override {
        DCP_CHECK(item.index.fqn != "column", kIo, "the tensor is gone");
        return DefaultSavePlanner::resolve_tensor(item);
      }
    };
    ProcessGroupStorageWriter writer(memory, {.step = 2});
    SaveOptions options;
    options.communicator = communicator;
    if (ranks.rank() == 1) {
      options.planner = std::make_shared<Failing>();
    }
    EXPECT_THROW(save(state_at(ranks, 2), writer, options), CheckpointError);
    communicator->all_gather({});  // All have cleared away what they had.
    EXPECT_EQ(memory->vault()->use().used_bytes, used);
    EXPECT_EQ(memory->newest()->step, 1);
    expect_step(ranks, memory, communicator, 1);
    save_step(ranks, memory, communicator, 3);
    expect_step(ranks, memory, communicator, 3);
  });
}

/// Calls `before` when the tensor is asked for.
class Interrupting final : public DefaultSavePlanner {
 public:
  Interrupting(std::string key, std::function<void()> before) : key_(std::move(key)), before_(std::move(before)) {}
  at::Tensor resolve_tensor(const WriteItem& item) const override {
    if (item.index.fqn == key_) before_();
    return DefaultSavePlanner::resolve_tensor(item);
  }

 private:
  std::string key_;
  std::function<void()> before_;
};

void expect_failing_save(const RankContext& ranks, const std::shared_ptr<PeerMemory>& memory,
                         const std::shared_ptr<Communicator>& communicator, std::int64_t step,
                         const std::function<void()>& on_rank_1) {
  ProcessGroupStorageWriter writer(memory, {.step = step});
  SaveOptions options;
  options.communicator = communicator;
  if (ranks.rank() == 1) options.planner = std::make_shared<Interrupting>("column", on_rank_1);
  EXPECT_THROW(save(state_at(ranks, step), writer, options), CheckpointError);
  communicator->all_gather({});  // All have cleared away what they had.
}

bool breaks_within_seconds(peer::PeerStore& store) {
  for (int i = 0; i < 1000; ++i) {
    if (!store.broken_reason().empty()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

TEST(PeerMemory, ALinkThatBrokeBetweenSavesIsMadeAnew) {
  const Memories memories(3);
  run_ranks(3, [&](RankContext& ranks) {
    const auto memory = attach(ranks, memories, memory_options(ranks, 1));
    const auto communicator = communicator_of(ranks);
    peer::PeerStore& store = *memory->impl().store();
    save_step(ranks, memory, communicator, 1);
    for (std::int64_t step = 2; step < 4; ++step) {
      communicator->all_gather({});
      if (ranks.rank() == static_cast<int>(step) - 1) store.break_off("the cable was pulled");
      ASSERT_TRUE(breaks_within_seconds(store));
      EXPECT_NE(store.broken_reason().find("the cable was pulled"), std::string::npos) << store.broken_reason();
      communicator->all_gather({});
      save_step(ranks, memory, communicator, step);
      EXPECT_EQ(store.broken_reason(), "");
      expect_step(ranks, memory, communicator, step);
    }
  });
  Memories left = memories;
  left.lose(1);
  expect_recovery(left, 1, 3);
}

TEST(PeerMemory, ALinkThatBreaksInASaveFailsThatOneAndNotTheNext) {
  const Memories memories(3);
  run_ranks(3, [&](RankContext& ranks) {
    const auto memory = attach(ranks, memories, memory_options(ranks, 1));
    const auto communicator = communicator_of(ranks);
    save_step(ranks, memory, communicator, 1);
    expect_failing_save(ranks, memory, communicator, 2, [&] { memory->impl().store()->break_off("pulled"); });
    EXPECT_EQ(memory->newest()->step, 1);
    ASSERT_TRUE(breaks_within_seconds(*memory->impl().store()));
    communicator->all_gather({});
    save_step(ranks, memory, communicator, 3);
    expect_step(ranks, memory, communicator, 3);
  });
}

/// Into `memory` what another job's rank has of a generation, but for files that `is_left_out`.
void put_generation(MemoryVault& from, MemoryVault& memory, std::uint64_t number,
                    const std::function<bool(const std::string&)>& is_left_out) {
  const std::vector<VaultGeneration> generations = from.list();
  for (const VaultGeneration& generation : generations) {
    if (generation.number != number) continue;
    for (const VaultFile& file : generation.files) {
      if (is_left_out(file.name)) continue;
      Bytes bytes(file.size);
      from.open(number, file.name)->read_at(0, bytes);
      const auto writer = memory.create(number, file.name);
      writer->append(bytes);
      writer->seal(file.note);
    }
  }
}

/// Ranks know of step 1 alone; in their memories lies what a save of step 2 has left, but for files that
/// `is_left_out`. A save that fails is to leave the `wanted` step.
void expect_kept(std::int64_t wanted, const std::function<bool(const std::string&)>& is_left_out) {
  const Memories others(3);
  save_steps(others, 1, {1, 2});
  const Memories memories(3);
  run_ranks(3, [&](RankContext& ranks) {
    const auto memory = attach(ranks, memories, memory_options(ranks, 1));
    const auto communicator = communicator_of(ranks);
    save_step(ranks, memory, communicator, 1);
    put_generation(*others.vaults[static_cast<std::size_t>(ranks.rank())], *memory->vault(), 2, is_left_out);
    communicator->all_gather({});
    EXPECT_EQ(memory->newest()->step, 1);
    expect_failing_save(ranks, memory, communicator, 3, [] { DCP_THROW(kIo, "the tensor is gone"); });
    EXPECT_EQ(memory->newest()->step, wanted);
    expect_step(ranks, memory, communicator, wanted);
    save_step(ranks, memory, communicator, 4);
    expect_step(ranks, memory, communicator, 4);
    // No number is taken twice, and the one that stayed is the one that could be loaded.
    const std::vector<VaultGeneration> held = memory->vault()->list();
    ASSERT_EQ(held.size(), 2u);
    EXPECT_EQ(held[0].number, static_cast<std::uint64_t>(wanted));
    EXPECT_GE(held[1].number, wanted == 2 ? 3u : 2u);
  });
}

TEST(PeerMemory, ACommitThatNobodyHasHeardOfIsKept) {
  expect_kept(2, [](const std::string&) { return false; });
}

TEST(PeerMemory, MetadataWithoutAllItsFilesKeepsNothing) {
  expect_kept(1, [](const std::string& name) { return name.starts_with("__1_"); });
}

TEST(PeerMemory, FilesWithoutMetadataKeepNothing) {
  expect_kept(1, [](const std::string& name) { return name == ".metadata"; });
}

TEST(PeerMemory, AnAttachThatCannotBeSaysWhy) {
  Memories memories(2);
  run_ranks(2, [&](RankContext& ranks) {
    try {
      attach(ranks, memories, memory_options(ranks, 2));
      FAIL() << "two copies in two memories";
    } catch (const CheckpointError& error) {
      const std::string message = error.what_without_backtrace();
      EXPECT_NE(message.find("2 copies"), std::string::npos) << message;
      EXPECT_NE(message.find("there are 1"), std::string::npos) << message;
    }
  });
  MemoryVaultOptions other;
  other.job = "another";
  other.budget_bytes = kMiB;
  memories.vaults[1] = make_memory_vault(other);
  run_ranks(2, [&](RankContext& ranks) {
    try {
      attach(ranks, memories, memory_options(ranks, 1));
      FAIL() << "memories of two jobs";
    } catch (const CheckpointError& error) {
      EXPECT_NE(std::string(error.what_without_backtrace()).find("of job 'another'"), std::string::npos)
          << error.what_without_backtrace();
    }
  });
}

TEST(PeerMemory, WithoutAGroupTheMemoryIsThisProcesss) {
  const auto vault = Memories(1).vaults[0];
  PeerMemoryOptions options;
  options.copies = 0;
  const StateDict state = {{"w", counted({10})}, {"n", 3}};
  {
    ProcessGroupStorageWriter writer(PeerMemory::attach(vault, {}, options), {.step = 4});
    save(state, writer);
  }
  const auto memory = PeerMemory::attach(vault, {}, options);
  EXPECT_EQ(memory->newest()->step, 4);
  StateDict loaded = {{"w", pattern({10})}, {"n", 0}};
  ProcessGroupStorageReader reader(memory);
  load(loaded, reader);
  EXPECT_EQ(first_difference(loaded, state), "");
}

TEST(PeerMemory, TwoHundredSavesTakeNoMoreThanAFew) {
  const Memories memories(2);
  run_ranks(2,
            [&](RankContext& ranks) {
              const auto memory = attach(ranks, memories, memory_options(ranks, 1));
              const auto communicator = communicator_of(ranks);
              std::uint64_t taken = 0;
              for (std::int64_t step = 1; step <= 200; ++step) {
                save_step(ranks, memory, communicator, step);
                const VaultUse use = memory->vault()->use();
                if (step == 4) taken = use.used_bytes + use.spare_bytes;
                if (step > 4) {
                  ASSERT_EQ(use.used_bytes + use.spare_bytes, taken) << step;
                }
              }
              expect_step(ranks, memory, communicator, 200);
            },
            {.deadline = std::chrono::seconds(120)});
}

}  // namespace
}  // namespace dcp::test

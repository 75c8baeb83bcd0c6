#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>
#include <vector>

#include "test/checkpoint/checkpoint_support.h"
#include "test/support/rank_runner.h"
#include "torch_dcp/checkpoint/load.h"
#include "torch_dcp/checkpoint/save.h"
#include "torch_dcp/comm/communicator.h"
#include "torch_dcp/comm/group_factory.h"
#include "torch_dcp/io/file_system.h"
#include "torch_dcp/memory/memory_vault.h"
#include "torch_dcp/peer_memory/peer_memory.h"
#include "torch_dcp/peer_memory/tiered_storage.h"
#include "torch_dcp/state_dict/equal.h"
#include "torch_dcp/state_dict/value.h"

namespace dcp::test {

inline constexpr int kRanks = 4;
using Vaults = std::vector<std::shared_ptr<MemoryVault>>;

inline Vaults make_vaults(int count = kRanks) {
  Vaults vaults;
  for (int i = 0; i < count; ++i) {
    MemoryVaultOptions options;
    options.budget_bytes = std::uint64_t{64} << 20;
    vaults.push_back(make_memory_vault(options));
  }
  return vaults;
}

inline CommunicatorOptions loopback() {
  CommunicatorOptions options;
  options.deadline = std::chrono::seconds(20);
  options.group_factory = gloo_group_factory({.hostname = "127.0.0.1", .interface = {}});
  return options;
}

inline at::Tensor weight(std::int64_t step) { return counted({1000, 37}) + static_cast<double>(step); }

inline StateDict state_at(const RankContext& ranks, std::int64_t step) {
  return {{"w", split(weight(step), ranks)},
          {"replicated", counted({5}) + static_cast<double>(step)},
          {"step", step},
          {"name", "of step " + std::to_string(step)}};
}

inline StateDict empty_state(const RankContext& ranks) {
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

}  // namespace dcp::test

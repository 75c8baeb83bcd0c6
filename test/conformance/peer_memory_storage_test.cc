#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include "test/conformance/storage_suite.h"
#include "torch_dcp/comm/group_factory.h"
#include "torch_dcp/memory/memory_vault.h"
#include "torch_dcp/peer_memory/peer_memory.h"
#include "torch_dcp/peer_memory/process_group_storage.h"
#include "torch_dcp/storage/filesystem_reader.h"

namespace dcp::test {
namespace {

using Vaults = std::vector<std::shared_ptr<MemoryVault>>;

std::shared_ptr<MemoryVault> new_vault() {
  MemoryVaultOptions options;
  options.budget_bytes = std::uint64_t{64} << 20;
  return make_memory_vault(options);
}

Bytes bytes_of(MemoryVault& vault, std::uint64_t generation, const VaultFile& file) {
  Bytes bytes(file.size);
  if (!bytes.empty()) vault.open(generation, file.name)->read_at(0, bytes);
  return bytes;
}

void put(MemoryVault& vault, std::uint64_t generation, const VaultFile& file, ByteSpan bytes) {
  const auto writer = vault.create(generation, file.name);
  writer->append(bytes);
  writer->seal(file.note);
}

void copy_all(MemoryVault& from, MemoryVault& into) {
  for (const VaultGeneration& generation : from.list()) {
    for (const VaultFile& file : generation.files) {
      if (into.open(generation.number, file.name)) continue;  // a copy that another rank held
      put(into, generation.number, file, bytes_of(from, generation.number, file));
    }
  }
}

/// A job's ranks and their memories. Ranks come on a thread each, and meet.
class Job {
 public:
  Job(Vaults vaults, int copies)
      : vaults_(std::move(vaults)),
        copies_(std::min(copies, size() - 1)),
        store_(c10::make_intrusive<c10d::HashStore>()),
        memories_(vaults_.size()) {}

  int size() const { return static_cast<int>(vaults_.size()); }
  const Vaults& vaults() const { return vaults_; }

  /// Collective the first time.
  const std::shared_ptr<PeerMemory>& memory_of(int rank) {
    std::shared_ptr<PeerMemory>& memory = memories_[static_cast<std::size_t>(rank)];
    if (memory) return memory;
    PeerMemoryOptions options;
    options.copies = copies_;
    options.host = "host " + std::to_string(rank);
    options.deadline = std::chrono::seconds(20);
    options.communicator_options.deadline = std::chrono::seconds(20);
    options.communicator_options.group_factory = gloo_group_factory({.hostname = "127.0.0.1", .interface = {}});
    // Never waited on: a group without a backend.
    GroupRef group;
    if (size() > 1) group = GroupRef(c10::make_intrusive<c10d::ProcessGroup>(store_, rank, size()));
    memory = PeerMemory::attach(vaults_[static_cast<std::size_t>(rank)], group, options);
    return memory;
  }

 private:
  Vaults vaults_;
  int copies_;
  c10::intrusive_ptr<c10d::HashStore> store_;
  std::vector<std::shared_ptr<PeerMemory>> memories_;  // by rank, each used by its rank's thread
};

/// One checkpoint in the memories of a job.
///
/// Ranks of the same number that save or load are those of the job. Another number of ranks is another job, which finds
/// what the memories held at that moment: as after a restart, where a rank's memory server goes on with all that the
/// servers of several ranks held if there are fewer ranks now, and with nothing on ranks that are new. One that saves
/// takes the job's place; one that loads does not.
class Memories {
 public:
  Memories(int copies, bool is_shared) : copies_(copies), is_shared_(is_shared) {}

  std::shared_ptr<PeerMemory> of_writer(int rank, int size) { return come(rank, size, /*stays=*/true); }
  std::shared_ptr<PeerMemory> of_reader(int rank, int size) { return come(rank, size, /*stays=*/false); }

  std::map<std::string, Bytes> contents() {
    const std::lock_guard lock(mutex_);
    std::map<std::string, Bytes> contents;
    if (!job_) return contents;
    for (std::size_t rank = 0; rank < job_->vaults().size(); ++rank) {
      MemoryVault& vault = *job_->vaults()[rank];
      for (const VaultGeneration& generation : vault.list()) {
        for (const VaultFile& file : generation.files) {
          contents[c10::str(rank, "/", generation.number, "/", file.name)] = bytes_of(vault, generation.number, file);
        }
      }
    }
    return contents;
  }

  /// Of the job's first rank.
  std::shared_ptr<PeerMemory> first() {
    const std::lock_guard lock(mutex_);
    return job_ ? job_->memory_of(0) : nullptr;
  }

  void lose(const StorageInfo& info) {
    const std::uint64_t number = first()->newest()->number;
    for (const auto& vault : job_->vaults()) vault->drop(number, info.relative_path);
  }

  /// Flips a bit everywhere.
  void damage(const StorageInfo& info) {
    const std::uint64_t number = first()->newest()->number;
    for (const auto& vault : job_->vaults()) {
      const std::vector<VaultGeneration> generations = vault->list();
      for (const VaultFile& file : generations.back().files) {
        if (file.name != info.relative_path) continue;
        Bytes bytes = bytes_of(*vault, number, file);
        bytes[static_cast<std::size_t>(info.offset + info.length / 2)] ^= 4;
        put(*vault, number, file, bytes);
      }
    }
  }

 private:
  std::shared_ptr<PeerMemory> come(int rank, int size, bool stays) {
    std::shared_ptr<Job> job;
    {
      const std::lock_guard lock(mutex_);
      if (!meeting_) meeting_ = job_ && job_->size() == size ? job_ : restarted(size);
      job = meeting_;
      if (stays) job_ = job;
      if (++come_count_ == size) {
        come_count_ = 0;
        meeting_.reset();
      }
    }
    return job->memory_of(rank);
  }

  std::shared_ptr<Job> restarted(int size) const {
    Vaults vaults;
    for (int rank = 0; rank < size; ++rank) vaults.push_back(is_shared_ && rank > 0 ? vaults[0] : new_vault());
    for (std::size_t rank = 0; job_ && rank < job_->vaults().size(); ++rank) {
      copy_all(*job_->vaults()[rank], *vaults[rank % vaults.size()]);
    }
    return std::make_shared<Job>(std::move(vaults), copies_);
  }

  int copies_;
  bool is_shared_;
  std::mutex mutex_;
  std::shared_ptr<Job> job_;      // what a restart goes on from
  std::shared_ptr<Job> meeting_;  // whose ranks are coming
  int come_count_ = 0;
};

StorageCase peer_memory_case(std::string name, int copies, bool is_shared = false) {
  StorageCase result;
  result.name = std::move(name);
  result.saves_alone = false;
  result.keeps_last = true;
  // The checkpoint before can be read as long as no other save begins.
  result.tells_replacement = false;
  result.make_place = [=] {
    const auto memories = std::make_shared<Memories>(copies, is_shared);
    StoragePlace place;
    place.name = "mem:";
    place.make_writer = [=](int rank, int size) {
      return std::make_unique<ProcessGroupStorageWriter>(memories->of_writer(rank, size));
    };
    place.make_reader = [=](int rank, int size) {
      return std::make_unique<ProcessGroupStorageReader>(memories->of_reader(rank, size));
    };
    place.contents = [=] { return memories->contents(); };
    place.is_complete = [=] {
      const std::shared_ptr<PeerMemory> memory = memories->first();
      return memory && memory->newest() &&
             is_complete(PeerMemory::directory_of(memory->newest()->number), memory->file_system());
    };
    place.lose = [=](const StorageInfo& info) { memories->lose(info); };
    place.damage = [=](const StorageInfo& info) { memories->damage(info); };
    return place;
  };
  return result;
}

INSTANTIATE_TEST_SUITE_P(PeerMemory, StorageSuite,
                         ::testing::Values(peer_memory_case("NoCopies", 0), peer_memory_case("OneCopy", 1),
                                           peer_memory_case("TwoCopies", 2), peer_memory_case("OneMemory", 0, true)),
                         case_name);

}  // namespace
}  // namespace dcp::test

#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "torch_dcp/base/export.h"
#include "torch_dcp/comm/communicator.h"
#include "torch_dcp/comm/group_ref.h"
#include "torch_dcp/io/file_system.h"
#include "torch_dcp/memory/memory_vault.h"

namespace dcp {

/// How ranks keep each other's checkpoints. The same on every rank, but for `host` and the store.
struct PeerMemoryOptions {
  /// k: how many other ranks' memories hold a copy of a rank's items, so that any k ranks may be lost.
  int copies = 1;
  /// Which machine this rank is on: its copies lie on others where there are any. Empty: the host name.
  std::string host;
  /// One wait for a peer: a message, an answer.
  std::chrono::milliseconds deadline = std::chrono::minutes(1);
  /// For the collective steps (deadline, store, name, group factory).
  CommunicatorOptions communicator_options = {};
};

/// A generation that all ranks agreed on.
struct PeerGeneration {
  std::uint64_t number = 0;
  std::int64_t step = -1;  ///< what its writer was given; -1 if nothing
  std::string save_id;
};

/// What `attach` found and did; alike on all ranks.
struct PeerMemoryReport {
  std::optional<PeerGeneration> generation;  ///< the newest complete one
  std::vector<std::string> refilled;         ///< files that were copied, and where to
  std::int64_t refilled_bytes = 0;
  std::vector<std::string> lost;  ///< newer generations, damaged files: what cannot be used, and why
};

/// This rank's part of a checkpoint store that lies in the memory of a group's ranks.
///
/// Thread safety: one save, load or attach at a time; the memory is served to other ranks beside them.
class DCP_API PeerMemory {
 public:
  /// Joins the vaults of the group's ranks: agrees on the newest generation that is complete in what they hold
  /// together, makes copies that are missing good again (a rank that was started anew gets its own part and the copies
  /// it is to hold), and forgets what is incomplete.
  ///
  /// \param vault  Must stay with the rank: what it held before is joined, whatever group it was in.
  /// \throws dcp::CheckpointError alike on all ranks: kInvalidArgument for more copies than there are other memories,
  ///         kState for vaults of several jobs, kComm, kDeadline.
  /// Collective: all ranks of the group.
  static std::shared_ptr<PeerMemory> attach(std::shared_ptr<MemoryVault> vault, const GroupRef& group,
                                            const PeerMemoryOptions& options = {});
  ~PeerMemory();
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  int rank() const;
  int size() const;
  const std::shared_ptr<MemoryVault>& vault() const;
  const PeerMemoryReport& report() const;
  /// The generation that a load reads: of `attach`, or of a save that was committed since. Alike on all ranks after a
  /// step that has succeeded on all.
  std::optional<PeerGeneration> newest() const;

  /// The store as files: a directory for each generation, named by `directory_of`. For this library's readers.
  const std::shared_ptr<FileSystem>& file_system() const;
  static std::string directory_of(std::uint64_t generation);

  /// For this library's own writer and reader.
  class Impl;
  Impl& impl() { return *impl_; }

 private:
  explicit PeerMemory(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace dcp

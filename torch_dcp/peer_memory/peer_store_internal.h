#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "torch_dcp/comm/group_ref.h"
#include "torch_dcp/comm/peer_link.h"
#include "torch_dcp/io/file_system.h"
#include "torch_dcp/memory/memory_vault.h"
#include "torch_dcp/peer_memory/file_note_internal.h"
#include "torch_dcp/peer_memory/peer_client_internal.h"
#include "torch_dcp/peer_memory/peer_service_internal.h"

namespace dcp::peer {

/// A file, and which ranks' vaults hold it.
struct HeldFile {
  std::uint64_t size = 0;
  std::string note = {};
  std::vector<int> holders = {};  ///< ascending
};

using HeldFiles = std::map<std::string, HeldFile>;
using HeldGenerations = std::map<std::uint64_t, HeldFiles>;

/// All that a rank needs to get at the memory of the group: its own vault, the others' through a link, and who holds
/// what. Thread safety: full, but for `connect` and the setters of one save at a time.
class PeerStore {
 public:
  PeerStore(std::shared_ptr<MemoryVault> vault, GroupRef group, PeerLinkOptions link_options);
  ~PeerStore();
  PeerStore(const PeerStore&) = delete;
  PeerStore& operator=(const PeerStore&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  int coordinator() const { return coordinator_; }
  void set_coordinator(int rank) { coordinator_ = rank; }
  MemoryVault& vault() { return *vault_; }
  const std::shared_ptr<MemoryVault>& shared_vault() const { return vault_; }

  /// Makes a link, in place of an earlier one. Collective: all ranks of the group.
  void connect();
  /// Empty as long as the link works; true words for a store without one.
  std::string broken_reason() const;
  /// Breaks the link on all ranks; the next save makes a new one.
  void break_off(const std::string& reason);

  /// By rank, who holds copies of its files.
  void set_copies(std::vector<std::vector<int>> copies) { copies_ = std::move(copies); }
  const std::vector<std::vector<int>>& copies() const { return copies_; }
  void set_held(HeldGenerations held);
  HeldGenerations held() const;

  /// What is put into files from now on is of this generation.
  void begin(std::uint64_t generation, FileNote note);
  std::uint64_t writing_generation() const { return writing_generation_; }
  const FileNote& writing_note() const { return writing_note_; }

  /// Starts a file of the generation that is written. \param is_copied  Whether it goes to this rank's copies too.
  std::unique_ptr<WritableFile> create(const std::string& name, bool is_copied);
  /// The file, here or elsewhere; null if nobody has it.
  std::shared_ptr<const RandomAccessFile> open(std::uint64_t generation, const std::string& name);
  /// Reads from whichever of the ranks gives the bytes. \throws dcp::Error with what each of them said.
  void read(const std::vector<int>& ranks, std::uint64_t generation, const std::string& name, std::uint64_t offset,
            MutableByteSpan out);

 private:
  /// Other ranks that should have it, the best first.
  std::vector<int> candidates(std::uint64_t generation, const std::string& name) const;

  std::shared_ptr<MemoryVault> vault_;
  GroupRef group_;
  PeerLinkOptions link_options_;
  int rank_ = 0;
  int size_ = 1;
  int coordinator_ = 0;
  std::unique_ptr<PeerService> service_;  // none in a world of one
  std::shared_ptr<PeerClient> client_;
  std::vector<std::vector<int>> copies_;
  std::uint64_t writing_generation_ = 0;
  FileNote writing_note_;
  mutable std::mutex mutex_;
  HeldGenerations held_;  // when the ranks met; later generations are not in it
};

/// The directory of a generation.
std::string directory_of(std::uint64_t generation);
/// The directory of the generation that is written, whose number is agreed on late.
inline constexpr const char* kNewDirectory = "new";

std::shared_ptr<FileSystem> make_peer_file_system(std::shared_ptr<PeerStore> store);

}  // namespace dcp::peer

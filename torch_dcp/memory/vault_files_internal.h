#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "torch_dcp/memory/memory_arena_internal.h"
#include "torch_dcp/memory/memory_vault.h"
#include "torch_dcp/memory/stretches_internal.h"

namespace dcp {

/// Pieces of an arena, given back with this object.
class PieceList {
 public:
  explicit PieceList(std::shared_ptr<MemoryArena> arena) : arena_(std::move(arena)) {}
  ~PieceList();
  PieceList(const PieceList&) = delete;
  PieceList& operator=(const PieceList&) = delete;

  /// Adds a piece for `wanted` bytes or fewer. \throws dcp::Error what `MemoryArena::take` throws.
  const MemoryArena::Piece& grow(std::uint64_t wanted);
  /// Gives back all units behind the first `byte_count` bytes. \pre `byte_count` <= capacity().
  void cut(std::uint64_t byte_count);

  std::uint64_t capacity() const { return capacity_; }
  const std::vector<MemoryArena::Piece>& pieces() const { return pieces_; }
  Stretches stretches() const;

 private:
  std::shared_ptr<MemoryArena> arena_;
  std::vector<MemoryArena::Piece> pieces_;
  std::uint64_t capacity_ = 0;
};

/// A file that a vault holds.
struct HeldFile {
  std::shared_ptr<const PieceList> memory;
  std::uint64_t size = 0;
  std::string note;
};

class VaultFiles;

/// A file that is being written. Used by one thread.
class FileDraft {
 public:
  FileDraft(std::shared_ptr<VaultFiles> files, std::uint64_t generation, std::string name);
  ~FileDraft();
  FileDraft(const FileDraft&) = delete;
  FileDraft& operator=(const FileDraft&) = delete;

  PieceList& memory() { return *memory_; }
  bool is_sealed() const { return is_sealed_; }
  /// Ends the file after `size` bytes and makes it visible.
  ///
  /// \throws dcp::Error kCancelled if its generation was dropped; kState if it was sealed before, or the vault has its
  ///         most files or notes; kInvalidArgument for a note that is too long, or more bytes than there is memory.
  void seal(std::uint64_t size, const std::string& note);

 private:
  friend class VaultFiles;

  std::shared_ptr<VaultFiles> files_;
  std::uint64_t generation_;
  std::string name_;
  std::shared_ptr<PieceList> memory_;
  bool is_dropped_ = false;  // guarded by the mutex of `files_`
  bool is_sealed_ = false;
};

/// Most of what a vault holds beside bytes, so that its list is bounded.
struct VaultLimits {
  static constexpr std::size_t kNameBytes = 255;
  static constexpr std::size_t kNoteBytes = std::size_t{64} << 10;
  static constexpr std::size_t kFiles = 16384;
  static constexpr std::size_t kAllNotesBytes = std::size_t{8} << 20;
};

/// The files of a vault, by generation and name, and the memory that they lie in. Thread safety: full.
class VaultFiles : public std::enable_shared_from_this<VaultFiles> {
 public:
  /// \throws dcp::Error kInvalidArgument for a budget of less than a unit of the arena, or a job's name that is empty
  /// or
  ///         too long.
  explicit VaultFiles(const MemoryVaultOptions& options);

  const std::string& job() const { return job_; }
  const std::shared_ptr<MemoryArena>& arena() const { return arena_; }

  /// \throws dcp::Error kInvalidArgument for a name that is empty or too long.
  std::unique_ptr<FileDraft> create(std::uint64_t generation, const std::string& name);
  std::optional<HeldFile> find(std::uint64_t generation, const std::string& name) const;
  void drop(std::uint64_t generation, const std::string& name);
  /// Drafts of this generation can be sealed no more.
  void drop(std::uint64_t generation);
  std::vector<VaultGeneration> list() const;

 private:
  friend class FileDraft;
  using Generation = std::map<std::string, HeldFile>;

  void keep(FileDraft& draft, HeldFile file);
  void forget(const HeldFile& file);

  const std::string job_;
  const std::shared_ptr<MemoryArena> arena_;
  mutable std::mutex mutex_;
  std::map<std::uint64_t, Generation> generations_;
  std::size_t file_count_ = 0;
  std::size_t note_bytes_ = 0;
  std::set<FileDraft*> drafts_;
};

/// A new random text of 32 hexadecimal digits, which tells one vault from another.
std::string random_vault_id();

}  // namespace dcp

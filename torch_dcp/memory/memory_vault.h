#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "torch_dcp/base/bytes.h"
#include "torch_dcp/base/export.h"
#include "torch_dcp/io/file_system.h"

namespace dcp {

/// A file that a vault holds whole.
struct VaultFile {
  std::string name;
  std::uint64_t size = 0;  ///< bytes
  std::string note;        ///< what its writer gave to `seal`, opaque to the vault
};

/// What a vault holds of one generation of a job's checkpoints.
struct VaultGeneration {
  std::uint64_t number = 0;
  std::vector<VaultFile> files;  ///< sealed ones alone, by name
};

/// How much memory a vault has taken.
struct VaultUse {
  std::uint64_t used_bytes = 0;    ///< by files, sealed or not, and by dropped ones that are still read
  std::uint64_t spare_bytes = 0;   ///< kept for the next files, so that they need not fault pages in
  std::uint64_t budget_bytes = 0;  ///< most of both together
};

/// A file that is being put into a vault. Destroyed unsealed it leaves nothing. Used by one thread.
class DCP_API VaultWriter {
 public:
  virtual ~VaultWriter();

  /// Room for the next bytes, to be filled in place: at least 1 byte, at most `wanted`. Valid until the next call.
  ///
  /// \throws dcp::Error kState 'memory budget', naming file, bytes used and budget, if there is no room left.
  virtual MutableByteSpan room(std::uint64_t wanted) = 0;
  /// The first `byte_count` bytes of the last `room` are part of the file.
  virtual void advance(std::uint64_t byte_count) = 0;
  /// Copies `bytes` to the end.
  void append(ByteSpan bytes);

  virtual std::uint64_t size() const = 0;
  /// The bytes from `offset` on that lie in one piece, at least 1 and at most `wanted`; they may be changed until
  /// `seal`. Stay where they are as long as the file is held. \pre `offset` < `size()`.
  virtual MutableByteSpan piece(std::uint64_t offset, std::uint64_t wanted) = 0;

  /// Makes the file visible, replacing one of this name.
  virtual void seal(const std::string& note) = 0;
};

/// Memory that holds files of generations of one job's checkpoints: this process's own, or that of a server process,
/// which outlives it.
///
/// Bytes of a file that was dropped or replaced stay readable for those who have it open. Thread safety: full.
class DCP_API MemoryVault {
 public:
  virtual ~MemoryVault();

  /// Tells one memory from another: ranks that share a server see the same.
  virtual const std::string& id() const = 0;
  /// The job whose checkpoints it holds.
  virtual const std::string& job() const = 0;

  /// By number, oldest first.
  virtual std::vector<VaultGeneration> list() = 0;

  virtual std::unique_ptr<VaultWriter> create(std::uint64_t generation, const std::string& name) = 0;
  /// Null if it has no such file.
  virtual std::shared_ptr<const RandomAccessFile> open(std::uint64_t generation, const std::string& name) = 0;

  /// Forgets a file; nothing happens if there is none.
  virtual void drop(std::uint64_t generation, const std::string& name) = 0;
  /// Forgets a generation, files that are being written included: sealing them throws kCancelled.
  virtual void drop(std::uint64_t generation) = 0;

  virtual VaultUse use() = 0;
};

struct MemoryVaultOptions {
  std::string job = "default";
  /// Most that all files may take. 0: half of the machine's memory.
  std::uint64_t budget_bytes = 0;
  /// Whether memory of dropped files is kept for the next ones, so that writing them needs no new pages.
  bool keep_spare = true;
};

/// Returns a new vault in this process's memory, empty.
DCP_API std::shared_ptr<MemoryVault> make_memory_vault(const MemoryVaultOptions& options = {});

}  // namespace dcp

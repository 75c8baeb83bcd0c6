#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <mutex>
#include <vector>

#include "torch_dcp/base/bytes.h"
#include "torch_dcp/io/shared_memory.h"
#include "torch_dcp/memory/memory_vault.h"

namespace dcp {

/// Memory in pieces, out of a few large blocks of shared memory, up to a budget.
///
/// A piece that is given back is the next one's: its pages are there already, which is most of what writing to new
/// memory costs. Blocks are cut in units; a piece is a run of units. There are at most `kMostBlocks` blocks, each of
/// which is a descriptor: with a larger budget they are larger. Thread safety: full.
class MemoryArena {
 public:
  static constexpr std::uint64_t kUnitBytes = std::uint64_t{64} << 10;
  /// Most bytes of one piece.
  static constexpr std::uint64_t kPieceBytes = std::uint64_t{4} << 20;
  /// Least bytes of a block, where the budget allows it.
  static constexpr std::uint64_t kBlockBytes = std::uint64_t{64} << 20;
  static constexpr std::uint64_t kMostBlocks = 128;

  struct Block;
  /// A block as others see it, who map it.
  struct BlockView {
    int fd = -1;  ///< belongs to the arena
    std::uint64_t byte_count = 0;
  };
  /// A stretch of memory that stays where it is.
  struct Piece {
    Block* block = nullptr;
    std::uint32_t first_unit = 0;
    std::uint32_t unit_count = 0;

    MutableByteSpan bytes() const;
    /// Counts from 0 in the order in which blocks were made.
    std::uint32_t block_number() const;
  };

  /// \param budget_bytes  Rounded down to whole units.
  /// \throws dcp::Error kInvalidArgument if that is less than a unit.
  MemoryArena(std::uint64_t budget_bytes, bool keep_spare);
  ~MemoryArena();
  MemoryArena(const MemoryArena&) = delete;
  MemoryArena& operator=(const MemoryArena&) = delete;

  /// A piece of `wanted` bytes or fewer, in whole units: fewer if more than `kPieceBytes` are wanted, or memory is in
  /// smaller stretches.
  ///
  /// \throws dcp::Error kState 'memory budget' if all memory is taken; kIo if the system has none.
  Piece take(std::uint64_t wanted);
  /// Gives all units of the piece behind its first `kept_bytes` back. \returns What is left of it, at least a unit.
  Piece trim(Piece piece, std::uint64_t kept_bytes);
  void give_back(const Piece& piece) noexcept;

  /// The blocks from number `first` on. \pre The arena keeps spares, so that none of them goes away.
  std::vector<BlockView> blocks_from(std::uint32_t first) const;

  VaultUse use() const;
  /// Whether all memory is taken.
  bool is_full() const;

 private:
  Block& new_block();
  void release(Block& block, std::uint32_t first, std::uint32_t count) noexcept;

  const std::uint64_t budget_units_;
  const std::uint64_t block_units_;
  const bool keep_spare_;
  mutable std::mutex mutex_;
  std::list<Block> blocks_;  // their addresses stay
  std::uint32_t next_number_ = 0;
  std::uint64_t total_units_ = 0;
  std::uint64_t used_units_ = 0;
};

}  // namespace dcp

#include <algorithm>
#include <iterator>
#include <optional>

#include "torch_dcp/base/error.h"
#include "torch_dcp/memory/memory_arena_internal.h"

namespace dcp {
namespace {

/// A run of free units.
struct Run {
  std::uint32_t first = 0;
  std::uint32_t count = 0;
};

}  // namespace

struct MemoryArena::Block {
  Block(std::uint32_t given_number, std::uint32_t unit_count)
      : number(given_number), memory(unit_count * kUnitBytes), is_taken(unit_count, false), free_count(unit_count) {}

  /// The first free run of `wanted` units, or else the longest.
  Run find(std::uint32_t wanted) const {
    Run best;
    for (std::uint32_t at = 0; at < is_taken.size() && best.count < wanted;) {
      if (is_taken[at]) {
        ++at;
        continue;
      }
      const std::uint32_t first = at;
      while (at < is_taken.size() && !is_taken[at] && at - first < wanted) ++at;
      if (at - first > best.count) best = {first, at - first};
    }
    return best;
  }

  void mark(const Run& run, bool taken) {
    std::fill_n(is_taken.begin() + run.first, run.count, taken);
    free_count = taken ? free_count - run.count : free_count + run.count;
  }

  const std::uint32_t number;
  SharedMemory memory;
  std::vector<bool> is_taken;  ///< by unit
  std::uint32_t free_count;
};

MutableByteSpan MemoryArena::Piece::bytes() const {
  return {block->memory.data() + first_unit * kUnitBytes, unit_count * kUnitBytes};
}

std::uint32_t MemoryArena::Piece::block_number() const { return block->number; }

MemoryArena::MemoryArena(std::uint64_t budget_bytes, bool keep_spare)
    : budget_units_(budget_bytes / kUnitBytes),
      block_units_(std::max(kBlockBytes / kUnitBytes, (budget_units_ + kMostBlocks - 1) / kMostBlocks)),
      keep_spare_(keep_spare) {
  DCP_CHECK(budget_units_ > 0, kInvalidArgument, "a memory budget of ", budget_bytes, " bytes, less than ", kUnitBytes);
}

MemoryArena::~MemoryArena() = default;

MemoryArena::Block& MemoryArena::new_block() {
  const std::uint64_t left = budget_units_ - total_units_;
  DCP_CHECK(left > 0, kState, "memory budget: all ", budget_units_ * kUnitBytes, " bytes are taken");
  const auto unit_count = static_cast<std::uint32_t>(std::min(left, block_units_));
  Block& block = blocks_.emplace_back(next_number_, unit_count);
  ++next_number_;
  total_units_ += unit_count;
  return block;
}

MemoryArena::Piece MemoryArena::take(std::uint64_t wanted) {
  const std::uint64_t bytes = std::clamp<std::uint64_t>(wanted, 1, kPieceBytes);
  const auto units = static_cast<std::uint32_t>((bytes + kUnitBytes - 1) / kUnitBytes);
  const std::lock_guard lock(mutex_);
  Block* best_block = nullptr;
  Run best;
  for (Block& block : blocks_) {
    if (block.free_count <= best.count) continue;
    const Run run = block.find(units);
    if (run.count <= best.count) continue;
    best_block = &block;
    best = run;
    if (best.count == units) break;
  }
  // Files in many small pieces are slow to send; yet a piece that is somewhat shorter is better than more memory.
  const bool may_grow = total_units_ < budget_units_;
  if (best_block == nullptr || (best.count * 4 < units && may_grow)) {
    best_block = &new_block();
    best = best_block->find(units);
  }
  best_block->mark(best, true);
  used_units_ += best.count;
  return {best_block, best.first, best.count};
}

void MemoryArena::release(Block& block, std::uint32_t first, std::uint32_t count) noexcept {
  block.mark({first, count}, false);
  used_units_ -= count;
  if (keep_spare_ || block.free_count < block.is_taken.size()) return;
  total_units_ -= block.is_taken.size();
  blocks_.remove_if([&](const Block& other) { return &other == &block; });
}

MemoryArena::Piece MemoryArena::trim(Piece piece, std::uint64_t kept_bytes) {
  const std::uint64_t kept = std::max<std::uint64_t>(1, (kept_bytes + kUnitBytes - 1) / kUnitBytes);
  if (kept >= piece.unit_count) return piece;
  const auto unit_count = static_cast<std::uint32_t>(kept);
  const std::lock_guard lock(mutex_);
  release(*piece.block, piece.first_unit + unit_count, piece.unit_count - unit_count);
  piece.unit_count = unit_count;
  return piece;
}

void MemoryArena::give_back(const Piece& piece) noexcept {
  const std::lock_guard lock(mutex_);
  release(*piece.block, piece.first_unit, piece.unit_count);
}

std::vector<MemoryArena::BlockView> MemoryArena::blocks_from(std::uint32_t first) const {
  std::vector<BlockView> views;
  const std::lock_guard lock(mutex_);
  for (const Block& block : blocks_) {
    if (block.number >= first) views.push_back({block.memory.fd(), block.memory.size()});
  }
  return views;
}

bool MemoryArena::is_full() const {
  const std::lock_guard lock(mutex_);
  return used_units_ == budget_units_;
}

VaultUse MemoryArena::use() const {
  const std::lock_guard lock(mutex_);
  VaultUse use;
  use.used_bytes = used_units_ * kUnitBytes;
  use.spare_bytes = (total_units_ - used_units_) * kUnitBytes;
  use.budget_bytes = budget_units_ * kUnitBytes;
  return use;
}

}  // namespace dcp

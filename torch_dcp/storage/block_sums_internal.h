#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "torch_dcp/base/bytes.h"
#include "torch_dcp/format/side_file.h"
#include "torch_dcp/io/file_system.h"
#include "torch_dcp/plan/plan.h"

// Sums of the blocks of large tensors' elements: made as the elements are written, and checked as parts are read.

namespace dcp {

/// What a rank sums at a time: what a slice reads is checked but for at most so much at either end.
inline constexpr std::int64_t kSumBlockBytes = std::int64_t{1} << 20;

/// Follows the elements of one tensor.
class BlockSummer {
 public:
  /// What `add` takes at most: a piece lies in one block.
  std::size_t room() const { return static_cast<std::size_t>(kSumBlockBytes - block_bytes_); }
  void add(ByteSpan piece);

  /// Of all that has been added.
  std::uint32_t crc32() const;
  /// Of the blocks; nothing for a single one, since a part of the tensor covers none.
  std::vector<std::uint32_t> sums() const;

 private:
  std::vector<std::uint32_t> done_;  // full blocks
  std::uint32_t all_ = 0;            // of those
  std::uint32_t block_ = 0;
  std::int64_t block_bytes_ = 0;
};

/// What all ranks summed, in blocks that are so large that a side file takes about `max_bytes` for them.
///
/// Memory: 4 bytes a MiB of elements of all ranks, up to three times over, and what the keys take.
BlockSums gather_block_sums(const std::vector<std::vector<WriteResult>>& results, const Metadata& metadata,
                            std::size_t max_bytes = std::size_t{16} << 20);

/// The sums of one item, for `BlockCheckedFile`.
struct ItemSums {
  std::int64_t block_bytes = 0;
  const std::vector<std::uint32_t>* sums = nullptr;
  bool reads_whole_blocks = false;  ///< else only blocks that are read anyway are checked
};

/// \throws dcp::Error kCorruptData if the item has another number of blocks.
void check_sum_count(const ItemSums& sums, std::int64_t byte_count);

/// Also that together they make the CRC-32 of all; 0: not recorded. \throws as check_sum_count.
void check_sums(const ItemSums& sums, std::int64_t byte_count, std::uint32_t crc32);

/// A file of which the elements of one item are read, block by block: blocks that are read whole are checked, by one
/// call or by several that follow one another.
///
/// Memory: a block, where whole ones are read. Thread safety: none, unlike other files.
class BlockCheckedFile final : public RandomAccessFile {
 public:
  /// \param begin, byte_count  Where the elements lie in the file.
  /// \param crc32              Of all elements, as the item records it; 0: not recorded.
  /// \throws dcp::Error as check_sum_count.
  BlockCheckedFile(const RandomAccessFile& file, std::int64_t begin, std::int64_t byte_count, std::uint32_t crc32,
                   const ItemSums& sums);

  std::uint64_t size() const override { return file_.size(); }
  /// \pre All of it is inside the elements.
  void read_at(std::uint64_t offset, MutableByteSpan out) const override;

  /// Where others go on to read after the next call, counted from the first element's byte. Where whole blocks are
  /// read, one that ends behind it is kept even if that call takes all of it, so that they need not read it again.
  void others_go_on_from(std::int64_t byte) { others_from_ = byte; }

 private:
  std::int64_t block_size(std::int64_t block) const;
  void read_block(std::int64_t block, MutableByteSpan out) const;
  void check_block(std::int64_t block, std::uint32_t crc32) const;
  /// Reads a part of a block, and checks the block if all of it has been read by now.
  void read_part(std::int64_t block, std::int64_t in_block, MutableByteSpan out) const;

  const RandomAccessFile& file_;
  std::int64_t begin_;
  std::int64_t byte_count_;
  std::uint32_t crc32_;
  ItemSums sums_;
  mutable Bytes kept_;  // the block that was read for a part of it
  mutable std::int64_t kept_block_ = -1;
  std::int64_t others_from_ = INT64_MAX;
  // A block that has been read from its first byte on, so far.
  mutable std::int64_t begun_block_ = -1;
  mutable std::int64_t begun_bytes_ = 0;
  mutable std::uint32_t begun_crc32_ = 0;
};

}  // namespace dcp

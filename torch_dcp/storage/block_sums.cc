#include <algorithm>
#include <cstring>
#include <utility>

#include "torch_dcp/base/error.h"
#include "torch_dcp/format/crc32.h"
#include "torch_dcp/storage/block_sums_internal.h"
#include "torch_dcp/tensor/dtype.h"

namespace dcp {
namespace {

/// Small enough that the bytes are still in the cache for the checksum after they were read.
constexpr std::size_t kPieceBytes = std::size_t{256} << 10;

/// The length of an item's block in bytes.
std::int64_t length_of(std::size_t block, std::int64_t block_bytes, std::int64_t byte_count) {
  return std::min(block_bytes, byte_count - static_cast<std::int64_t>(block) * block_bytes);
}

std::uint32_t combined(const std::vector<std::uint32_t>& sums, std::int64_t block_bytes, std::int64_t byte_count) {
  std::uint32_t all = sums[0];
  for (std::size_t block = 1; block < sums.size(); ++block) {
    all = crc32_combine(all, sums[block], length_of(block, block_bytes, byte_count));
  }
  return all;
}

std::int64_t element_bytes_of(const Metadata& metadata, const MetadataIndex& index) {
  const std::optional<Box> chunk = find_chunk(metadata, index);
  DCP_CHECK(chunk, kInternal, to_string(index), " was summed and is no chunk");
  const auto& tensor = std::get<TensorStorageMetadata>(*metadata.state_dict_metadata.find(index.fqn));
  return chunk->numel() * element_bytes(tensor.properties.dtype);
}

/// Blocks of twice the size.
BlockSums widened(const BlockSums& narrow, const Metadata& metadata) {
  BlockSums wide;
  wide.block_bytes = 2 * narrow.block_bytes;
  for (const auto& [index, sums] : narrow.items) {
    if (sums.size() <= 2) continue;
    const std::int64_t byte_count = element_bytes_of(metadata, index);
    std::vector<std::uint32_t> joined;
    for (std::size_t block = 0; block < sums.size(); block += 2) {
      joined.push_back(block + 1 == sums.size() ? sums[block]
                                                : crc32_combine(sums[block], sums[block + 1],
                                                                length_of(block + 1, narrow.block_bytes, byte_count)));
    }
    wide.items.insert(index, std::move(joined));
  }
  return wide;
}

/// About what these take there: 8 digits a sum, and the name of the chunk.
std::size_t side_file_bytes(const BlockSums& block_sums) {
  constexpr std::size_t kSumBytes = 8;
  constexpr std::size_t kOffsetBytes = 8;
  constexpr std::size_t kFrameBytes = 10;
  std::size_t bytes = 0;
  for (const auto& [index, sums] : block_sums.items) {
    bytes += kFrameBytes + index.fqn.size() + index.offset->size() * kOffsetBytes + sums.size() * kSumBytes;
  }
  return bytes;
}

}  // namespace

void BlockSummer::add(ByteSpan piece) {
  block_ = crc32_of(piece, block_);
  block_bytes_ += static_cast<std::int64_t>(piece.size());
  if (block_bytes_ < kSumBlockBytes) return;
  all_ = crc32();
  done_.push_back(std::exchange(block_, 0));
  block_bytes_ = 0;
}

std::uint32_t BlockSummer::crc32() const { return crc32_combine(all_, block_, block_bytes_); }

std::vector<std::uint32_t> BlockSummer::sums() const {
  std::vector<std::uint32_t> sums = done_;
  if (block_bytes_ > 0) sums.push_back(block_);
  if (sums.size() < 2) sums.clear();
  return sums;
}

BlockSums gather_block_sums(const std::vector<std::vector<WriteResult>>& results, const Metadata& metadata,
                            std::size_t max_bytes) {
  BlockSums all;
  all.block_bytes = kSumBlockBytes;
  for (const std::vector<WriteResult>& rank_results : results) {
    for (const WriteResult& result : rank_results) {
      if (!result.block_sums.empty()) all.items.insert(result.index, result.block_sums);
    }
  }
  while (side_file_bytes(all) > max_bytes && 2 * all.block_bytes <= BlockSums::kMaxBlockBytes) {
    all = widened(all, metadata);
  }
  if (side_file_bytes(all) > max_bytes) all.items = {};  // About 128 TiB.
  return all;
}

void check_sum_count(const ItemSums& sums, std::int64_t byte_count) {
  DCP_CHECK(byte_count > 0 && std::cmp_equal((byte_count - 1) / sums.block_bytes + 1, sums.sums->size()), kCorruptData,
            "the side file has ", sums.sums->size(), " sums of ", sums.block_bytes, " bytes each for ", byte_count,
            " bytes of elements");
}

void check_sums(const ItemSums& sums, std::int64_t byte_count, std::uint32_t crc32) {
  check_sum_count(sums, byte_count);
  DCP_CHECK(
      crc32 == 0 || combined(*sums.sums, sums.block_bytes, byte_count) == crc32, kCorruptData,
      "the sums of its blocks do not make its CRC-32: the side file is damaged (without that file, parts of items "
      "are read without a check)");
}

BlockCheckedFile::BlockCheckedFile(const RandomAccessFile& file, std::int64_t begin, std::int64_t byte_count,
                                   std::uint32_t crc32, const ItemSums& sums)
    : file_(file), begin_(begin), byte_count_(byte_count), crc32_(crc32), sums_(sums) {
  check_sum_count(sums, byte_count);
}

std::int64_t BlockCheckedFile::block_size(std::int64_t block) const {
  return length_of(static_cast<std::size_t>(block), sums_.block_bytes, byte_count_);
}

void BlockCheckedFile::check_block(std::int64_t block, std::uint32_t crc32) const {
  const std::vector<std::uint32_t>& sums = *sums_.sums;
  const std::uint32_t recorded = sums[static_cast<std::size_t>(block)];
  if (crc32 == recorded) return;
  check_sums(sums_, byte_count_, crc32_);
  DCP_THROW(kCorruptData, "the elements' bytes [", block * sums_.block_bytes, ", ",
            block * sums_.block_bytes + block_size(block), ") have the CRC-32 ", crc32, ", recorded is ", recorded,
            ": the stored bytes are damaged");
}

void BlockCheckedFile::read_block(std::int64_t block, MutableByteSpan out) const {
  auto at = static_cast<std::uint64_t>(begin_ + block * sums_.block_bytes);
  std::uint32_t crc32 = 0;
  while (!out.empty()) {
    const MutableByteSpan piece = out.first(std::min(out.size(), kPieceBytes));
    file_.read_at(at, piece);
    crc32 = crc32_of(piece, crc32);
    at += piece.size();
    out = out.subspan(piece.size());
  }
  check_block(block, crc32);
}

void BlockCheckedFile::read_part(std::int64_t block, std::int64_t in_block, MutableByteSpan out) const {
  if (in_block == 0) {
    begun_block_ = block;
    begun_bytes_ = 0;
    begun_crc32_ = 0;
  }
  const bool goes_on = begun_block_ == block && begun_bytes_ == in_block;
  auto at = static_cast<std::uint64_t>(begin_ + block * sums_.block_bytes + in_block);
  while (!out.empty()) {
    const MutableByteSpan piece = goes_on ? out.first(std::min(out.size(), kPieceBytes)) : out;
    file_.read_at(at, piece);
    if (goes_on) begun_crc32_ = crc32_of(piece, begun_crc32_);
    if (goes_on) begun_bytes_ += static_cast<std::int64_t>(piece.size());
    at += piece.size();
    out = out.subspan(piece.size());
  }
  if (goes_on && begun_bytes_ == block_size(block)) check_block(block, begun_crc32_);
}

void BlockCheckedFile::read_at(std::uint64_t offset, MutableByteSpan out) const {
  auto at = static_cast<std::int64_t>(offset) - begin_;  // within the elements
  while (!out.empty()) {
    const std::int64_t block = at / sums_.block_bytes;
    const std::int64_t in_block = at - block * sums_.block_bytes;
    const auto left = static_cast<std::size_t>(block_size(block) - in_block);
    const MutableByteSpan piece = out.first(std::min(out.size(), left));
    const bool takes_all = in_block == 0 && piece.size() == left;
    const bool is_kept = sums_.reads_whole_blocks && kept_block_ == block;
    const bool is_for_others = sums_.reads_whole_blocks && others_from_ < block * sums_.block_bytes + block_size(block);
    if (takes_all && !is_kept && !is_for_others) {
      read_block(block, piece);
    } else if (sums_.reads_whole_blocks) {
      if (!is_kept) {
        kept_block_ = -1;
        kept_.resize(static_cast<std::size_t>(block_size(block)));
        read_block(block, kept_);
        kept_block_ = block;
      }
      std::memcpy(piece.data(), kept_.data() + in_block, piece.size());
    } else {
      read_part(block, in_block, piece);
    }
    at += static_cast<std::int64_t>(piece.size());
    out = out.subspan(piece.size());
  }
}

}  // namespace dcp

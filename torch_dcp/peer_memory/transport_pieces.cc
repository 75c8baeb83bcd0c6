#include <ATen/ATen.h>

#include <algorithm>

#include "torch_dcp/base/byte_codec.h"
#include "torch_dcp/base/error.h"
#include "torch_dcp/format/crc32.h"
#include "torch_dcp/peer_memory/transport_pieces_internal.h"

namespace dcp {
namespace {

constexpr std::int64_t kSmallBytes = std::int64_t{64} << 10;

at::Tensor part_of(const TransportBlock& block, const PieceSegment& segment) {
  return block.bytes.narrow(0, segment.offset, segment.bytes);
}

}  // namespace

std::vector<Piece> cut_pieces(const std::vector<std::int64_t>& storage_bytes, std::int64_t piece_bytes) {
  std::vector<Piece> pieces;
  bool is_open = false;  // whether the last piece may take more
  const auto cut = [&](std::size_t storage) {
    for (std::int64_t offset = 0; offset < storage_bytes[storage];) {
      if (!is_open || pieces.back().bytes == piece_bytes) pieces.emplace_back();
      is_open = true;
      Piece& piece = pieces.back();
      const std::int64_t bytes = std::min(storage_bytes[storage] - offset, piece_bytes - piece.bytes);
      piece.segments.push_back({storage, offset, bytes});
      piece.bytes += bytes;
      offset += bytes;
    }
  };
  for (std::size_t i = 0; i < storage_bytes.size(); ++i) {
    if (storage_bytes[i] <= kSmallBytes) cut(i);
  }
  for (std::size_t i = 0; i < storage_bytes.size(); ++i) {
    if (storage_bytes[i] <= kSmallBytes) continue;
    is_open = false;
    cut(i);
  }
  return pieces;
}

std::vector<Piece> pieces_of(const std::vector<TransportBlock>& blocks, std::int64_t piece_bytes) {
  std::vector<std::int64_t> sizes;
  sizes.reserve(blocks.size());
  for (const TransportBlock& block : blocks) sizes.push_back(block.bytes.numel());
  return cut_pieces(sizes, piece_bytes);
}

ByteSpan span_of(const at::Tensor& bytes) {
  return {static_cast<const std::uint8_t*>(bytes.const_data_ptr()), bytes.nbytes()};
}

std::string name_of(const Piece& piece, const std::vector<TransportBlock>& blocks) {
  const std::string& first = blocks[piece.segments.front().storage].name;
  const std::size_t others = piece.segments.size() - 1;
  return others == 0 ? first : c10::str(first, " and ", others, " more");
}

at::Tensor room_for(const Piece& piece) { return at::empty({piece.bytes}, at::TensorOptions(at::kByte)); }

at::Tensor packed(const Piece& piece, const std::vector<TransportBlock>& blocks) {
  at::Tensor bytes;
  if (piece.segments.size() == 1) {
    bytes = part_of(blocks[piece.segments.front().storage], piece.segments.front()).cpu();
  } else {
    bytes = room_for(piece);
    std::int64_t at = 0;
    for (const PieceSegment& segment : piece.segments) {
      bytes.narrow(0, at, segment.bytes).copy_(part_of(blocks[segment.storage], segment));
      at += segment.bytes;
    }
  }
  return bytes;
}

bool goes_straight(const Piece& piece, const std::vector<TransportBlock>& blocks) {
  return piece.segments.size() == 1 && blocks[piece.segments.front().storage].bytes.is_cpu();
}

at::Tensor place_of(const Piece& piece, const std::vector<TransportBlock>& blocks) {
  return part_of(blocks[piece.segments.front().storage], piece.segments.front());
}

void sum_up(const Piece& piece, const at::Tensor& bytes, std::vector<TransportBlock>& blocks) {
  const ByteSpan all = span_of(bytes);
  std::size_t at = 0;
  for (const PieceSegment& segment : piece.segments) {
    TransportBlock& block = blocks[segment.storage];
    block.sum = crc32_of(all.subspan(at, static_cast<std::size_t>(segment.bytes)), block.sum);
    at += static_cast<std::size_t>(segment.bytes);
  }
}

void unpack(const Piece& piece, const at::Tensor& bytes, const std::vector<TransportBlock>& blocks) {
  std::int64_t at = 0;
  for (const PieceSegment& segment : piece.segments) {
    part_of(blocks[segment.storage], segment).copy_(bytes.narrow(0, at, segment.bytes));
    at += segment.bytes;
  }
}

Bytes encode_sums(const std::vector<TransportBlock>& blocks) {
  ByteWriter out;
  for (const TransportBlock& block : blocks) out.u32(block.sum);
  Bytes bytes = std::move(out).take();
  ByteWriter sum;
  sum.u32(crc32_of(bytes));
  const Bytes last = std::move(sum).take();
  bytes.insert(bytes.end(), last.begin(), last.end());
  return bytes;
}

void check_sums(const Bytes& sums, const std::vector<TransportBlock>& blocks) {
  ByteReader in(sums);
  std::string wrong;
  std::size_t count = 0;
  for (const TransportBlock& block : blocks) {
    if (in.u32() != block.sum && count++ == 0) wrong = block.name;
  }
  DCP_CHECK(crc32_of(ByteSpan(sums).first(sums.size() - sizeof(std::uint32_t))) == in.u32(), kCorruptData,
            "the sums arrived damaged");
  DCP_CHECK(count == 0, kCorruptData, "key '", wrong, "'", count > 1 ? c10::str(" and ", count - 1, " more") : "",
            ": the bytes have another CRC-32 than those that were sent");
}

}  // namespace dcp

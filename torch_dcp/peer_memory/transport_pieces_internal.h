#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "torch_dcp/base/bytes.h"

namespace dcp {

/// A part of one storage's bytes.
struct PieceSegment {
  std::size_t storage = 0;
  std::int64_t offset = 0;  ///< from the first byte that is sent of it
  std::int64_t bytes = 0;
};

/// What travels in one message: a part of one storage, or several small ones.
struct Piece {
  std::vector<PieceSegment> segments;
  std::int64_t bytes = 0;
};

/// How both ends cut storages of these sizes: first all small ones (up to 64 KiB), packed one after another, then each
/// larger one by itself. No piece is larger than `piece_bytes`. The pieces of a storage come in their order.
std::vector<Piece> cut_pieces(const std::vector<std::int64_t>& storage_bytes, std::int64_t piece_bytes);

/// A storage's bytes, sent or to be filled, on any device.
struct TransportBlock {
  at::Tensor bytes;  // uint8
  std::string name;  // key of a tensor that lies in it
  std::uint32_t sum = 0;
};

std::vector<Piece> pieces_of(const std::vector<TransportBlock>& blocks, std::int64_t piece_bytes);

/// Of the tensors in a piece, for errors.
std::string name_of(const Piece& piece, const std::vector<TransportBlock>& blocks);
ByteSpan span_of(const at::Tensor& bytes);
/// Room on the CPU.
at::Tensor room_for(const Piece& piece);
/// Whether the piece lies in one place on the CPU.
bool goes_straight(const Piece& piece, const std::vector<TransportBlock>& blocks);
/// Its place there.
at::Tensor place_of(const Piece& piece, const std::vector<TransportBlock>& blocks);
/// The piece's bytes in one place on the CPU: where they are, if they are there.
at::Tensor packed(const Piece& piece, const std::vector<TransportBlock>& blocks);
/// The reverse.
void unpack(const Piece& piece, const at::Tensor& bytes, const std::vector<TransportBlock>& blocks);
/// Continues the sums of the piece's blocks.
void sum_up(const Piece& piece, const at::Tensor& bytes, std::vector<TransportBlock>& blocks);

Bytes encode_sums(const std::vector<TransportBlock>& blocks);
/// \throws dcp::Error kCorruptData, naming a key, if they are not those of `blocks`.
void check_sums(const Bytes& sums, const std::vector<TransportBlock>& blocks);

}  // namespace dcp

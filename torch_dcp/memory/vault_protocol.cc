#include "torch_dcp/base/error.h"
#include "torch_dcp/memory/memory_arena_internal.h"
#include "torch_dcp/memory/vault_protocol_internal.h"

namespace dcp::vault_protocol {

void encode(ByteWriter& writer, const std::vector<PiecePlace>& pieces) {
  writer.u64(pieces.size());
  for (const PiecePlace& piece : pieces) {
    writer.u32(piece.block);
    writer.u32(piece.first_unit);
    writer.u32(piece.unit_count);
  }
}

void decode(ByteReader& reader, std::vector<PiecePlace>& pieces) {
  pieces.resize(reader.count(kPiecePlaceBytes));
  for (PiecePlace& piece : pieces) {
    piece.block = reader.u32();
    piece.first_unit = reader.u32();
    piece.unit_count = reader.u32();
  }
}

void encode(ByteWriter& writer, const std::vector<VaultGeneration>& generations) {
  writer.u64(generations.size());
  for (const VaultGeneration& generation : generations) {
    writer.u64(generation.number);
    writer.u64(generation.files.size());
    for (const VaultFile& file : generation.files) {
      writer.text(file.name);
      writer.u64(file.size);
      writer.text(file.note);
    }
  }
}

void decode(ByteReader& reader, std::vector<VaultGeneration>& generations) {
  generations.resize(reader.count(16));
  for (VaultGeneration& generation : generations) {
    generation.number = reader.u64();
    generation.files.resize(reader.count(24));
    for (VaultFile& file : generation.files) {
      file.name = reader.text();
      file.size = reader.u64();
      file.note = reader.text();
    }
  }
}

void encode(ByteWriter& writer, const AnswerHead& head) {
  writer.u64(head.new_blocks.size());
  for (const std::uint64_t byte_count : head.new_blocks) writer.u64(byte_count);
  writer.boolean(head.is_good);
  if (head.is_good) return;
  writer.u8(static_cast<std::uint8_t>(head.kind));
  writer.text(head.message);
}

void decode(ByteReader& reader, AnswerHead& head) {
  head.new_blocks.resize(reader.count(8));
  DCP_CHECK(head.new_blocks.size() <= MemoryArena::kMostBlocks, kCorruptData, "an answer with ", head.new_blocks.size(),
            " blocks");
  for (std::uint64_t& byte_count : head.new_blocks) byte_count = reader.u64();
  head.is_good = reader.boolean();
  if (head.is_good) return;
  const std::uint8_t kind = reader.u8();
  DCP_CHECK(kind <= static_cast<std::uint8_t>(ErrorKind::kInternal), kCorruptData, "an answer with an error of kind ",
            static_cast<int>(kind));
  head.kind = static_cast<ErrorKind>(kind);
  head.message = reader.text();
}

}  // namespace dcp::vault_protocol

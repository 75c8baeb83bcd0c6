#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "torch_dcp/base/byte_codec.h"
#include "torch_dcp/memory/memory_vault.h"

namespace dcp::peer {

/// What this room notes of a file in a vault.
struct FileNote {
  std::uint32_t crc = 0;  ///< zip's, of all bytes
  std::int64_t step = -1;
  std::string save_id = {};
};

/// As a text of bytes, for `VaultFile::note`.
inline std::string to_note(const FileNote& note) {
  ByteWriter writer;
  writer.u32(note.crc);
  writer.i64(note.step);
  writer.text(note.save_id);
  const Bytes bytes = std::move(writer).take();
  return std::string(as_text(bytes));
}

/// \throws dcp::Error kCorruptData for what is no note.
inline FileNote from_note(std::string_view text) {
  ByteReader reader(as_bytes(text));
  FileNote note;
  note.crc = reader.u32();
  note.step = reader.i64();
  note.save_id = reader.text();
  reader.expect_end();
  return note;
}

/// Whether the bytes in memory are those that were sealed. Reads all of them.
bool is_intact(MemoryVault& vault, std::uint64_t generation, const VaultFile& file);

}  // namespace dcp::peer

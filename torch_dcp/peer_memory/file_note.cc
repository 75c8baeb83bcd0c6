#include <algorithm>

#include "torch_dcp/base/error.h"
#include "torch_dcp/format/crc32.h"
#include "torch_dcp/peer_memory/file_note_internal.h"

namespace dcp::peer {

bool is_intact(MemoryVault& vault, std::uint64_t generation, const VaultFile& file) {
  constexpr std::uint64_t kPart = std::uint64_t{1} << 20;
  const auto opened = vault.open(generation, file.name);
  if (!opened) return false;
  try {
    const FileNote note = from_note(file.note);
    Bytes part(std::min(kPart, opened->size()));
    std::uint32_t crc = 0;
    for (std::uint64_t at = 0; at < opened->size(); at += part.size()) {
      part.resize(std::min(kPart, opened->size() - at));
      opened->read_at(at, part);
      crc = crc32_of(part, crc);
    }
    return crc == note.crc;
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kCorruptData) throw;
    return false;
  }
}

}  // namespace dcp::peer

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "torch_dcp/base/byte_codec.h"
#include "torch_dcp/base/error.h"
#include "torch_dcp/memory/memory_vault.h"

// What a client and a server of a vault say to each other: frames of a length (32 bits) and that many bytes. The server
// greets with an empty answer, or the reason why it does not serve; the client's first request is kHello. Bytes of
// files never travel: both map the server's blocks, whose descriptors come with the first answer that names them.

namespace dcp::vault_protocol {

inline constexpr std::uint32_t kVersion = 1;
/// Most bytes of a request: a note, a name, and some numbers.
inline constexpr std::uint32_t kRequestBytes = std::uint32_t{96} << 10;
/// Most bytes of an answer.
inline constexpr std::uint32_t kAnswerBytes = std::uint32_t{16} << 20;
/// Most memory that one kGrow gives.
inline constexpr std::uint64_t kGrowBytes = std::uint64_t{64} << 20;
/// Most pieces of a file, so that they fit into an answer.
inline constexpr std::size_t kPieces = std::size_t{1} << 20;
/// Most files that a client writes and reads at a time.
inline constexpr std::size_t kHandles = 4096;

enum class Request : std::uint8_t {
  kHello = 1,       ///< version (32 bits), job -> id, job
  kCreate,          ///< generation, name -> handle
  kGrow,            ///< handle, wanted bytes -> pieces
  kSeal,            ///< handle, size, note
  kOpen,            ///< generation, name -> whether there is one; handle, size, pieces
  kRelease,         ///< handle; without an answer
  kDropFile,        ///< generation, name
  kDropGeneration,  ///< generation
  kList,            ///< -> generations
  kUse,             ///< -> used, spare, budget
};

/// A piece of a file: units of a block.
struct PiecePlace {
  std::uint32_t block = 0;
  std::uint32_t first_unit = 0;
  std::uint32_t unit_count = 0;
};
inline constexpr std::size_t kPiecePlaceBytes = 12;

inline ByteWriter begin_request(Request request) {
  ByteWriter writer;
  writer.u8(static_cast<std::uint8_t>(request));
  return writer;
}

void encode(ByteWriter& writer, const std::vector<PiecePlace>& pieces);
void decode(ByteReader& reader, std::vector<PiecePlace>& pieces);
void encode(ByteWriter& writer, const std::vector<VaultGeneration>& generations);
void decode(ByteReader& reader, std::vector<VaultGeneration>& generations);

/// What an answer begins with.
struct AnswerHead {
  std::vector<std::uint64_t> new_blocks;  ///< bytes of the blocks whose descriptors come along
  bool is_good = true;
  ErrorKind kind = ErrorKind::kInternal;  ///< if not good
  std::string message;                    ///< if not good
};
void encode(ByteWriter& writer, const AnswerHead& head);
void decode(ByteReader& reader, AnswerHead& head);

}  // namespace dcp::vault_protocol

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "torch_dcp/base/bytes.h"
#include "torch_dcp/base/error.h"

// What ranks ask of each other's memories: a head of fixed size under `kRequestTag`, and bytes and answers under tags
// of the call.

namespace dcp::peer {

inline constexpr std::uint32_t kRequestTag = 1;
inline constexpr std::size_t kHeadBytes = 768;
inline constexpr std::size_t kMostNameBytes = 255;
inline constexpr std::size_t kMostNoteBytes = 255;
/// Bytes of one message, and of one read.
inline constexpr std::uint64_t kPieceBytes = std::uint64_t{4} << 20;
/// How much memory to ask for, for the next `byte_count` bytes of a file of `size` bytes: more than they need, so that
/// many small parts lie in one stretch, but never more than the file has already, so that a small one takes little of a
/// budget.
constexpr std::uint64_t room_for(std::uint64_t byte_count, std::uint64_t size) {
  const std::uint64_t wanted = byte_count > size ? byte_count : size;
  return wanted < kPieceBytes ? wanted : kPieceBytes;
}
/// Calls are numbered below this, and then from 0 again.
inline constexpr std::uint32_t kCalls = std::uint32_t{1} << 28;

/// Of bytes from the rank that asks, and of the answer to it, head and bytes.
constexpr std::uint32_t data_tag(std::uint32_t call) { return 2 + call; }
constexpr std::uint32_t answer_tag(std::uint32_t call) { return 2 + kCalls + call; }

enum class Verb : std::uint8_t {
  kPutBegin,  ///< a file is to come
  kPutPiece,  ///< its next `byte_count` bytes follow
  kPutSeal,   ///< it is whole; answered
  kPutDrop,   ///< it will not come
  kRead,      ///< answered with the file's size, and if it is there `byte_count` bytes from `offset` on
};

struct Request {
  Verb verb = Verb::kRead;
  std::uint32_t call = 0;
  std::uint64_t generation = 0;
  std::uint64_t offset = 0;
  std::uint64_t byte_count = 0;
  std::string name = {};
  std::string note = {};
};

struct Answer {
  bool is_good = true;
  ErrorKind kind = ErrorKind::kInternal;  ///< of a bad one
  std::string text = {};                  ///< of a bad one; cut if it is long
  std::uint64_t size = 0;                 ///< of the file
};

/// \throws dcp::Error kInvalidArgument if name or note is too long.
Bytes encode_head(const Request& request);
Bytes encode_head(const Answer& answer);
/// \throws dcp::Error kCorruptData for what is no head.
Request decode_request(ByteSpan head);
Answer decode_answer(ByteSpan head);

}  // namespace dcp::peer

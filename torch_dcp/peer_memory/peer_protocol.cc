#include <algorithm>
#include <utility>

#include "torch_dcp/base/byte_codec.h"
#include "torch_dcp/peer_memory/peer_protocol_internal.h"

namespace dcp::peer {
namespace {

constexpr std::size_t kMostTextBytes = kHeadBytes - 64;

Bytes padded(ByteWriter&& writer) {
  Bytes head = std::move(writer).take();
  DCP_CHECK(head.size() <= kHeadBytes, kInternal, "a head of ", head.size(), " bytes");
  head.resize(kHeadBytes, 0);
  return head;
}

std::string bounded_text(ByteReader& reader, std::size_t most, const char* what) {
  std::string text = reader.text();
  DCP_CHECK(text.size() <= most, kCorruptData, "message has a ", what, " of ", text.size(), " bytes");
  return text;
}

}  // namespace

Bytes encode_head(const Request& request) {
  DCP_CHECK(request.name.size() <= kMostNameBytes, kInvalidArgument, "a file name of ", request.name.size(), " bytes");
  DCP_CHECK(request.note.size() <= kMostNoteBytes, kInvalidArgument, "a note of ", request.note.size(), " bytes");
  ByteWriter writer;
  writer.u8(static_cast<std::uint8_t>(request.verb));
  writer.u32(request.call);
  writer.u64(request.generation);
  writer.u64(request.offset);
  writer.u64(request.byte_count);
  writer.text(request.name);
  writer.text(request.note);
  return padded(std::move(writer));
}

Request decode_request(ByteSpan head) {
  ByteReader reader(head);
  Request request;
  const int verb = reader.u8();
  DCP_CHECK(verb <= static_cast<int>(Verb::kRead), kCorruptData, "message asks for ", verb);
  request.verb = static_cast<Verb>(verb);
  request.call = reader.u32();
  request.generation = reader.u64();
  request.offset = reader.u64();
  request.byte_count = reader.u64();
  request.name = bounded_text(reader, kMostNameBytes, "file name");
  request.note = bounded_text(reader, kMostNoteBytes, "note");
  DCP_CHECK(request.call < kCalls && request.byte_count <= kPieceBytes, kCorruptData, "message has call ", request.call,
            " and ", request.byte_count, " bytes");
  return request;
}

Bytes encode_head(const Answer& answer) {
  ByteWriter writer;
  writer.boolean(answer.is_good);
  writer.u8(static_cast<std::uint8_t>(answer.kind));
  writer.u64(answer.size);
  writer.text(std::string_view(answer.text).substr(0, kMostTextBytes));
  return padded(std::move(writer));
}

Answer decode_answer(ByteSpan head) {
  ByteReader reader(head);
  Answer answer;
  answer.is_good = reader.boolean();
  const int kind = reader.u8();
  DCP_CHECK(kind <= static_cast<int>(ErrorKind::kInternal), kCorruptData, "message has ", kind, " for a kind of error");
  answer.kind = static_cast<ErrorKind>(kind);
  answer.size = reader.u64();
  answer.text = bounded_text(reader, kMostTextBytes, "text");
  return answer;
}

}  // namespace dcp::peer

#include <string_view>
#include <utility>

#include "torch_dcp/base/byte_codec.h"
#include "torch_dcp/peer_memory/transport_messages_internal.h"

namespace dcp {
namespace {

constexpr std::uint32_t kMagic = 0x70647472;

void encode(ByteWriter& out, const std::optional<TransportFailure>& failure) {
  out.boolean(failure.has_value());
  if (!failure) return;
  constexpr std::size_t kMaxText = kTransportFixedBytes - 128;
  out.u8(static_cast<std::uint8_t>(failure->kind));
  out.text(std::string_view(failure->text).substr(0, kMaxText));
}

std::optional<TransportFailure> decode_failure(ByteReader& in) {
  if (!in.boolean()) return std::nullopt;
  const auto kind = static_cast<ErrorKind>(in.u8());
  DCP_CHECK(kind <= ErrorKind::kInternal, kCorruptData, "an error of kind ", static_cast<int>(kind));
  return TransportFailure{kind, in.text()};
}

std::shared_ptr<Bytes> fixed(ByteWriter writer) {
  auto bytes = std::make_shared<Bytes>(std::move(writer).take());
  bytes->resize(kTransportFixedBytes);
  return bytes;
}

}  // namespace

std::shared_ptr<Bytes> encode_preface(const TransportPreface& preface) {
  ByteWriter out;
  out.u32(kMagic);
  encode(out, preface.failure);
  out.i64(preface.step);
  out.u64(preface.head_bytes);
  out.u32(preface.head_sum);
  out.i64(preface.piece_bytes);
  return fixed(std::move(out));
}

TransportPreface decode_preface(const Bytes& bytes) {
  ByteReader in(bytes);
  DCP_CHECK(in.u32() == kMagic, kCorruptData, "what came is no state");
  TransportPreface preface;
  preface.failure = decode_failure(in);
  preface.step = in.i64();
  preface.head_bytes = in.u64();
  preface.head_sum = in.u32();
  preface.piece_bytes = in.i64();
  return preface;
}

std::shared_ptr<Bytes> encode_answer(const std::optional<TransportFailure>& failure) {
  ByteWriter out;
  encode(out, failure);
  return fixed(std::move(out));
}

std::optional<TransportFailure> decode_answer(const Bytes& bytes) {
  ByteReader in(bytes);
  return decode_failure(in);
}

TransportFailure current_transport_failure(int rank) {
  RankFailure failure = current_failure(rank);
  return {failure.kind, std::move(failure.message)};
}

}  // namespace dcp

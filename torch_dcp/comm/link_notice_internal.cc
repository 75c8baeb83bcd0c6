#include "torch_dcp/comm/link_notice_internal.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "torch_dcp/base/byte_codec.h"

namespace dcp {

Bytes encode_notice(const std::optional<LinkEnd>& end) {
  constexpr std::size_t kHeadBytes = 1 + 1 + 8;
  ByteWriter writer;
  writer.boolean(end.has_value());
  if (end) {
    writer.u8(static_cast<std::uint8_t>(end->kind));
    writer.text(std::string_view(end->reason).substr(0, kNoticeBytes - kHeadBytes));
  }
  Bytes bytes = std::move(writer).take();
  bytes.resize(kNoticeBytes);
  return bytes;
}

std::optional<LinkEnd> decode_notice(const Bytes& bytes) {
  ByteReader reader(bytes);
  if (!reader.boolean()) return std::nullopt;
  LinkEnd end;
  end.kind = static_cast<ErrorKind>(std::min(reader.u8(), static_cast<std::uint8_t>(ErrorKind::kInternal)));
  end.reason = reader.text();
  return end;
}

}  // namespace dcp

#include "torch_dcp/comm/envelope_internal.h"

#include <algorithm>
#include <utility>

namespace dcp {

void encode_failures(ByteWriter& writer, const std::vector<RankFailure>& failures) {
  writer.u64(failures.size());
  for (const RankFailure& failure : failures) {
    writer.i64(failure.rank);
    writer.u8(static_cast<std::uint8_t>(failure.kind));
    writer.text(failure.message);
    writer.text(failure.where);
  }
}

std::vector<RankFailure> decode_failures(ByteReader& reader) {
  constexpr std::size_t kMinBytes = 8 + 1 + 8 + 8;
  std::vector<RankFailure> failures(reader.count(kMinBytes));
  for (RankFailure& failure : failures) {
    failure.rank = static_cast<int>(reader.i64());
    const std::uint8_t kind = reader.u8();
    DCP_CHECK(kind <= static_cast<std::uint8_t>(ErrorKind::kInternal), kCorruptData, "no error kind has number ",
              static_cast<int>(kind));
    failure.kind = static_cast<ErrorKind>(kind);
    failure.message = reader.text();
    failure.where = reader.text();
  }
  return failures;
}

Envelope failure_envelope(const std::vector<RankFailure>& failures) {
  ByteWriter writer;
  encode_failures(writer, failures);
  return {true, std::move(writer).take()};
}

std::vector<RankFailure> collect_failures(const std::vector<Envelope>& envelopes) {
  std::vector<RankFailure> failures;
  for (const Envelope& envelope : envelopes) {
    if (!envelope.failed) continue;
    ByteReader reader(envelope.body);
    for (RankFailure& failure : decode_failures(reader)) failures.push_back(std::move(failure));
    reader.expect_end();
  }
  const auto is_cancelled = [](const RankFailure& failure) { return failure.kind == ErrorKind::kCancelled; };
  if (!std::all_of(failures.begin(), failures.end(), is_cancelled)) std::erase_if(failures, is_cancelled);
  std::stable_sort(failures.begin(), failures.end(),
                   [](const RankFailure& a, const RankFailure& b) { return a.rank < b.rank; });
  return failures;
}

}  // namespace dcp

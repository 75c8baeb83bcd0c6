#include "torch_dcp/base/byte_codec.h"

#include <bit>

#include "torch_dcp/base/error.h"

namespace dcp {
namespace {

template <typename T>
T little_endian(ByteSpan bytes) {
  T value = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i) value |= static_cast<T>(static_cast<T>(bytes[i]) << (8 * i));
  return value;
}

}  // namespace

void ByteWriter::f64(double value) { u64(std::bit_cast<std::uint64_t>(value)); }

void ByteWriter::bytes(ByteSpan value) {
  u64(value.size());
  bytes_.insert(bytes_.end(), value.begin(), value.end());
}

ByteSpan ByteReader::take(std::uint64_t byte_count) {
  DCP_CHECK(byte_count <= rest_.size(), kCorruptData, "message too short: ", byte_count, " bytes wanted, ",
            rest_.size(), " left");
  const ByteSpan taken = rest_.first(byte_count);
  rest_ = rest_.subspan(byte_count);
  return taken;
}

bool ByteReader::boolean() {
  const std::uint8_t value = u8();
  DCP_CHECK(value <= 1, kCorruptData, "message has ", int{value}, " for a boolean");
  return value == 1;
}

std::uint32_t ByteReader::u32() { return little_endian<std::uint32_t>(take(4)); }
std::uint64_t ByteReader::u64() { return little_endian<std::uint64_t>(take(8)); }
double ByteReader::f64() { return std::bit_cast<double>(u64()); }

Bytes ByteReader::bytes() {
  const ByteSpan taken = take(u64());
  return {taken.begin(), taken.end()};
}

std::string ByteReader::text() { return std::string(as_text(take(u64()))); }

std::uint64_t ByteReader::count(std::size_t min_bytes) {
  const std::uint64_t value = u64();
  DCP_CHECK(value <= rest_.size() / (min_bytes == 0 ? 1 : min_bytes), kCorruptData, "message announces ", value,
            " entries, ", rest_.size(), " bytes are left");
  return value;
}

void ByteReader::expect_end() const {
  DCP_CHECK(rest_.empty(), kCorruptData, "message has ", rest_.size(), " bytes too many");
}

}  // namespace dcp

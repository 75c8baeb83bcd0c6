#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "torch_dcp/base/bytes.h"
#include "torch_dcp/base/export.h"

namespace dcp {

/// Writes numbers and strings, little-endian, for what ranks send each other.
class DCP_API ByteWriter {
 public:
  void u8(std::uint8_t value) { bytes_.push_back(value); }
  void boolean(bool value) { u8(value ? 1 : 0); }
  void u32(std::uint32_t value) { number(value); }
  void u64(std::uint64_t value) { number(value); }
  void i64(std::int64_t value) { number(static_cast<std::uint64_t>(value)); }
  void f64(double value);
  /// Length (64 bits), then the bytes.
  void bytes(ByteSpan value);
  void text(std::string_view value) { bytes(as_bytes(value)); }
  /// The bytes alone.
  void raw(ByteSpan value) { bytes_.insert(bytes_.end(), value.begin(), value.end()); }

  std::size_t size() const { return bytes_.size(); }
  Bytes take() && { return std::move(bytes_); }

 private:
  template <std::unsigned_integral T>
  void number(T value) {
    for (std::size_t i = 0; i < sizeof(T); ++i) bytes_.push_back(static_cast<std::uint8_t>(value >> (8 * i)));
  }

  Bytes bytes_;
};

/// Reads what ByteWriter wrote.
///
/// Every read throws kCorruptData if fewer bytes are left; lengths are compared
/// with what is left before anything is allocated. Borrows the bytes.
class DCP_API ByteReader {
 public:
  explicit ByteReader(ByteSpan bytes) : rest_(bytes) {}

  std::uint8_t u8() {
    if (rest_.empty()) take(1);  // throws
    const std::uint8_t value = rest_.front();
    rest_ = rest_.subspan(1);
    return value;
  }
  bool boolean();
  std::uint32_t u32();
  std::uint64_t u64();
  std::int64_t i64() { return static_cast<std::int64_t>(u64()); }
  double f64();
  Bytes bytes();
  std::string text();
  /// The next bytes, where they lie.
  ByteSpan raw(std::uint64_t byte_count) { return take(byte_count); }
  /// A count of things of at least `min_bytes` bytes each, checked against what is left.
  std::uint64_t count(std::size_t min_bytes = 1);

  std::size_t left() const { return rest_.size(); }
  /// Throws kCorruptData unless everything has been read.
  void expect_end() const;

 private:
  ByteSpan take(std::uint64_t byte_count);

  ByteSpan rest_;
};

/// Returns `value` as bytes, by the `encode(ByteWriter&, const T&)` of its type.
template <typename T>
Bytes to_bytes(const T& value) {
  ByteWriter writer;
  encode(writer, value);
  return std::move(writer).take();
}

/// Returns the value that `bytes` hold, by the `decode(ByteReader&, T&)` of its type.
/// \throws dcp::Error kCorruptData if they hold more, less or another.
template <typename T>
T from_bytes(ByteSpan bytes) {
  ByteReader reader(bytes);
  T value{};
  decode(reader, value);
  reader.expect_end();
  return value;
}

}  // namespace dcp

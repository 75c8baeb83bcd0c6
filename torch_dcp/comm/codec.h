#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "torch_dcp/base/byte_codec.h"
#include "torch_dcp/base/error.h"

/// How values become bytes that ranks send each other: `encode(writer, value)` and
/// `decode(reader, value)`, found by argument-dependent lookup. A type of one's own has
/// the two beside it, in its namespace, and a default constructor; all of these are then
/// also available for vectors (if it takes a byte at least), pairs and optionals of it.
///
/// Decoding throws kCorruptData for bytes that are no such value.
namespace dcp {

inline void encode(ByteWriter&, const std::monostate&) {}
inline void decode(ByteReader&, std::monostate&) {}

inline void encode(ByteWriter& writer, const std::string& value) { writer.text(value); }
inline void decode(ByteReader& reader, std::string& value) { value = reader.text(); }

inline void encode(ByteWriter& writer, const Bytes& value) { writer.bytes(value); }
inline void decode(ByteReader& reader, Bytes& value) { value = reader.bytes(); }

template <std::same_as<bool> T>
void encode(ByteWriter& writer, const T& value) {
  writer.boolean(value);
}
template <std::same_as<bool> T>
void decode(ByteReader& reader, T& value) {
  value = reader.boolean();
}

template <std::integral T>
  requires(!std::same_as<T, bool>)
void encode(ByteWriter& writer, const T& value) {
  writer.u64(static_cast<std::uint64_t>(value));
}
template <std::integral T>
  requires(!std::same_as<T, bool>)
void decode(ByteReader& reader, T& value) {
  const std::uint64_t bits = reader.u64();
  value = static_cast<T>(bits);
  DCP_CHECK(static_cast<std::uint64_t>(value) == bits, kCorruptData, "an integer is out of its type's range");
}

template <std::floating_point T>
void encode(ByteWriter& writer, const T& value) {
  writer.f64(value);
}
template <std::floating_point T>
void decode(ByteReader& reader, T& value) {
  value = static_cast<T>(reader.f64());
}

// Declared before any is defined: each may hold the others.
template <typename T>
void encode(ByteWriter& writer, const std::vector<T>& values);
template <typename T>
void decode(ByteReader& reader, std::vector<T>& values);
template <typename A, typename B>
void encode(ByteWriter& writer, const std::pair<A, B>& value);
template <typename A, typename B>
void decode(ByteReader& reader, std::pair<A, B>& value);
template <typename T>
void encode(ByteWriter& writer, const std::optional<T>& value);
template <typename T>
void decode(ByteReader& reader, std::optional<T>& value);

template <typename T>
void encode(ByteWriter& writer, const std::vector<T>& values) {
  writer.u64(values.size());
  for (const auto& value : values) encode(writer, static_cast<const T&>(value));
}
template <typename T>
void decode(ByteReader& reader, std::vector<T>& values) {
  static_assert(!std::is_same_v<T, std::monostate>, "the count of elements that take no bytes cannot be checked");
  const std::uint64_t count = reader.count();
  values.clear();
  values.reserve(count);
  for (std::uint64_t i = 0; i < count; ++i) {
    T value{};
    decode(reader, value);
    values.push_back(std::move(value));
  }
}

template <typename A, typename B>
void encode(ByteWriter& writer, const std::pair<A, B>& value) {
  encode(writer, value.first);
  encode(writer, value.second);
}
template <typename A, typename B>
void decode(ByteReader& reader, std::pair<A, B>& value) {
  decode(reader, value.first);
  decode(reader, value.second);
}

template <typename T>
void encode(ByteWriter& writer, const std::optional<T>& value) {
  writer.boolean(value.has_value());
  if (value) encode(writer, *value);
}
template <typename T>
void decode(ByteReader& reader, std::optional<T>& value) {
  value.reset();
  if (reader.boolean()) decode(reader, value.emplace());
}

}  // namespace dcp

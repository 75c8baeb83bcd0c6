#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "torch_dcp/base/byte_codec.h"
#include "torch_dcp/base/error.h"
#include "torch_dcp/base/limits.h"
#include "torch_dcp/base/ordered_map.h"
#include "torch_dcp/plan/metadata.h"

namespace dcp {

// What the messages of this folder are made of. Numbers take 7 bits a byte, and each string is written once: dict keys
// and file names come again and again, and the coordinator receives all ranks' plans.

/// Appends to a ByteWriter; the last bytes are there after `finish`.
class WireEncoder {
 public:
  explicit WireEncoder(ByteWriter& out) : out_(out) {}
  WireEncoder(const WireEncoder&) = delete;
  WireEncoder& operator=(const WireEncoder&) = delete;

  void finish() { flush(); }

  void u8(std::uint8_t value) {
    if (pending_ == sizeof(buffer_)) flush();
    buffer_[pending_++] = value;
  }

  void number(std::uint64_t value) {
    if (pending_ > sizeof(buffer_) - kMostBytes) flush();
    for (; value >= 0x80; value >>= 7) buffer_[pending_++] = static_cast<std::uint8_t>(value | 0x80);
    buffer_[pending_++] = static_cast<std::uint8_t>(value);
  }

  /// Small numbers of either sign take few bytes.
  void integer(std::int64_t value) {
    number((static_cast<std::uint64_t>(value) << 1) ^ static_cast<std::uint64_t>(value >> 63));
  }

  /// A string that is not expected to come again.
  void text_once(std::string_view text) { bytes(as_bytes(text)); }

  void bytes(ByteSpan bytes) {
    number(bytes.size());
    flush();
    out_.raw(bytes);
  }

  /// \param text  Must outlive the encoder.
  void text(std::string_view text) {
    if (last_number_ != 0 && text == last_text_) return number(last_number_);
    std::size_t& known = numbers_[text];
    const bool is_new = known == 0;
    if (is_new) known = numbers_.size();
    last_text_ = text;
    last_number_ = known;
    number(is_new ? 0 : known);
    if (is_new) text_once(text);
  }

  void integers(c10::IntArrayRef values) {
    for (const std::int64_t value : values) integer(value);
  }

  void sizes(c10::IntArrayRef sizes) {
    number(sizes.size());
    integers(sizes);
  }

 private:
  static constexpr std::size_t kMostBytes = 10;  ///< of a number

  void flush() {
    out_.raw({buffer_, pending_});
    pending_ = 0;
  }

  ByteWriter& out_;
  std::uint8_t buffer_[240];
  std::size_t pending_ = 0;
  OrderedMap<std::string_view, std::size_t> numbers_;
  std::string_view last_text_;
  std::size_t last_number_ = 0;  ///< of the text that came last; 0 before the first
};

/// Takes from a ByteReader, which has gone on to the first byte that was not taken when this is gone.
class WireDecoder {
 public:
  explicit WireDecoder(ByteReader& in)
      : in_(in), rest_(ByteReader(in).raw(in.left())), spare_(kMostPerByte * in.left()) {}
  ~WireDecoder() { in_.raw(in_.left() - rest_.size()); }
  WireDecoder(const WireDecoder&) = delete;
  WireDecoder& operator=(const WireDecoder&) = delete;

  std::size_t left() const { return rest_.size(); }

  std::uint8_t u8() {
    DCP_CHECK(!rest_.empty(), kCorruptData, "message too short: a byte wanted, none left");
    const std::uint8_t value = rest_.front();
    rest_ = rest_.subspan(1);
    return value;
  }

  std::uint64_t number() {
    if (!rest_.empty() && rest_.front() < 0x80) return u8();
    return long_number();
  }

  std::int64_t integer() {
    const std::uint64_t value = number();
    return static_cast<std::int64_t>((value >> 1) ^ (~(value & 1) + 1));
  }

  /// A count of things that take a byte each at least.
  std::size_t count(std::string_view what) {
    const std::uint64_t value = number();
    DCP_CHECK(value <= left(), kCorruptData, "message announces ", value, " ", what, ", ", left(), " bytes are left");
    return static_cast<std::size_t>(value);
  }

  ByteSpan bytes(std::string_view what) {
    const std::size_t size = count(what);
    const ByteSpan taken = rest_.first(size);
    rest_ = rest_.subspan(size);
    return taken;
  }

  /// Lies in the message, as the next one does.
  std::string_view text_once() { return as_text(bytes("characters")); }

  std::string_view text() {
    const std::uint64_t known = number();
    if (known != 0) {
      DCP_CHECK(known <= texts_.size(), kCorruptData, "message names string ", known, " of ", texts_.size());
      charge(texts_[known - 1].size());
      return texts_[known - 1];
    }
    return texts_.emplace_back(text_once());
  }

  /// Counts bytes that are made of a few in the message: a byte can name a string of any length.
  void charge(std::size_t byte_count) {
    DCP_CHECK(byte_count <= spare_, kCorruptData, "message makes more than ", kMostPerByte,
              " bytes of each of its own");
    spare_ -= byte_count;
  }

  std::size_t ndim() {
    const std::size_t ndim = count("dimensions");
    constexpr std::size_t kMost = ParseLimits().max_ndim;
    DCP_CHECK(ndim <= kMost, kCorruptData, "message has ", ndim, " dimensions");
    return ndim;
  }

  void integers(Sizes& values, std::size_t count) {
    values.resize(count);
    for (std::int64_t& value : values) value = integer();
  }

  Sizes sizes() {
    Sizes sizes;
    integers(sizes, ndim());
    return sizes;
  }

  /// An enumerator below `end`.
  template <typename Enum>
  Enum enumerator(int end, std::string_view what) {
    const int value = u8();
    DCP_CHECK(value < end, kCorruptData, "message has ", value, " for a ", what);
    return static_cast<Enum>(value);
  }

  bool boolean() {
    const std::uint8_t value = u8();
    DCP_CHECK(value <= 1, kCorruptData, "message has ", int{value}, " for a boolean");
    return value == 1;
  }

 private:
  std::uint64_t long_number() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const std::uint8_t byte = u8();
      DCP_CHECK(shift < 63 || byte <= 1, kCorruptData, "message has a number of more than 64 bits");
      value |= static_cast<std::uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
    DCP_THROW(kCorruptData, "message has a number of more than 64 bits");
  }

  static constexpr std::size_t kMostPerByte = 256;

  ByteReader& in_;
  ByteSpan rest_;
  std::size_t spare_;  ///< bytes that may be charged yet
  std::vector<std::string_view> texts_;
};

inline void put(WireEncoder& out, const std::string& text) { out.text(text); }
inline void get(WireDecoder& in, std::string& text) { text = in.text(); }
inline void put(WireEncoder& out, const Sizes& sizes) { out.sizes(sizes); }
inline void get(WireDecoder& in, Sizes& sizes) { sizes = in.sizes(); }
inline void put(WireEncoder& out, std::int64_t value) { out.integer(value); }
inline void get(WireDecoder& in, std::int64_t& value) { value = in.integer(); }

inline void put(WireEncoder& out, const PathItem& item) {
  out.u8(static_cast<std::uint8_t>(item.step));
  if (item.step == PathStep::kDictKey) {
    out.text(item.key);
  } else {
    out.integer(item.index);
  }
}

inline void get(WireDecoder& in, PathItem& item) {
  item.step = in.enumerator<PathStep>(3, "path step");
  if (item.step == PathStep::kDictKey) {
    item.key = in.text();
  } else {
    item.index = in.integer();
  }
}

inline void put(WireEncoder& out, const TensorProperties& properties) {
  out.u8(static_cast<std::uint8_t>(properties.dtype));
  out.u8(static_cast<std::uint8_t>(properties.newer_dtype));
  out.u8(properties.requires_grad ? 1 : 0);
  out.u8(static_cast<std::uint8_t>(properties.memory_format));
  out.u8(properties.pin_memory ? 1 : 0);
}

inline void get(WireDecoder& in, TensorProperties& properties) {
  properties.dtype = in.enumerator<c10::ScalarType>(static_cast<int>(c10::ScalarType::NumOptions), "dtype");
  properties.newer_dtype = in.enumerator<NewerDtype>(static_cast<int>(NewerDtype::kBComplex32) + 1, "newer dtype");
  properties.requires_grad = in.boolean();
  properties.memory_format = in.enumerator<MemoryFormat>(3, "memory format");
  properties.pin_memory = in.boolean();
}

}  // namespace dcp

#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "torch_dcp/base/bytes.h"
#include "torch_dcp/base/error.h"
#include "torch_dcp/pickle/opcodes_internal.h"

namespace dcp::pickle {

/// Walks over the bytes of a pickle, opcode by opcode, and keeps to its frames: nothing
/// that belongs to an opcode may reach over the end of its frame or of the input.
class Cursor {
 public:
  explicit Cursor(ByteSpan bytes) : bytes_(bytes), end_(bytes.size()) {}

  std::size_t position() const { return position_; }
  std::size_t remaining() const { return bytes_.size() - position_; }
  bool is_inside_frame() const { return position_ < frame_end_; }

  Opcode next_opcode() {
    if (position_ == end_) end_ = bytes_.size();
    opcode_at_ = position_;
    // Kept, not read: a message about the missing byte itself must not name an opcode.
    opcode_ = 0;
    return static_cast<Opcode>(opcode_ = number<std::uint8_t>());
  }

  /// Reads a little-endian number.
  template <typename T>
  T number() {
    const std::uint8_t* from = take(sizeof(T)).data();
    T value = 0;
    for (std::size_t i = 0; i < sizeof(T); ++i) value |= static_cast<T>(static_cast<T>(from[i]) << (8 * i));
    return value;
  }

  ByteSpan take(std::uint64_t count) {
    if (C10_UNLIKELY(count > end_ - position_)) fail_short(count);
    const ByteSpan result = bytes_.subspan(position_, static_cast<std::size_t>(count));
    position_ += result.size();
    return result;
  }

  /// Reads up to a line feed and past it; the line is returned without it.
  std::string_view line() {
    const std::string_view rest = as_text(bytes_.subspan(position_, end_ - position_));
    const std::size_t size = rest.find('\n');
    if (size == std::string_view::npos) fail("the line of a name does not end");
    position_ += size + 1;
    return rest.substr(0, size);
  }

  void begin_frame(std::uint64_t size) {
    if (is_inside_frame()) fail("a frame begins inside of another");
    if (size > remaining()) fail_short(size);
    end_ = frame_end_ = position_ + static_cast<std::size_t>(size);
  }

  /// Throws kCorruptData with `what`, the opcode and where it is.
  template <typename... Args>
  [[noreturn]] void fail(const Args&... what) const {
    DCP_THROW(kCorruptData, "pickle: ", what..., place());
  }

  /// Throws kUnsupported likewise.
  template <typename... Args>
  [[noreturn]] void refuse(const Args&... what) const {
    DCP_THROW(kUnsupported, "pickle: ", what..., place());
  }

 private:
  std::string place() const {
    const OpcodeInfo* info = find_opcode(opcode_);
    return c10::str(" (byte ", opcode_at_, info == nullptr ? "" : ", ", info == nullptr ? "" : info->name, ")");
  }

  [[noreturn]] void fail_short(std::uint64_t wanted) const {
    if (end_ != bytes_.size()) fail("the frame ends inside of an opcode: ", end_ - position_, " of ", wanted, " bytes");
    fail("the data end early: ", end_ - position_, " of ", wanted, " bytes are there");
  }

  ByteSpan bytes_;
  std::size_t position_ = 0;
  std::size_t frame_end_ = 0;  ///< of the last frame
  std::size_t end_;            ///< of the present frame, or of all
  std::size_t opcode_at_ = 0;
  std::uint8_t opcode_ = 0;
};

}  // namespace dcp::pickle

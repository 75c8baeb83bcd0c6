#include "torch_dcp/pickle/writer.h"

#include <array>
#include <bit>
#include <functional>
#include <limits>
#include <utility>

#include "torch_dcp/base/error.h"
#include "torch_dcp/pickle/integer_internal.h"
#include "torch_dcp/pickle/opcodes_internal.h"
#include "torch_dcp/pickle/utf8_internal.h"

namespace dcp::pickle {
namespace {

// As CPython has them: a frame is ended at the first complete value beyond the target, a
// value of that size is kept out of frames, and a frame of next to nothing gets no header.
constexpr std::size_t kFrameTarget = 64 * 1024;
constexpr std::size_t kFrameHeader = 9;
constexpr std::size_t kSmallestFrame = 4;

bool is_name(std::string_view name) {
  return !name.empty() && name.find('\n') == std::string_view::npos && is_utf8(name);
}

/// Returns the UTF-8 of the text whose characters have the numbers that `bytes` are.
std::string text_from_latin1(ByteSpan bytes) {
  std::string text;
  text.reserve(bytes.size());
  for (std::uint8_t byte : bytes) {
    if (byte < 0x80) {
      text.push_back(static_cast<char>(byte));
    } else {
      text.push_back(static_cast<char>(0xC0 | (byte >> 6)));
      text.push_back(static_cast<char>(0x80 | (byte & 0x3F)));
    }
  }
  return text;
}

}  // namespace

Writer::Writer(int protocol) : protocol_(protocol) {
  DCP_CHECK(protocol == 2 || protocol == 4, kInvalidArgument, "pickle: protocol ", protocol,
            " is not written, only 2 and 4");
  emit(Opcode::kProto);
  byte(static_cast<std::uint8_t>(protocol));
  is_framing_ = protocol == 4;
}

void Writer::none() {
  emit(Opcode::kNone);
  end_full_frame();
}

void Writer::boolean(bool value) {
  emit(value ? Opcode::kNewTrue : Opcode::kNewFalse);
  end_full_frame();
}

void Writer::integer(std::int64_t value) {
  if (value >= 0 && value <= 0xFF) {
    emit(Opcode::kBinInt1, static_cast<std::uint64_t>(value), 1);
  } else if (value >= 0 && value <= 0xFFFF) {
    emit(Opcode::kBinInt2, static_cast<std::uint64_t>(value), 2);
  } else if (value >= std::numeric_limits<std::int32_t>::min() && value <= std::numeric_limits<std::int32_t>::max()) {
    emit(Opcode::kBinInt, static_cast<std::uint64_t>(value), 4);
  } else {
    const Bytes bytes = bytes_from_integer(value);
    counted(Opcode::kLong1, 1, as_text(bytes));
  }
  end_full_frame();
}

void Writer::real(double value) {
  emit(Opcode::kBinFloat, __builtin_bswap64(std::bit_cast<std::uint64_t>(value)), 8);
  end_full_frame();
}

void Writer::text(std::string_view value) {
  const auto found = texts_.find(value);
  if (found != texts_.end()) return get(found->second);
  texts_.emplace(value, untracked_text(value));
}

std::uint32_t Writer::untracked_text(std::string_view value) {
  DCP_CHECK(is_utf8(value), kInvalidArgument, "pickle: a text that is not UTF-8, from its byte ", find_bad_utf8(value));
  return new_text(value);
}

std::uint32_t Writer::new_text(std::string_view value) {
  if (protocol_ == 4 && value.size() <= 0xFF) {
    counted(Opcode::kShortBinUnicode, 1, value);
  } else if (value.size() <= 0xFFFFFFFF) {
    counted(Opcode::kBinUnicode, 4, value);
  } else {
    DCP_CHECK(protocol_ == 4, kInvalidArgument, "pickle: protocol 2 has no text of ", value.size(), " bytes");
    counted(Opcode::kBinUnicode8, 8, value);
  }
  return put();
}

void Writer::bytes(ByteSpan value) {
  if (protocol_ == 2) return bytes_as_text(value);
  if (value.size() <= 0xFF) {
    counted(Opcode::kShortBinBytes, 1, as_text(value));
  } else if (value.size() <= 0xFFFFFFFF) {
    counted(Opcode::kBinBytes, 4, as_text(value));
  } else {
    counted(Opcode::kBinBytes8, 8, as_text(value));
  }
  put();
}

void Writer::bytes_as_text(ByteSpan value) {
  if (value.empty()) {
    global("__builtin__", "bytes");
    empty_tuple();
  } else {
    global("_codecs", "encode");
    // Python makes this text for the purpose, so it never refers to an equal one.
    new_text(text_from_latin1(value));
    text("latin1");
    tuple_of(2);
    put();
  }
  reduce();
  put();
}

void Writer::global(std::string_view module, std::string_view name) {
  global_key_.assign(module).append(1, '\n').append(name);
  const auto found = globals_.find(global_key_);
  if (found != globals_.end()) return get(found->second);
  DCP_CHECK(is_name(module) && is_name(name), kInvalidArgument, "pickle: '", module, "' '", name,
            "' is no name of a global");
  if (protocol_ == 4) {
    text(module);
    text(name);
    emit(Opcode::kStackGlobal);
  } else {
    emit(Opcode::kGlobal);
    raw(global_key_);
    byte('\n');
  }
  globals_.emplace(global_key_, put());
}

void Writer::mark() { emit(Opcode::kMark); }
void Writer::empty_tuple() { emit(Opcode::kEmptyTuple); }
void Writer::tuple_from_mark() { emit(Opcode::kTuple); }
void Writer::empty_list() { emit(Opcode::kEmptyList); }
void Writer::append() { emit(Opcode::kAppend); }
void Writer::appends_from_mark() { emit(Opcode::kAppends); }
void Writer::empty_dict() { emit(Opcode::kEmptyDict); }
void Writer::set_item() { emit(Opcode::kSetItem); }
void Writer::set_items_from_mark() { emit(Opcode::kSetItems); }
void Writer::reduce() { emit(Opcode::kReduce); }
void Writer::new_object() { emit(Opcode::kNewObj); }
void Writer::build() { emit(Opcode::kBuild); }
void Writer::persistent_id() { emit(Opcode::kBinPersId); }

void Writer::tuple_of(int count) {
  DCP_CHECK(count >= 1 && count <= 3, kInvalidArgument, "pickle: there is no opcode for a tuple of ", count);
  emit(count == 1 ? Opcode::kTuple1 : count == 2 ? Opcode::kTuple2 : Opcode::kTuple3);
}

std::uint32_t Writer::put() {
  DCP_CHECK(memo_count_ < std::numeric_limits<std::uint32_t>::max(), kInvalidArgument, "pickle: the memo is full");
  if (protocol_ == 4) {
    emit(Opcode::kMemoize);
  } else if (memo_count_ <= 0xFF) {
    emit(Opcode::kBinPut, memo_count_, 1);
  } else {
    emit(Opcode::kLongBinPut, memo_count_, 4);
  }
  end_full_frame();
  return memo_count_++;
}

void Writer::get(std::uint32_t memo_number) {
  DCP_CHECK(memo_number < memo_count_, kInvalidArgument, "pickle: memo number ", memo_number, " of ", memo_count_);
  if (memo_number <= 0xFF) {
    emit(Opcode::kBinGet, memo_number, 1);
  } else {
    emit(Opcode::kLongBinGet, memo_number, 4);
  }
  end_full_frame();
}

Bytes Writer::finish() && {
  emit(Opcode::kStop);
  end_frame();
  return std::move(out_);
}

void Writer::byte(std::uint8_t value) {
  begin_frame();
  out_.push_back(value);
}

void Writer::raw(std::string_view bytes) {
  begin_frame();
  const ByteSpan span = as_bytes(bytes);
  out_.insert(out_.end(), span.begin(), span.end());
}

void Writer::emit(Opcode opcode, std::uint64_t operand, int byte_count) {
  std::array<char, 1 + sizeof(operand)> bytes{static_cast<char>(opcode)};
  for (std::size_t i = 1; i < bytes.size(); ++i, operand >>= 8) bytes[i] = static_cast<char>(operand);
  raw({bytes.data(), 1 + static_cast<std::size_t>(byte_count)});
}

void Writer::counted(Opcode opcode, int length_bytes, std::string_view value) {
  const bool was_framing = is_framing_;
  if (value.size() >= kFrameTarget) {
    end_frame();
    is_framing_ = false;
  }
  emit(opcode, value.size(), length_bytes);
  raw(value);
  is_framing_ = was_framing;
}

void Writer::begin_frame() {
  if (!is_framing_ || has_frame_) return;
  has_frame_ = true;
  frame_begin_ = out_.size();
  out_.resize(out_.size() + kFrameHeader);
}

void Writer::end_frame() {
  if (!has_frame_) return;
  has_frame_ = false;
  const auto header = out_.begin() + static_cast<std::ptrdiff_t>(frame_begin_);
  std::uint64_t size = out_.size() - frame_begin_ - kFrameHeader;
  if (size < kSmallestFrame) {
    out_.erase(header, header + kFrameHeader);
    return;
  }
  header[0] = static_cast<std::uint8_t>(Opcode::kFrame);
  for (std::size_t i = 1; i < kFrameHeader; ++i, size >>= 8)
    header[static_cast<std::ptrdiff_t>(i)] = static_cast<std::uint8_t>(size);
}

void Writer::end_full_frame() {
  if (has_frame_ && out_.size() - frame_begin_ - kFrameHeader >= kFrameTarget) end_frame();
}

}  // namespace dcp::pickle

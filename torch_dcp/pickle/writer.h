#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "torch_dcp/base/bytes.h"
#include "torch_dcp/base/export.h"

namespace dcp::pickle {

enum class Opcode : std::uint8_t;

/// Writes a pickle opcode by opcode, in an order that the caller is responsible for.
///
/// Protocol 2 emits only what Python's `weights_only` unpickler knows; protocol 4 is
/// framed and names globals by STACK_GLOBAL. What Python's pickler stores in its memo is
/// stored here: `text`, `bytes` and `global` do it themselves and write a reference
/// the second time they get an equal text or global; after a tuple that is not empty, an empty list or dict and
/// a call, `put` does it. It may be left out, and the pickle is as valid, but not Python's bytes.
///
/// A typical object: `global(...); empty_tuple(); new_object(); put(); empty_dict(); put(); mark();
/// text("fqn"); text("w"); set_items_from_mark(); build();`.
///
/// After an error the writer is good for nothing but destruction.
/// Thread safety: none.
/// Source: interop FORMAT.md 2.1, 3.3 and 4; Modules/_pickle.c of CPython 3.14 for what it emits.
class DCP_API Writer {
 public:
  /// \param protocol  2 or 4.
  /// \throws dcp::Error kInvalidArgument for another one.
  explicit Writer(int protocol);

  void none();
  void boolean(bool value);
  void integer(std::int64_t value);
  void real(double value);
  /// UTF-8; memoized and written as a reference the second time.
  ///
  /// \throws dcp::Error kInvalidArgument if `value` is not UTF-8 (surrogates in 3 bytes are), or
  ///         with protocol 2 has 4 GiB or more.
  void text(std::string_view value);
  /// Writes a text anew and returns its number, for `get`. `text` will not refer to it: for callers that
  /// know themselves where it comes again, as finding one of a million texts takes longer than writing it.
  ///
  /// \throws dcp::Error as `text` does.
  std::uint32_t untracked_text(std::string_view value);
  /// Python `bytes`, memoized. In protocol 2 through `_codecs.encode`, as Python does.
  ///
  /// \throws dcp::Error kInvalidArgument with protocol 2 if its latin-1 text has 4 GiB or more as UTF-8.
  void bytes(ByteSpan value);
  /// \throws dcp::Error kInvalidArgument if a name is empty, has a line feed or is not UTF-8.
  void global(std::string_view module, std::string_view name);

  void mark();
  void empty_tuple();
  /// Makes a tuple of the last `count` values, for 1 to 3; more need `mark` before and `tuple_from_mark`.
  void tuple_of(int count);
  void tuple_from_mark();
  void empty_list();
  void append();
  void appends_from_mark();
  void empty_dict();
  void set_item();
  void set_items_from_mark();
  void reduce();
  void new_object();
  void build();
  void persistent_id();
  /// Stores the value on top in the memo and returns its number, for `get`.
  std::uint32_t put();
  /// \throws dcp::Error kInvalidArgument for a number that `put` did not return.
  void get(std::uint32_t memo_number);

  /// Ends the pickle and returns it.
  Bytes finish() &&;

 private:
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
  };
  using Numbers = std::unordered_map<std::string, std::uint32_t, Hash, std::equal_to<>>;

  void emit(Opcode opcode) { byte(static_cast<std::uint8_t>(opcode)); }
  /// Writes an opcode and the low `byte_count` bytes of `operand`, little-endian.
  void emit(Opcode opcode, std::uint64_t operand, int byte_count);
  void byte(std::uint8_t value);
  void raw(std::string_view bytes);
  /// Writes a text anew, and memoizes it.
  std::uint32_t new_text(std::string_view value);
  /// Writes a text or bytes value with its length; outside of frames if it is long.
  void counted(Opcode opcode, int length_bytes, std::string_view value);
  void bytes_as_text(ByteSpan value);

  void begin_frame();
  void end_frame();
  /// Called where a value is complete: ends the frame if it is full.
  void end_full_frame();

  int protocol_;
  Bytes out_;
  bool is_framing_ = false;      ///< that what is written now belongs into a frame
  bool has_frame_ = false;       ///< that one is open
  std::size_t frame_begin_ = 0;  ///< where the open frame's opcode is
  std::uint32_t memo_count_ = 0;
  Numbers texts_;
  Numbers globals_;
  std::string global_key_;  ///< kept for its memory
};

}  // namespace dcp::pickle

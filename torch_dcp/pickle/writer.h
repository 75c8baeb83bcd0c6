#pragma once

#include <cstdint>
#include <string_view>
#include <unordered_map>

#include "torch_dcp/base/bytes.h"
#include "torch_dcp/base/export.h"

namespace dcp::pickle {

/// Writes a pickle opcode by opcode, in an order that the caller is responsible for.
///
/// Protocol 2 emits only what Python's `weights_only` unpickler knows; protocol 4 is
/// framed and names globals by STACK_GLOBAL. Strings and globals written through
/// `text` and `global` may be memoized and referred to, as Python does.
///
/// A typical object: `global(...); empty_tuple(); new_object(); empty_dict(); mark();
/// text("fqn"); text("w"); set_items(); build();`.
class DCP_API Writer {
 public:
  /// \param protocol  2 or 4.
  explicit Writer(int protocol);

  void none();
  void boolean(bool value);
  void integer(std::int64_t value);
  void real(double value);
  /// UTF-8; memoized and written as a reference the second time.
  void text(std::string_view value);
  /// Python `bytes`. In protocol 2 through `_codecs.encode`, as Python does.
  void bytes(ByteSpan value);
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
  void get(std::uint32_t memo_number);

  /// Ends the pickle and returns it.
  Bytes finish() &&;

 private:
  void byte(std::uint8_t value) { out_.push_back(value); }

  int protocol_;
  Bytes out_;
  std::uint32_t memo_count_ = 0;
  std::unordered_map<std::string, std::uint32_t> texts_;
  std::unordered_map<std::string, std::uint32_t> globals_;
};

}  // namespace dcp::pickle

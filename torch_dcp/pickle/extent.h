#pragma once

#include <cstdint>

#include "torch_dcp/base/bytes.h"
#include "torch_dcp/base/export.h"

namespace dcp::pickle {

/// Finds where a pickle ends whose bytes come part by part, by stepping over opcodes and their operands without
/// looking at what they say. For pickles that follow one another in a file, whose lengths stand nowhere.
class DCP_API ExtentScanner {
 public:
  /// Takes the next bytes. Returns true once the STOP opcode has been seen; what is behind it is not looked at.
  ///
  /// \throws dcp::Error kCorruptData, with the offset in the pickle, for a byte that is no opcode.
  bool feed(ByteSpan bytes);

  /// Bytes up to and including STOP, or those taken so far.
  std::uint64_t extent() const { return extent_; }

 private:
  std::uint64_t extent_ = 0;
  std::uint64_t skip_ = 0;    ///< bytes of an operand that are left
  std::uint64_t length_ = 0;  ///< of a counted operand, as far as it has been read
  int length_bytes_ = 0;      ///< of that length, in all; 0 outside of one
  int length_read_ = 0;
  int lines_ = 0;  ///< lines of an operand that are left
};

}  // namespace dcp::pickle

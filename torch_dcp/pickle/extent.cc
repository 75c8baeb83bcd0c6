#include "torch_dcp/pickle/extent.h"

#include <algorithm>
#include <array>

#include "torch_dcp/base/error.h"
#include "torch_dcp/pickle/opcodes_internal.h"

namespace dcp::pickle {
namespace {

/// How far an operand reaches.
struct Step {
  bool is_opcode = false;
  std::uint8_t skip = 0;          ///< bytes
  std::uint8_t length_bytes = 0;  ///< of a length that so many bytes follow
  std::uint8_t lines = 0;
};

constexpr Step step_of(Operand operand) {
  switch (operand) {
    case Operand::kNothing:
      return {true, 0, 0, 0};
    case Operand::kBytes1:
      return {true, 1, 0, 0};
    case Operand::kBytes2:
      return {true, 2, 0, 0};
    case Operand::kBytes4:
      return {true, 4, 0, 0};
    case Operand::kBytes8:
      return {true, 8, 0, 0};
    case Operand::kCounted1:
      return {true, 0, 1, 0};
    case Operand::kCounted4:
      return {true, 0, 4, 0};
    case Operand::kCounted8:
      return {true, 0, 8, 0};
    case Operand::kLine:
      return {true, 0, 0, 1};
    case Operand::kLines:
      return {true, 0, 0, 2};
  }
  return {};
}

constexpr std::array<Step, 256> make_steps() {
  std::array<Step, 256> steps{};
  for (const OpcodeInfo& info : kOpcodes) steps[static_cast<std::uint8_t>(info.code)] = step_of(info.operand);
  return steps;
}

constexpr std::array<Step, 256> kSteps = make_steps();

}  // namespace

bool ExtentScanner::feed(ByteSpan bytes) {
  for (std::size_t at = 0; at < bytes.size();) {
    if (skip_ > 0) {
      const std::uint64_t taken = std::min<std::uint64_t>(skip_, bytes.size() - at);
      skip_ -= taken;
      extent_ += taken;
      at += static_cast<std::size_t>(taken);
      continue;
    }
    const std::uint8_t byte = bytes[at++];
    ++extent_;
    if (length_bytes_ > 0) {
      length_ |= static_cast<std::uint64_t>(byte) << (8 * length_read_);
      if (++length_read_ < length_bytes_) continue;
      skip_ = length_;
      length_bytes_ = 0;
    } else if (lines_ > 0) {
      if (byte == '\n') --lines_;
    } else {
      const Step& step = kSteps[byte];
      DCP_CHECK(step.is_opcode, kCorruptData, "no pickle: the byte ", int{byte}, " at offset ", extent_ - 1,
                " is no opcode");
      if (byte == static_cast<std::uint8_t>(Opcode::kStop)) return true;
      skip_ = step.skip;
      length_bytes_ = step.length_bytes;
      length_ = 0;
      length_read_ = 0;
      lines_ = step.lines;
    }
  }
  return false;
}

}  // namespace dcp::pickle

#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace dcp::pickle {

/// The opcodes of pickle protocols 0 to 5, by the names that `pickletools` gives them.
enum class Opcode : std::uint8_t {
  kMark = '(',
  kStop = '.',
  kPop = '0',
  kPopMark = '1',
  kDup = '2',
  kFloat = 'F',
  kInt = 'I',
  kBinInt = 'J',
  kBinInt1 = 'K',
  kLong = 'L',
  kBinInt2 = 'M',
  kNone = 'N',
  kPersId = 'P',
  kBinPersId = 'Q',
  kReduce = 'R',
  kString = 'S',
  kBinString = 'T',
  kShortBinString = 'U',
  kUnicode = 'V',
  kBinUnicode = 'X',
  kAppend = 'a',
  kBuild = 'b',
  kGlobal = 'c',
  kDict = 'd',
  kEmptyDict = '}',
  kAppends = 'e',
  kGet = 'g',
  kBinGet = 'h',
  kInst = 'i',
  kLongBinGet = 'j',
  kList = 'l',
  kEmptyList = ']',
  kObj = 'o',
  kPut = 'p',
  kBinPut = 'q',
  kLongBinPut = 'r',
  kSetItem = 's',
  kTuple = 't',
  kEmptyTuple = ')',
  kSetItems = 'u',
  kBinFloat = 'G',
  // Protocol 2.
  kProto = 0x80,
  kNewObj = 0x81,
  kExt1 = 0x82,
  kExt2 = 0x83,
  kExt4 = 0x84,
  kTuple1 = 0x85,
  kTuple2 = 0x86,
  kTuple3 = 0x87,
  kNewTrue = 0x88,
  kNewFalse = 0x89,
  kLong1 = 0x8a,
  kLong4 = 0x8b,
  // Protocol 3.
  kBinBytes = 'B',
  kShortBinBytes = 'C',
  // Protocol 4.
  kShortBinUnicode = 0x8c,
  kBinUnicode8 = 0x8d,
  kBinBytes8 = 0x8e,
  kEmptySet = 0x8f,
  kAddItems = 0x90,
  kFrozenSet = 0x91,
  kNewObjEx = 0x92,
  kStackGlobal = 0x93,
  kMemoize = 0x94,
  kFrame = 0x95,
  // Protocol 5.
  kByteArray8 = 0x96,
  kNextBuffer = 0x97,
  kReadOnlyBuffer = 0x98,
};

/// What follows an opcode byte.
enum class Operand : std::uint8_t {
  kNothing,
  kBytes1,  ///< a number of 1 byte; likewise the next three
  kBytes2,
  kBytes4,
  kBytes8,
  kCounted1,  ///< a length of 1 byte and so many bytes; likewise the next two
  kCounted4,
  kCounted8,
  kLine,   ///< text up to a line feed
  kLines,  ///< two of them
};

struct OpcodeInfo {
  Opcode code;
  std::string_view name;
  int protocol;  ///< the first that has it
  Operand operand;
  /// False for what a pickler of protocol 2 to 5 does not write for data, or only with
  /// help from outside of the pickle (extension registry, buffers, text persistent ids).
  bool is_read;
};

inline constexpr std::array kOpcodes = {
    OpcodeInfo{Opcode::kMark, "MARK", 0, Operand::kNothing, true},
    OpcodeInfo{Opcode::kStop, "STOP", 0, Operand::kNothing, true},
    OpcodeInfo{Opcode::kPop, "POP", 0, Operand::kNothing, true},
    OpcodeInfo{Opcode::kPopMark, "POP_MARK", 1, Operand::kNothing, true},
    OpcodeInfo{Opcode::kDup, "DUP", 0, Operand::kNothing, false},
    OpcodeInfo{Opcode::kFloat, "FLOAT", 0, Operand::kLine, false},
    OpcodeInfo{Opcode::kInt, "INT", 0, Operand::kLine, false},
    OpcodeInfo{Opcode::kBinInt, "BININT", 1, Operand::kBytes4, true},
    OpcodeInfo{Opcode::kBinInt1, "BININT1", 1, Operand::kBytes1, true},
    OpcodeInfo{Opcode::kLong, "LONG", 0, Operand::kLine, false},
    OpcodeInfo{Opcode::kBinInt2, "BININT2", 1, Operand::kBytes2, true},
    OpcodeInfo{Opcode::kNone, "NONE", 0, Operand::kNothing, true},
    OpcodeInfo{Opcode::kPersId, "PERSID", 0, Operand::kLine, false},
    OpcodeInfo{Opcode::kBinPersId, "BINPERSID", 1, Operand::kNothing, true},
    OpcodeInfo{Opcode::kReduce, "REDUCE", 0, Operand::kNothing, true},
    OpcodeInfo{Opcode::kString, "STRING", 0, Operand::kLine, false},
    OpcodeInfo{Opcode::kBinString, "BINSTRING", 1, Operand::kCounted4, true},
    OpcodeInfo{Opcode::kShortBinString, "SHORT_BINSTRING", 1, Operand::kCounted1, true},
    OpcodeInfo{Opcode::kUnicode, "UNICODE", 0, Operand::kLine, false},
    OpcodeInfo{Opcode::kBinUnicode, "BINUNICODE", 1, Operand::kCounted4, true},
    OpcodeInfo{Opcode::kAppend, "APPEND", 0, Operand::kNothing, true},
    OpcodeInfo{Opcode::kBuild, "BUILD", 0, Operand::kNothing, true},
    OpcodeInfo{Opcode::kGlobal, "GLOBAL", 0, Operand::kLines, true},
    OpcodeInfo{Opcode::kDict, "DICT", 0, Operand::kNothing, false},
    OpcodeInfo{Opcode::kEmptyDict, "EMPTY_DICT", 1, Operand::kNothing, true},
    OpcodeInfo{Opcode::kAppends, "APPENDS", 1, Operand::kNothing, true},
    OpcodeInfo{Opcode::kGet, "GET", 0, Operand::kLine, false},
    OpcodeInfo{Opcode::kBinGet, "BINGET", 1, Operand::kBytes1, true},
    OpcodeInfo{Opcode::kInst, "INST", 0, Operand::kLines, false},
    OpcodeInfo{Opcode::kLongBinGet, "LONG_BINGET", 1, Operand::kBytes4, true},
    OpcodeInfo{Opcode::kList, "LIST", 0, Operand::kNothing, false},
    OpcodeInfo{Opcode::kEmptyList, "EMPTY_LIST", 1, Operand::kNothing, true},
    OpcodeInfo{Opcode::kObj, "OBJ", 1, Operand::kNothing, false},
    OpcodeInfo{Opcode::kPut, "PUT", 0, Operand::kLine, false},
    OpcodeInfo{Opcode::kBinPut, "BINPUT", 1, Operand::kBytes1, true},
    OpcodeInfo{Opcode::kLongBinPut, "LONG_BINPUT", 1, Operand::kBytes4, true},
    OpcodeInfo{Opcode::kSetItem, "SETITEM", 0, Operand::kNothing, true},
    OpcodeInfo{Opcode::kTuple, "TUPLE", 0, Operand::kNothing, true},
    OpcodeInfo{Opcode::kEmptyTuple, "EMPTY_TUPLE", 1, Operand::kNothing, true},
    OpcodeInfo{Opcode::kSetItems, "SETITEMS", 1, Operand::kNothing, true},
    OpcodeInfo{Opcode::kBinFloat, "BINFLOAT", 1, Operand::kBytes8, true},
    OpcodeInfo{Opcode::kProto, "PROTO", 2, Operand::kBytes1, true},
    OpcodeInfo{Opcode::kNewObj, "NEWOBJ", 2, Operand::kNothing, true},
    OpcodeInfo{Opcode::kExt1, "EXT1", 2, Operand::kBytes1, false},
    OpcodeInfo{Opcode::kExt2, "EXT2", 2, Operand::kBytes2, false},
    OpcodeInfo{Opcode::kExt4, "EXT4", 2, Operand::kBytes4, false},
    OpcodeInfo{Opcode::kTuple1, "TUPLE1", 2, Operand::kNothing, true},
    OpcodeInfo{Opcode::kTuple2, "TUPLE2", 2, Operand::kNothing, true},
    OpcodeInfo{Opcode::kTuple3, "TUPLE3", 2, Operand::kNothing, true},
    OpcodeInfo{Opcode::kNewTrue, "NEWTRUE", 2, Operand::kNothing, true},
    OpcodeInfo{Opcode::kNewFalse, "NEWFALSE", 2, Operand::kNothing, true},
    OpcodeInfo{Opcode::kLong1, "LONG1", 2, Operand::kCounted1, true},
    OpcodeInfo{Opcode::kLong4, "LONG4", 2, Operand::kCounted4, true},
    OpcodeInfo{Opcode::kBinBytes, "BINBYTES", 3, Operand::kCounted4, true},
    OpcodeInfo{Opcode::kShortBinBytes, "SHORT_BINBYTES", 3, Operand::kCounted1, true},
    OpcodeInfo{Opcode::kShortBinUnicode, "SHORT_BINUNICODE", 4, Operand::kCounted1, true},
    OpcodeInfo{Opcode::kBinUnicode8, "BINUNICODE8", 4, Operand::kCounted8, true},
    OpcodeInfo{Opcode::kBinBytes8, "BINBYTES8", 4, Operand::kCounted8, true},
    OpcodeInfo{Opcode::kEmptySet, "EMPTY_SET", 4, Operand::kNothing, true},
    OpcodeInfo{Opcode::kAddItems, "ADDITEMS", 4, Operand::kNothing, true},
    OpcodeInfo{Opcode::kFrozenSet, "FROZENSET", 4, Operand::kNothing, true},
    OpcodeInfo{Opcode::kNewObjEx, "NEWOBJ_EX", 4, Operand::kNothing, false},
    OpcodeInfo{Opcode::kStackGlobal, "STACK_GLOBAL", 4, Operand::kNothing, true},
    OpcodeInfo{Opcode::kMemoize, "MEMOIZE", 4, Operand::kNothing, true},
    OpcodeInfo{Opcode::kFrame, "FRAME", 4, Operand::kBytes8, true},
    OpcodeInfo{Opcode::kByteArray8, "BYTEARRAY8", 5, Operand::kCounted8, true},
    OpcodeInfo{Opcode::kNextBuffer, "NEXT_BUFFER", 5, Operand::kNothing, false},
    OpcodeInfo{Opcode::kReadOnlyBuffer, "READONLY_BUFFER", 5, Operand::kNothing, false},
};

/// Returns what is known about the opcode `byte`, null if there is no such opcode. Slow; for messages.
constexpr const OpcodeInfo* find_opcode(std::uint8_t byte) {
  for (const OpcodeInfo& info : kOpcodes) {
    if (static_cast<std::uint8_t>(info.code) == byte) return &info;
  }
  return nullptr;
}

}  // namespace dcp::pickle

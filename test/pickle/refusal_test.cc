#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <random>
#include <string>

#include "test/pickle/describe.h"
#include "torch_dcp/base/error.h"
#include "torch_dcp/pickle/opcodes_internal.h"
#include "torch_dcp/pickle/reader.h"
#include "torch_dcp/pickle/writer.h"

namespace dcp::pickle {
namespace {

using std::string_literals::operator""s;

struct Refusal {
  std::string name;
  std::string pickle;
  ErrorKind kind;
  std::string message;  ///< a part of it
};

constexpr ErrorKind kCorrupt = ErrorKind::kCorruptData;
constexpr ErrorKind kUnsupported = ErrorKind::kUnsupported;

const Refusal kRefusals[] = {
    {"empty", "", kCorrupt, "the data end early: 0 of 1 bytes are there (byte 0)"},
    {"no_proto", "N.", kCorrupt, "no pickle of protocol 2 or later (byte 0, NONE)"},
    {"zip", "PK\x03\x04", kCorrupt, "no pickle of protocol 2 or later (byte 0, PERSID)"},
    {"proto_1", "\x80\x01N.", kUnsupported, "protocol 1 is not read, only 2 to 5 (byte 0, PROTO)"},
    {"proto_9", "\x80\x09N.", kUnsupported, "protocol 9 is not read"},
    {"proto_twice", "\x80\x02\x80\x02N.", kCorrupt, "PROTO in the middle of a pickle (byte 2, PROTO)"},
    {"no_stop", "\x80\x02N", kCorrupt, "the data end early: 0 of 1 bytes are there (byte 3)"},
    {"unknown_opcode", "\x80\x02\xff", kCorrupt, "there is no opcode 255 (byte 2)"},
    {"trailing", "\x80\x02N.xy", kCorrupt, "2 bytes follow the end (byte 3, STOP)"},
    {"nothing_left", "\x80\x02.", kCorrupt, "one value must be left at the end, there are 0"},
    {"two_left", "\x80\x02NN.", kCorrupt, "there are 2 and 0 marks"},
    {"mark_left", "\x80\x02N(.", kCorrupt, "there are 1 and 1 marks"},

    {"persid", "\x80\x02Pmodule\n.", kUnsupported, "opcode PERSID is not read (byte 2, PERSID)"},
    {"inst", "\x80\x02(iposix\nsystem\n.", kUnsupported, "opcode INST is not read (byte 3, INST)"},
    {"obj", "\x80\x02(cposix\nsystem\no.", kUnsupported, "opcode OBJ is not read"},
    {"ext1", "\x80\x02\x82\x01.", kUnsupported, "opcode EXT1 is not read"},
    {"ext2", "\x80\x02\x83\x01\x00."s, kUnsupported, "opcode EXT2 is not read"},
    {"ext4", "\x80\x02\x84\x01\x00\x00\x00."s, kUnsupported, "opcode EXT4 is not read"},
    {"newobj_ex", "\x80\x04\x63subprocess\nPopen\n)}\x92.", kUnsupported, "opcode NEWOBJ_EX is not read"},
    {"next_buffer", "\x80\x05\x97.", kUnsupported, "opcode NEXT_BUFFER is not read"},
    {"readonly_buffer", "\x80\x05N\x98.", kUnsupported, "opcode READONLY_BUFFER is not read"},
    {"int_text", "\x80\x02I1\n.", kUnsupported, "opcode INT is not read"},
    {"long_text", "\x80\x02L1L\n.", kUnsupported, "opcode LONG is not read"},
    {"float_text",
     "\x80\x02\x46"
     "1.5\n.",
     kUnsupported, "opcode FLOAT is not read"},
    {"string_text", "\x80\x02S'a'\n.", kUnsupported, "opcode STRING is not read"},
    {"unicode_text", "\x80\x02Va\n.", kUnsupported, "opcode UNICODE is not read"},
    {"get_text", "\x80\x02g0\n.", kUnsupported, "opcode GET is not read"},
    {"put_text", "\x80\x02Np0\n.", kUnsupported, "opcode PUT is not read"},
    {"dict", "\x80\x02(d.", kUnsupported, "opcode DICT is not read"},
    {"list", "\x80\x02(l.", kUnsupported, "opcode LIST is not read"},
    {"dup", "\x80\x02N2.", kUnsupported, "opcode DUP is not read"},

    {"underflow_pop", "\x80\x02\x30.", kCorrupt, "it needs 1 values, the stack has 0 (byte 2, POP)"},
    {"underflow_tuple1", "\x80\x02\x85.", kCorrupt, "it needs 1 values"},
    {"underflow_tuple2", "\x80\x02N\x86.", kCorrupt, "it needs 2 values, the stack has 1"},
    {"underflow_tuple3", "\x80\x02NN\x87.", kCorrupt, "it needs 3 values, the stack has 2"},
    {"underflow_append", "\x80\x02]a.", kCorrupt, "it needs 2 values, the stack has 1"},
    {"underflow_appends", "\x80\x02(Ne.", kCorrupt, "it needs 2 values, the stack has 1"},
    {"underflow_setitem", "\x80\x02}Ns.", kCorrupt, "it needs 3 values, the stack has 2"},
    {"underflow_setitems", "\x80\x02(NNu.", kCorrupt, "it needs 3 values, the stack has 2"},
    {"underflow_additems", "\x80\x04(N\x90.", kCorrupt, "it needs 2 values, the stack has 1"},
    {"underflow_reduce", "\x80\x02R.", kCorrupt, "it needs 2 values, the stack has 0 (byte 2, REDUCE)"},
    {"underflow_newobj", "\x80\x02)\x81.", kCorrupt, "it needs 2 values"},
    {"underflow_build", "\x80\x02}b.", kCorrupt, "it needs 2 values"},
    {"underflow_persid", "\x80\x02Q.", kCorrupt, "it needs 1 values"},
    {"underflow_memoize", "\x80\x04\x94.", kCorrupt, "it needs 1 values"},
    {"underflow_binput", "\x80\x02q\x01.", kCorrupt, "it needs 1 values"},
    {"underflow_stack_global", "\x80\x04\x8c\x01x\x93.", kCorrupt, "it needs 2 values"},
    // What lies below a mark is out of reach.
    {"below_mark_reduce", "\x80\x02\x63\x61\nb\n()R.", kCorrupt, "it needs 2 values, the stack has 1"},
    {"below_mark_append", "\x80\x02](Na.", kCorrupt, "it needs 2 values, the stack has 1"},
    {"below_mark_appends", "\x80\x02]((Ne.", kCorrupt, "it needs 2 values, the stack has 1"},
    {"below_mark_memoize", "\x80\x04N(\x94.", kCorrupt, "it needs 1 values, the stack has 0"},

    {"no_mark_tuple", "\x80\x02Nt.", kCorrupt, "no mark on the stack (byte 3, TUPLE)"},
    {"no_mark_appends", "\x80\x02]Ne.", kCorrupt, "no mark on the stack"},
    {"no_mark_setitems", "\x80\x02}NNu.", kCorrupt, "no mark on the stack"},
    {"no_mark_additems", "\x80\x04\x8fN\x90.", kCorrupt, "no mark on the stack"},
    {"no_mark_frozenset", "\x80\x04N\x91.", kCorrupt, "no mark on the stack"},
    {"no_mark_pop_mark", "\x80\x04N1.", kCorrupt, "no mark on the stack"},
    {"odd_items", "\x80\x02}(NNNu.", kCorrupt, "a key without a value"},

    {"append_to_dict", "\x80\x02}Na.", kCorrupt, "it appends to a dict"},
    {"append_to_tuple", "\x80\x02)Na.", kCorrupt, "it appends to a tuple"},
    {"append_to_set", "\x80\x04\x8fNa.", kCorrupt, "it appends to a set"},
    {"setitem_on_list", "\x80\x02]NNs.", kCorrupt, "it sets items of a list"},
    {"setitems_on_none", "\x80\x02N(NNu.", kCorrupt, "it sets items of a None"},
    {"additems_to_list", "\x80\x04](N\x90.", kCorrupt, "it adds items to a list"},
    {"additems_to_frozenset", "\x80\x04(\x91(N\x90.", kCorrupt, "it adds items to a frozenset"},
    {"build_dict", "\x80\x02}}b.", kCorrupt, "it gives a state to a dict"},
    {"build_global", "\x80\x02\x63\x61\nb\n}b.", kCorrupt, "it gives a state to a global"},
    {"build_twice", "\x80\x02\x63\x61\nb\n)\x81}b}b.", kCorrupt, "it gives a second state to an object"},
    {"call_text", "\x80\x04\x8c\x01x)R.", kCorrupt, "a call of a str"},
    {"call_without_tuple", "\x80\x04\x63\x61\nb\n]R.", kCorrupt, "a call with a list"},
    {"new_of_object", "\x80\x02\x63\x61\nb\n)R)\x81.", kCorrupt, "a call of a object"},
    {"global_of_ints", "\x80\x04K\x01K\x02\x93.", kCorrupt, "a global named by a int and a int"},

    {"memo_unset", "\x80\x02h\x07.", kCorrupt, "memo number 7 was never stored (byte 2, BINGET)"},
    {"memo_unset_long", "\x80\x02Nq\x00j\xff\xff\xff\xff."s, kCorrupt, "memo number 4294967295 was never stored"},
    {"memo_huge", "\x80\x02Nr\xff\xff\xff\xff.", kCorrupt, "memo number 4294967295, at most 64000000 values"},
    {"memo_unset_hole", "\x80\x02Nq\x05h\x03.", kCorrupt, "memo number 3 was never stored"},

    {"utf8_lead", "\x80\x04\x8c\x02\x61\xff.", kCorrupt,
     "byte 1 of a text of 2 is not UTF-8 (byte 2, SHORT_BINUNICODE)"},
    {"utf8_cut", "\x80\x04\x8c\x02\xe2\x82.", kCorrupt, "byte 0 of a text of 2 is not UTF-8"},
    {"utf8_overlong_2", "\x80\x04\x8c\x02\xc0\x80.", kCorrupt, "is not UTF-8"},
    {"utf8_overlong_3", "\x80\x04\x8c\x03\xe0\x9f\xbf.", kCorrupt, "is not UTF-8"},
    {"utf8_overlong_4", "\x80\x04\x8c\x04\xf0\x8f\xbf\xbf.", kCorrupt, "is not UTF-8"},
    {"utf8_beyond", "\x80\x04\x8c\x04\xf4\x90\x80\x80.", kCorrupt, "is not UTF-8"},
    {"utf8_continuation", "\x80\x04\x8c\x02\xc3\x28.", kCorrupt, "is not UTF-8"},
    {"utf8_after_ascii", "\x80\x04\x8c\x0aninebytes\x80.", kCorrupt, "byte 9 of a text of 10 is not UTF-8"},
    {"utf8_global", "\x80\x02\x63\xff\nb\n.", kCorrupt, "a name that is not UTF-8"},
    {"old_string", "\x80\x02U\x01\xe9.", kUnsupported, "a Python 2 str that is not ASCII"},
    {"old_string_negative", "\x80\x02T\xff\xff\xff\xff.", kCorrupt, "a text of -1 bytes"},

    {"global_cut", "\x80\x02\x63os\nsys", kCorrupt, "the line of a name does not end (byte 2, GLOBAL)"},
    {"text_cut",
     "\x80\x04\x8c\x05"
     "abc",
     kCorrupt, "the data end early: 3 of 5 bytes are there (byte 2, SHORT_BINUNICODE)"},
    {"huge_text", "\x80\x04\x8d\x00\x00\x00\x00\x00\x00\x00\x40."s, kCorrupt, "a text of 4611686018427387904 bytes"},
    {"large_text", "\x80\x04X\x00\x00\x00\x40."s, kCorrupt, "1 of 1073741824 bytes are there"},
    {"huge_bytes", "\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7f.", kCorrupt,
     "a bytes value of 9223372036854775807 bytes"},
    {"huge_bytearray", "\x80\x05\x96\xff\xff\xff\xff\xff\xff\xff\xff.", kCorrupt, "of 18446744073709551615 bytes"},
    {"huge_long", "\x80\x04\x8b\xff\xff\xff\x7f.", kCorrupt, "an int of 2147483647 bytes, more than 4096"},
    {"negative_long", "\x80\x04\x8b\xfb\xff\xff\xff.", kCorrupt, "an int of -5 bytes"},
    {"long_cut", "\x80\x04\x8a\x08\x01.", kCorrupt, "2 of 8 bytes are there"},
    {"float_cut", "\x80\x04G\x01.", kCorrupt, "2 of 8 bytes are there (byte 2, BINFLOAT)"},

    {"huge_frame", "\x80\x04\x95\x00\x00\x00\x00\x00\x00\x00\x80N."s, kCorrupt,
     "2 of 9223372036854775808 bytes are there (byte 2, FRAME)"},
    {"short_frame", "\x80\x04\x95\x04\x00\x00\x00\x00\x00\x00\x00\x8c\x05\x61\x62\x63\x64\x65."s, kCorrupt,
     "the frame ends inside of an opcode: 2 of 5 bytes (byte 11, SHORT_BINUNICODE)"},
    {"frame_in_frame", "\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00\x95\x01\x00\x00\x00\x00\x00\x00\x00N."s, kCorrupt,
     "a frame begins inside of another (byte 11, FRAME)"},
    {"frame_beyond_stop", "\x80\x04\x95\x03\x00\x00\x00\x00\x00\x00\x00N.x"s, kCorrupt,
     "the last frame reaches beyond the end"},
};

/// Parses, and returns the error of ours; others go on to the test.
std::optional<Error> error_of(const std::string& pickle, const ParseLimits& limits = {}) {
  try {
    parse(as_bytes(pickle), limits);
  } catch (const Error& error) {
    return error;
  }
  return std::nullopt;
}

class RefusalTest : public ::testing::TestWithParam<Refusal> {};

TEST_P(RefusalTest, KindAndMessage) {
  const auto error = error_of(GetParam().pickle);
  ASSERT_TRUE(error.has_value());
  EXPECT_STREQ(error_kind_name(error->kind()), error_kind_name(GetParam().kind));
  EXPECT_NE(std::string(error->what_without_backtrace()).find(GetParam().message), std::string::npos)
      << error->what_without_backtrace();
}

INSTANTIATE_TEST_SUITE_P(Table, RefusalTest, ::testing::ValuesIn(kRefusals),
                         [](const auto& info) { return info.param.name; });

TEST(OpcodeTableTest, OpcodesThatAreNotReadAreRefusedByName) {
  for (const OpcodeInfo& info : kOpcodes) {
    if (info.is_read) continue;
    const auto error = error_of("\x80\x05"s + static_cast<char>(info.code));
    ASSERT_TRUE(error.has_value());
    EXPECT_EQ(error->kind(), ErrorKind::kUnsupported) << info.name;
    EXPECT_NE(std::string(error->what_without_backtrace()).find("opcode " + std::string(info.name) + " is not read"),
              std::string::npos);
  }
}

TEST(OpcodeTableTest, OperandsThatAreCutAreCorrupt) {
  for (const OpcodeInfo& info : kOpcodes) {
    if (!info.is_read || info.operand == Operand::kNothing || info.code == Opcode::kProto) continue;
    const std::string opcodes = "\x80\x05N"s + static_cast<char>(info.code);
    const auto error = error_of(opcodes);
    ASSERT_TRUE(error.has_value());
    EXPECT_EQ(error->kind(), ErrorKind::kCorruptData) << info.name;
    EXPECT_NE(std::string(error->what_without_backtrace()).find("(byte 3, " + std::string(info.name) + ")"),
              std::string::npos)
        << error->what_without_backtrace();
  }
}

struct LimitCase {
  std::string pickle;
  ParseLimits limits;
  std::string message;
};

TEST(LimitTest, EachLimit) {
  const LimitCase cases[] = {
      {"\x80\x02]]]aa.", {.max_depth = 2}, "values are nested deeper than 2"},
      {"\x80\x02N\x85\x85\x85.", {.max_depth = 2}, "values are nested deeper than 2"},
      {"\x80\x02\x63\x61\nb\n)R}N]\x85sb.", {.max_depth = 3}, "values are nested deeper than 3"},
      {"\x80\x02(NNNt.", {.max_values = 3}, "more than 3 values"},
      {"\x80\x04(N\x94N\x94N\x94t.", {.max_memo_entries = 2}, "memo number 2, at most 2 values are kept"},
      {"\x80\x02Nq\x01q\x02.", {.max_memo_entries = 2}, "memo number 2, at most 2"},
      {"\x80\x04\x8c\x03\x61\x62\x63.", {.max_string_bytes = 2}, "a text of 3 bytes, more than 2"},
      {"\x80\x04\x43\x03\x61\x62\x63.", {.max_string_bytes = 2}, "a bytes value of 3 bytes, more than 2"},
      {"\x80\x04U\x03\x61\x62\x63.", {.max_string_bytes = 2}, "a text of 3 bytes, more than 2"},
      {"\x80\x02\x63os\npath\n.", {.max_string_bytes = 3}, "a name of 4 bytes"},
      {"\x80\x02\x8a\x02\xff\x7f.", {.max_integer_bytes = 1}, "an int of 2 bytes, more than 1"},
  };
  for (const LimitCase& c : cases) {
    EXPECT_FALSE(error_of(c.pickle).has_value()) << c.message;
    const auto error = error_of(c.pickle, c.limits);
    ASSERT_TRUE(error.has_value()) << c.message;
    EXPECT_EQ(error->kind(), ErrorKind::kCorruptData);
    EXPECT_NE(std::string(error->what_without_backtrace()).find(c.message), std::string::npos)
        << error->what_without_backtrace();
  }
}

constexpr std::size_t kDeep = 100'000;

std::string repeat(const std::string& part, std::size_t count) {
  std::string text;
  for (std::size_t i = 0; i < count; ++i) text += part;
  return text;
}

// Each way to nest without end; parsed and destroyed without recursion, and refused by default.
TEST(DepthTest, DeepNesting) {
  const std::string pickles[] = {
      "\x80\x02" + repeat("]", kDeep) + repeat("a", kDeep - 1) + ".",
      "\x80\x02" + repeat("](", kDeep) + repeat("e", kDeep) + ".",
      "\x80\x02)" + repeat("\x85", kDeep) + ".",
      "\x80\x02" + repeat("}N", kDeep) + "N" + repeat("s", kDeep) + ".",
      "\x80\x02\x63\x61\nb\n" + repeat(")R", kDeep) + ".",
      "\x80\x02N" + repeat("Q", kDeep) + ".",
      "\x80\x04" + repeat("(", kDeep) + repeat("\x91", kDeep) + ".",
  };
  for (const std::string& pickle : pickles) {
    SCOPED_TRACE(::testing::PrintToString(pickle.substr(0, 8)));
    const auto error = error_of(pickle);
    ASSERT_TRUE(error.has_value());
    EXPECT_NE(std::string(error->what_without_backtrace()).find("nested deeper than 500"), std::string::npos)
        << error->what_without_backtrace();
    const Pickle parsed = parse(as_bytes(pickle), {.max_depth = 10 * kDeep});
    EXPECT_GE(parsed.root->depth, kDeep - 1);
  }
}

TEST(DepthTest, BillionLaughsStaySmall) {
  // 60 lists, each with the one before twice: 2^60 values as a copied tree.
  std::string opcodes = "\x80\x04]\x94";
  for (char i = 0; i < 59; ++i) opcodes += "](h"s + i + "h" + i + "e\x94";
  const std::string tuple = opcodes.substr(0, 2) + "(" + opcodes.substr(2) + "t.";
  const Pickle pickle = parse(as_bytes(tuple));
  ASSERT_EQ(pickle.root->items().size(), 60u);
  EXPECT_EQ(pickle.root->items()[59]->items()[1], pickle.root->items()[58]);
  EXPECT_LE(pickle.chunks.size(), 4u);
}

/// A pickle with every opcode that is read, most of them more than once.
std::string good_pickle() {
  return "\x80\x05\x95\x09\x00\x00\x00\x00\x00\x00\x00(]\x94(NK\x01\x88\x65"
         "}(\x8c\x01\x61\x94M\x00\x02X\x02\x00\x00\x00\xc3\xa9J\x00\x00\x00\x80u"
         "}\x8d\x01\x00\x00\x00\x00\x00\x00\x00zG\x3f\xf8\x00\x00\x00\x00\x00\x00s"
         "U\x01pT\x01\x00\x00\x00qC\x01\xff"
         "B\x01\x00\x00\x00\xfe\x8e\x01\x00\x00\x00\x00\x00\x00\x00\xfd\x96\x01\x00\x00\x00\x00\x00\x00\x00\xfc"
         "\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x80\x00\x8b\x01\x00\x00\x00\x07"
         "\x8f\x94(K\x02\x90(K\x03\x91"
         "N0(NN1"
         "cos\npath\nq\x07)\x81\x94}Nh\x00sb"
         "\x8c\x01m\x8c\x01n\x93)R(NNuNa(NeN\x85NN\x86NNN\x87K\x09Q"
         "r\x2c\x01\x00\x00j\x2c\x01\x00\x00h\x07\x89t."s;
}

TEST(RobustnessTest, TruncatedAnywhereIsCorrupt) {
  const std::string good = good_pickle();
  ASSERT_FALSE(error_of(good).has_value()) << error_of(good)->what_without_backtrace();
  for (std::size_t size = 0; size < good.size(); ++size) {
    const auto error = error_of(good.substr(0, size));
    ASSERT_TRUE(error.has_value()) << size;
    EXPECT_EQ(error->kind(), ErrorKind::kCorruptData) << size;
  }
}

TEST(RobustnessTest, GoodPickleHasEachOpcodeThatIsRead) {
  const std::string good = good_pickle();
  for (const OpcodeInfo& info : kOpcodes) {
    if (!info.is_read) continue;
    EXPECT_NE(good.find(static_cast<char>(info.code)), std::string::npos) << info.name;
  }
}

TEST(RobustnessTest, ChangedBytesNeverCrash) {
  const std::string good = good_pickle();
  std::mt19937 random(20240607);
  const auto pick = [&random](std::size_t count) { return static_cast<std::size_t>(random() % count); };
  int parsed = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::string bad = good;
    for (std::size_t change = 0; change <= pick(4); ++change) {
      const std::size_t at = pick(bad.size());
      switch (pick(4)) {
        case 0:
          bad[at] = static_cast<char>(bad[at] ^ (1 << pick(8)));
          break;
        case 1:
          bad[at] = static_cast<char>(kOpcodes[pick(kOpcodes.size())].code);
          break;
        case 2:
          bad.erase(at, pick(4));
          break;
        default:
          bad.insert(at, good.substr(pick(good.size()), pick(16)));
      }
    }
    try {
      const Pickle pickle = parse(as_bytes(bad), {.max_depth = 50});
      // Walks into every kind, as far as a cycle lets it.
      EXPECT_FALSE(describe(pickle.root, 6).empty());
      ++parsed;
    } catch (const Error& error) {
      EXPECT_TRUE(error.kind() == kCorrupt || error.kind() == kUnsupported) << error.what_without_backtrace();
    }
  }
  // Some of the changes leave a sound pickle; if none did, nothing but the first bytes would be tested.
  EXPECT_GT(parsed, 500);
}

}  // namespace
}  // namespace dcp::pickle

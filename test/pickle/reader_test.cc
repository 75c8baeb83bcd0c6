#include "torch_dcp/pickle/reader.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <string>

#include "test/pickle/describe.h"
#include "torch_dcp/base/error.h"
#include "torch_dcp/pickle/opcodes_internal.h"

namespace dcp::pickle {
namespace {

using std::string_literals::operator""s;

std::string read(const std::string& pickle) {
  const Pickle parsed = parse(as_bytes(pickle));
  return describe(parsed.root);
}

/// A body of any protocol, as a pickle of protocol 5 without frames.
std::string body(const std::string& opcodes) { return "\x80\x05" + opcodes + "."; }

struct OpcodeCase {
  std::string opcodes;
  std::string expected;
};

TEST(ReaderTest, EachOpcode) {
  const OpcodeCase cases[] = {
      {"N", "None"},
      {"\x88", "True"},
      {"\x89", "False"},
      {"K\xff", "255"},
      {"M\xfe\xff", "65534"},
      {"J\xff\xff\xff\xff", "-1"},
      {"J\x00\x00\x00\x80"s, "-2147483648"},
      {"\x8a\x00"s, "0"},
      {"\x8a\x01\xff", "-1"},
      {"\x8a\x02\xff\x00"s, "255"},
      {"\x8a\x08\x00\x00\x00\x00\x00\x00\x00\x80"s, "-9223372036854775808"},
      {"\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f"s, "9223372036854775807"},
      // Longer than needed, as a foreign pickler may write it.
      {"\x8a\x0a\x05\x00\x00\x00\x00\x00\x00\x00\x00\x00"s, "5"},
      {"\x8a\x09\xfb\xff\xff\xff\xff\xff\xff\xff\xff", "-5"},
      {"\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x80\x00"s, "9223372036854775808L"},
      {"\x8a\x09\xff\xff\xff\xff\xff\xff\xff\x7f\xff", "-9223372036854775809L"},
      {"\x8a\x11\x00\x00\x00\x00\x00\x61\xf5\xb9\xab\xbf\xa4\x5c\xc3\xf1\x29\x63\x1d"s,
       "10000000000000000000000000000000000000000L"},
      {"\x8b\x02\x00\x00\x00\x00\x80"s, "-32768"},
      {"G\x3f\xf8\x00\x00\x00\x00\x00\x00"s, "1.500000"},
      {"\x8c\x03\x61\xc3\xa9", "'a\xc3\xa9'"},
      {"\x8c\x00"s, "''"},
      {"X\x03\x00\x00\x00\xed\xa0\x80"s, "'\xed\xa0\x80'"},
      {"X\x04\x00\x00\x00\xf0\x9f\x98\x80"s, "'\xf0\x9f\x98\x80'"},
      {"\x8d\x02\x00\x00\x00\x00\x00\x00\x00hi"s, "'hi'"},
      {"U\x02hi", "'hi'"},
      {"T\x02\x00\x00\x00hi"s, "'hi'"},
      {"C\x02\xff\x61", "b'\xff\x61'"},
      {"B\x01\x00\x00\x00x"s, "b'x'"},
      {"\x8e\x01\x00\x00\x00\x00\x00\x00\x00x"s, "b'x'"},
      {"\x96\x01\x00\x00\x00\x00\x00\x00\x00x"s, "bytearray'x'"},
      {")", "()"},
      {"(t", "()"},
      {"N\x85", "(None)"},
      {"NK\x01\x86", "(None, 1)"},
      {"NK\x01K\x02\x87", "(None, 1, 2)"},
      {"(NK\x01K\x02Nt", "(None, 1, 2, None)"},
      {"]", "[]"},
      {"]Na", "[None]"},
      {"](NNeNa(e", "[None, None, None]"},
      {"}", "{}"},
      {"}K\x01Ns", "{1: None}"},
      {"}(K\x01NK\x01]uNNs", "{1: None, 1: [], None: None}"},
      {"\x8f(K\x01K\x02\x90", "set{1, 2}"},
      {"(K\x01\x91", "frozenset{1}"},
      {"cos\nsystem\n", "<os.system>"},
      {"\x8c\x02os\x8c\x06system\x93", "<os.system>"},
      {"ca\nb\n)R", "<a.b>()"},
      {"ca\nb\n)R)R", "<a.b>()()"},
      {"ca\nb\nN\x85\x81", "new <a.b>(None)"},
      {"ca\nb\n)\x81}b", "new <a.b>()!{}"},
      {"ca\nb\n)RNNs(NN]}u", "<a.b>()+{None: None, None: None, []: {}}"},
      {"ca\nb\n)RNa(NNe", "<a.b>()+[None, None, None]"},
      {"K\x07Q", "persid(7)"},
      {"]\x94h\x00\x86"s, "([], [])"},
      {"]N\x94h\x00\x87"s, "([], None, None)"},
      {"]q\x05(N\x94]\x94h\x05h\x02h\x01t\x86", "([], (None, [], [], [], None))"},
      {"]r\x05\x00\x00\x00j\x05\x00\x00\x00\x86"s, "([], [])"},
      {"Nr\x00\x00\x00\x01(j\x00\x00\x00\x01\x85t\x86"s, "(None, ((None)))"},
      {"NN0", "None"},
      {"N(0", "None"},
      {"N(]]1", "None"},
  };
  for (const OpcodeCase& c : cases) {
    SCOPED_TRACE(::testing::PrintToString(c.opcodes));
    try {
      EXPECT_EQ(read(body(c.opcodes)), c.expected);
    } catch (const Error& error) {
      ADD_FAILURE() << error.what_without_backtrace();
    }
  }
}

// Values that Python 3.11's pickler wrote: a tuple that is in a list that it holds,
// an OrderedDict, bytes in protocol 2, a set in all of them.
TEST(ReaderTest, PythonForms) {
  EXPECT_EQ(read("\x80\x02\x63\x63ollections\nOrderedDict\nq\x00)Rq\x01X\x01\x00\x00\x00\x61q\x02K\x01s."s),
            "<collections.OrderedDict>()+{'a': 1}");
  EXPECT_EQ(read("\x80\x02\x63_codecs\nencode\nq\x00X\x04\x00\x00\x00\x00\xc3\xbf\x41q\x01X\x06\x00\x00\x00latin1q\x02"
                 "\x86q\x03Rq\x04."s),
            "<_codecs.encode>('\0\xc3\xbf\x41', 'latin1')"s);
  EXPECT_EQ(read("\x80\x02\x63__builtin__\nset\nq\x00]q\x01K\x05\x61\x85q\x02Rq\x03."s), "<__builtin__.set>([5])");
  EXPECT_EQ(read("\x80\x04\x95\x07\x00\x00\x00\x00\x00\x00\x00\x8f\x94(K\x05\x90."s), "set{5}");
  EXPECT_EQ(read("\x80\x05\x95\x06\x00\x00\x00\x00\x00\x00\x00(K\x05\x91\x94."s), "frozenset{5}");
  EXPECT_EQ(read("\x80\x05\x95\x0d\x00\x00\x00\x00\x00\x00\x00\x96\x02\x00\x00\x00\x00\x00\x00\x00\x61\x62\x94."s),
            "bytearray'ab'");
  const Pickle recursive = parse(as_bytes("\x80\x02]q\x00h\x00\x85q\x01\x61\x30h\x01."s));
  ASSERT_EQ(recursive.root->kind, NodeKind::kTuple);
  const Ref list = recursive.root->items()[0];
  EXPECT_EQ(list->items()[0], recursive.root);
}

TEST(ReaderTest, ListInItself) {
  const Pickle pickle = parse(as_bytes("\x80\x02]q\x00h\x00\x61."s));
  ASSERT_EQ(pickle.root->items().size(), 1u);
  EXPECT_EQ(pickle.root->items()[0], pickle.root);
}

TEST(ReaderTest, ReferenceToAnObjectUnderConstruction) {
  // The object's state refers to the object, before BUILD.
  const Pickle pickle = parse(as_bytes(body("ca\nb\n)\x81\x94}N\x68\x00sb"s)));
  EXPECT_EQ(pickle.root->state()->entries()[0].second, pickle.root);
}

TEST(ReaderTest, ReferencesAreTheSameNode) {
  const Pickle pickle = parse(as_bytes(body("(\x8c\x01w\x94h\x00t"s)));
  EXPECT_EQ(pickle.root->items()[0], pickle.root->items()[1]);
}

TEST(ReaderTest, TheInputMayGoAndThePickleMove) {
  Pickle kept;
  {
    std::string bytes =
        "\x80\x05(\x8c\x04text\x8c\x02os\x8c\x04path\x93\x43\x03\x72\x61w"
        "\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x80\x00t."s;
    Pickle parsed = parse(as_bytes(bytes));
    bytes.assign(bytes.size(), 'x');
    kept = std::move(parsed);
  }
  EXPECT_EQ(describe(kept.root), "('text', <os.path>, b'raw', 9223372036854775808L)");
}

TEST(ReaderTest, MemoNumbersInAnyOrder) {
  // 40 is far ahead at first, later in reach of the others; it keeps its value and counts once.
  std::string opcodes = "(K\x2ar\x28\x00\x00\x00"s;
  for (char number = 0; number < 39; ++number) opcodes += "K"s + number + "q" + number;
  opcodes += "h\x28h\x26"s;      // 42, 38
  opcodes += "K\x07\x94h\x28"s;  // MEMOIZE stores number 40, for 40 are there.
  opcodes += "K\x08q\x27h\x27"s;
  const Pickle pickle = parse(as_bytes(body(opcodes + "t")));
  const auto& items = pickle.root->items();
  ASSERT_EQ(items.size(), 40u + 6u);
  EXPECT_EQ(items[40]->integer(), 42);
  EXPECT_EQ(items[41]->integer(), 38);
  EXPECT_EQ(items[43]->integer(), 7);
  EXPECT_EQ(items[45]->integer(), 8);
}

TEST(ReaderTest, ConsumedCountsUpToStop) {
  std::size_t consumed = 0;
  const Pickle pickle = parse(as_bytes("\x80\x02N.rest"), {}, &consumed);
  EXPECT_EQ(consumed, 4u);
  EXPECT_EQ(pickle.root->kind, NodeKind::kNone);
}

TEST(ReaderTest, SeveralFramesAndATextOutsideOfThem) {
  EXPECT_EQ(read("\x80\x04\x95\x04\x00\x00\x00\x00\x00\x00\x00]\x94(N"
                 "X\x03\x00\x00\x00out"
                 "\x95\x02\x00\x00\x00\x00\x00\x00\x00\x65."s),
            "[None, 'out']");
}

TEST(ReaderTest, DepthIsCounted) {
  EXPECT_EQ(parse(as_bytes(body("N"))).root->depth, 0u);
  EXPECT_EQ(parse(as_bytes(body("]"))).root->depth, 1u);
  EXPECT_EQ(parse(as_bytes(body("N\x85"))).root->depth, 1u);
  EXPECT_EQ(parse(as_bytes(body("]]]aa"))).root->depth, 3u);
  EXPECT_EQ(parse(as_bytes(body("}N]\x85s"))).root->depth, 3u);
  EXPECT_EQ(parse(as_bytes(body("ca\nb\n)\x81]]ab"))).root->depth, 3u);
  EXPECT_EQ(parse(as_bytes(body("\x8f(]\x85\x90"))).root->depth, 3u);
}

TEST(ReaderTest, LongBigInt) {
  // 2^(8 * 4095 - 1) has 9862 digits, and ends in a known way.
  std::string bytes(4096, '\0');
  bytes[4094] = '\x80';
  const Pickle pickle = parse(as_bytes(body("\x8b\x00\x10\x00\x00"s + bytes)));
  ASSERT_EQ(pickle.root->kind, NodeKind::kBigInt);
  EXPECT_EQ(pickle.root->text().size(), 9862u);
  EXPECT_EQ(pickle.root->text().view().substr(0, 12), "276457232625");
  EXPECT_EQ(pickle.root->text().view().substr(9850), "141862719488");
}

// Real metadata of PyTorch 2.14.1 (protocol 5), as older Pythons write it, and with protocol 2.
struct MetadataCase {
  std::string file;
  int protocol;
  std::size_t keys;
  std::size_t stored;
};

Ref field(Ref object, std::string_view name) {
  for (const auto& [key, value] : object->state()->entries()) {
    if (key->text() == name) return value;
  }
  ADD_FAILURE() << "no field " << name;
  return nullptr;
}

std::string file_bytes(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  EXPECT_TRUE(stream) << path;
  return {std::istreambuf_iterator<char>(stream), {}};
}

class MetadataFileTest : public ::testing::TestWithParam<MetadataCase> {};

TEST_P(MetadataFileTest, RootShape) {
  const std::string bytes = file_bytes("test/pickle/data/" + GetParam().file);
  ASSERT_EQ(bytes.substr(0, 2), "\x80"s + static_cast<char>(GetParam().protocol));
  const Pickle pickle = parse(as_bytes(bytes));
  const Ref root = pickle.root;
  ASSERT_EQ(root->kind, NodeKind::kCall);
  EXPECT_TRUE(root->is_new_object);
  EXPECT_TRUE(root->callee()->is_global("torch.distributed.checkpoint.metadata", "Metadata"));
  EXPECT_EQ(field(root, "state_dict_metadata")->entries().size(), GetParam().keys);
  const Ref stored = field(root, "storage_data");
  ASSERT_EQ(stored->entries().size(), GetParam().stored);
  for (const auto& [index, info] : stored->entries()) {
    EXPECT_TRUE(index->callee()->is_global("torch.distributed.checkpoint.metadata", "MetadataIndex"));
    EXPECT_TRUE(info->callee()->is_global("torch.distributed.checkpoint.filesystem", "_StorageInfo"));
    EXPECT_EQ(field(index, "fqn")->kind, NodeKind::kText);
    EXPECT_EQ(field(info, "offset")->kind, NodeKind::kInt);
  }
  EXPECT_EQ(field(root, "version")->text(), "1.0.0");
}

INSTANTIATE_TEST_SUITE_P(Files, MetadataFileTest,
                         ::testing::Values(MetadataCase{"empty_checkpoint.metadata", 5, 0, 0},
                                           MetadataCase{"no_crc.metadata", 5, 2, 2},
                                           MetadataCase{"old_protocol_2.metadata", 2, 4, 4},
                                           MetadataCase{"old_python_3_13_path.metadata", 4, 4, 4},
                                           MetadataCase{"many_keys.metadata", 5, 1010, 1010}),
                         [](const auto& info) { return info.param.file.substr(0, info.param.file.find('.')); });

TEST(OpcodeTableTest, HasEachOpcodeOnce) {
  std::map<std::uint8_t, int> counts;
  for (const OpcodeInfo& info : kOpcodes) {
    ++counts[static_cast<std::uint8_t>(info.code)];
    EXPECT_EQ(find_opcode(static_cast<std::uint8_t>(info.code)), &info) << info.name;
  }
  EXPECT_EQ(counts.size(), 68u);  // as pickletools of Python 3.14 has it
}

}  // namespace
}  // namespace dcp::pickle

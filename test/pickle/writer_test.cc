#include "torch_dcp/pickle/writer.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include "test/pickle/describe.h"
#include "torch_dcp/base/error.h"
#include "torch_dcp/pickle/reader.h"

namespace dcp::pickle {
namespace {

using std::string_literals::operator""s;

std::string finish(Writer& writer) {
  const Bytes bytes = std::move(writer).finish();
  return std::string(as_text(bytes));
}

std::string described(Writer& writer) {
  const std::string bytes = finish(writer);
  const Pickle pickle = parse(as_bytes(bytes));
  return describe(pickle.root);
}

TEST(WriterTest, FloatTensorAsPythonWritesIt) {
  Writer w(2);
  w.global("torch._utils", "_rebuild_tensor_v2");
  w.mark();
  w.mark();
  w.text("storage");
  w.global("torch", "FloatStorage");
  w.text("0");
  w.text("cpu");
  w.integer(6);
  w.tuple_from_mark();
  w.put();
  w.persistent_id();
  w.integer(0);
  for (const auto& [first, second] : {std::pair{2, 3}, std::pair{3, 1}}) {
    w.integer(first);
    w.integer(second);
    w.tuple_of(2);
    w.put();
  }
  w.boolean(false);
  w.global("collections", "OrderedDict");
  w.empty_tuple();
  w.reduce();
  w.put();
  w.tuple_from_mark();
  w.put();
  w.reduce();
  w.put();
  const std::string expected =
      "\x80\x02"
      "ctorch._utils\n_rebuild_tensor_v2\nq\x00((X\x07\x00\x00\x00storageq\x01"
      "ctorch\nFloatStorage\n"
      "q\x02X\x01\x00\x00\x00"
      "0q\x03X\x03\x00\x00\x00"
      "cpuq\x04K\x06tq\x05QK\x00K\x02K\x03\x86q\x06K\x03K\x01\x86q\x07"
      "\x89"
      "ccollections\nOrderedDict\nq\x08)Rq\x09tq\x0aRq\x0b."s;
  ASSERT_EQ(expected.size(), 154u);
  EXPECT_EQ(finish(w), expected);
}

/// {'a': [1, (2, 3), ('x', 'y', 'z', 'w')], 'b': None}
void write_nested(Writer& w) {
  w.empty_dict();
  w.put();
  w.mark();
  w.text("a");
  w.empty_list();
  w.put();
  w.mark();
  w.integer(1);
  w.integer(2);
  w.integer(3);
  w.tuple_of(2);
  w.put();
  w.mark();
  for (const char* text : {"x", "y", "z", "w"}) w.text(text);
  w.tuple_from_mark();
  w.put();
  w.appends_from_mark();
  w.text("b");
  w.none();
  w.set_items_from_mark();
}

// The expected bytes are those of Python 3.11's pickle.dumps.
TEST(WriterTest, NestedValueAsPythonWritesIt) {
  Writer old(2);
  write_nested(old);
  EXPECT_EQ(
      finish(old),
      "\x80\x02}q\x00(X\x01\x00\x00\x00\x61q\x01]q\x02(K\x01K\x02K\x03\x86q\x03(X\x01\x00\x00\x00xq\x04X\x01\x00\x00"
      "\x00yq\x05X\x01\x00\x00\x00zq\x06X\x01\x00\x00\x00wq\x07tq\x08\x65X\x01\x00\x00\x00\x62q\x09Nu."s);
  Writer present(4);
  write_nested(present);
  EXPECT_EQ(
      finish(present),
      "\x80\x04\x95-\x00\x00\x00\x00\x00\x00\x00}\x94(\x8c\x01\x61\x94]\x94(K\x01K\x02K\x03\x86\x94(\x8c\x01x\x94\x8c"
      "\x01y\x94\x8c\x01z\x94\x8c\x01w\x94t\x94\x65\x8c\x01\x62\x94Nu."s);
}

TEST(WriterTest, IntegersAsPythonWritesThem) {
  Writer w(2);
  w.empty_list();
  w.put();
  w.mark();
  const std::int64_t values[] = {0,
                                 255,
                                 256,
                                 65535,
                                 65536,
                                 -1,
                                 std::numeric_limits<std::int32_t>::min(),
                                 std::numeric_limits<std::int32_t>::max(),
                                 std::int64_t{1} << 31,
                                 -(std::int64_t{1} << 31) - 1,
                                 std::numeric_limits<std::int64_t>::max(),
                                 std::numeric_limits<std::int64_t>::min()};
  for (std::int64_t value : values) w.integer(value);
  w.appends_from_mark();
  const std::string bytes = finish(w);
  EXPECT_EQ(
      bytes,
      "\x80\x02]q\x00(K\x00K\xffM\x00\x01M\xff\xffJ\x00\x00\x01\x00J\xff\xff\xff\xffJ\x00\x00\x00\x80J\xff\xff\xff"
      "\x7f\x8a\x05\x00\x00\x00\x80\x00\x8a\x05\xff\xff\xff\x7f\xff\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f\x8a\x08"
      "\x00\x00\x00\x00\x00\x00\x00\x80\x65."s);
  const Pickle pickle = parse(as_bytes(bytes));
  ASSERT_EQ(pickle.root->items().size(), std::size(values));
  for (std::size_t i = 0; i < std::size(values); ++i) EXPECT_EQ(pickle.root->items()[i]->integer(), values[i]);
}

TEST(WriterTest, EachLengthOfIntegerComesBack) {
  for (int shift = 0; shift < 64; ++shift) {
    for (std::int64_t step : {-1, 0, 1}) {
      for (bool is_negative : {false, true}) {
        const std::uint64_t magnitude = (std::uint64_t{1} << shift) + static_cast<std::uint64_t>(step);
        const auto value = static_cast<std::int64_t>(is_negative ? 0 - magnitude : magnitude);
        Writer w(4);
        w.integer(value);
        const std::string bytes = finish(w);
        const Pickle pickle = parse(as_bytes(bytes));
        ASSERT_EQ(pickle.root->kind, NodeKind::kInt);
        ASSERT_EQ(pickle.root->integer(), value);
      }
    }
  }
}

TEST(WriterTest, RealsKeepTheirBits) {
  for (int protocol : {2, 4}) {
    for (double value : {1.5, -0.0, 5e-324, std::numeric_limits<double>::infinity(), std::nan("0x123")}) {
      Writer w(protocol);
      w.real(value);
      const std::string bytes = finish(w);
      const Pickle pickle = parse(as_bytes(bytes));
      EXPECT_EQ(std::bit_cast<std::uint64_t>(pickle.root->real()), std::bit_cast<std::uint64_t>(value)) << value;
    }
  }
}

TEST(WriterTest, BytesAsPythonWritesThem) {
  Writer empty(2);
  empty.bytes({});
  EXPECT_EQ(finish(empty),
            "\x80\x02"
            "c__builtin__\nbytes\nq\x00)Rq\x01."s);
  Writer old(2);
  old.empty_list();
  old.put();
  old.mark();
  old.bytes(as_bytes("\x80"));
  old.bytes(as_bytes("x"));
  old.appends_from_mark();
  EXPECT_EQ(
      finish(old),
      "\x80\x02]q\x00(c_codecs\nencode\nq\x01X\x02\x00\x00\x00\xc2\x80q\x02X\x06\x00\x00\x00latin1q\x03\x86q\x04Rq"
      "\x05h\x01X\x01\x00\x00\x00xq\x06h\x03\x86q\x07Rq\x08\x65."s);
  Writer present(4);
  present.bytes(as_bytes("\x00\xff\x41"s));
  EXPECT_EQ(finish(present), "\x80\x04\x95\x07\x00\x00\x00\x00\x00\x00\x00\x43\x03\x00\xff\x41\x94."s);
  Writer longer(4);
  longer.bytes(as_bytes(std::string(256, 'b')));
  EXPECT_EQ(described(longer), "b'" + std::string(256, 'b') + "'");
}

TEST(WriterTest, EachMethodComesBackInBothProtocols) {
  for (int protocol : {2, 4}) {
    Writer w(protocol);
    w.mark();
    w.none();
    w.boolean(true);
    w.boolean(false);
    w.text("");
    w.text("a\xc3\xa9\xed\xa0\x80");
    w.text(std::string(300, 't'));
    w.global("collections", "OrderedDict");
    w.empty_tuple();
    w.reduce();
    const std::uint32_t ordered = w.put();
    w.text("k");
    w.integer(1);
    w.set_item();
    w.empty_list();
    w.none();
    w.append();
    w.integer(1);
    w.tuple_of(1);
    w.integer(1);
    w.integer(2);
    w.integer(3);
    w.tuple_of(3);
    w.global("m", "C");
    w.empty_tuple();
    w.new_object();
    w.empty_dict();
    w.build();
    w.integer(9);
    w.persistent_id();
    w.get(ordered);
    w.tuple_from_mark();
    EXPECT_EQ(described(w), "(None, True, False, '', 'a\xc3\xa9\xed\xa0\x80', '" + std::string(300, 't') +
                                "', <collections.OrderedDict>()+{'k': 1}, [None], (1), (1, 2, 3), new <m.C>()!{}, "
                                "persid(9), <collections.OrderedDict>()+{'k': 1})");
  }
}

TEST(WriterTest, EqualTextsAndGlobalsAreWrittenOnce) {
  for (int protocol : {2, 4}) {
    Writer w(protocol);
    w.mark();
    for (int i = 0; i < 2; ++i) {
      w.text("some_text");
      w.global("module", "name");
      w.global("module", "other");
    }
    w.tuple_from_mark();
    const std::string bytes = finish(w);
    EXPECT_EQ(bytes.find("some_text"), bytes.rfind("some_text"));
    EXPECT_EQ(bytes.find("name"), bytes.rfind("name"));
    const Pickle pickle = parse(as_bytes(bytes));
    const auto& items = pickle.root->items();
    ASSERT_EQ(items.size(), 6u);
    for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(items[i], items[i + 3]);
    EXPECT_TRUE(items[2]->is_global("module", "other"));
  }
}

TEST(WriterTest, MemoNumbersOver255) {
  for (int protocol : {2, 4}) {
    Writer w(protocol);
    w.empty_list();
    w.mark();
    for (int round = 0; round < 2; ++round) {
      for (int i = 0; i < 300; ++i) w.text("t" + std::to_string(i));
    }
    w.appends_from_mark();
    const std::string bytes = finish(w);
    const Pickle pickle = parse(as_bytes(bytes));
    ASSERT_EQ(pickle.root->items().size(), 600u);
    for (std::size_t i = 0; i < 300; ++i) {
      EXPECT_EQ(pickle.root->items()[i]->text(), "t" + std::to_string(i));
      EXPECT_EQ(pickle.root->items()[i], pickle.root->items()[i + 300]);
    }
  }
}

// Python 3.11: pickle.dumps(list(range(40000)), 4), but in one batch.
TEST(WriterTest, FramesAreEndedAtTheTarget) {
  Writer w(4);
  w.empty_list();
  w.put();
  w.mark();
  for (int i = 0; i < 40'000; ++i) w.integer(i);
  w.appends_from_mark();
  const std::string bytes = finish(w);
  EXPECT_EQ(bytes.substr(2, 9), "\x95\x01\x00\x01\x00\x00\x00\x00\x00"s);
  EXPECT_EQ(bytes[2 + 9 + 0x10001], '\x95');
  const Pickle pickle = parse(as_bytes(bytes));
  ASSERT_EQ(pickle.root->items().size(), 40'000u);
  EXPECT_EQ(pickle.root->items()[39'999]->integer(), 39'999);
}

// Python 3.11: pickle.dumps(['x' * 70000, 'y' * 300], 4).
TEST(WriterTest, LongTextsAreOutsideOfFrames) {
  Writer w(4);
  w.empty_list();
  w.put();
  w.mark();
  w.text(std::string(70'000, 'x'));
  w.text(std::string(300, 'y'));
  w.appends_from_mark();
  EXPECT_EQ(finish(w), "\x80\x04]\x94(Xp\x11\x01\x00"s + std::string(70'000, 'x') +
                           "\x95\x35\x01\x00\x00\x00\x00\x00\x00\x94X\x2c\x01\x00\x00"s + std::string(300, 'y') +
                           "\x94\x65.");
}

TEST(WriterTest, NothingSmallIsFramed) {
  Writer w(4);
  w.none();
  EXPECT_EQ(finish(w), "\x80\x04N.");
}

template <typename Function>
void expect_refused(Function function, const std::string& message) {
  try {
    function();
    ADD_FAILURE() << "accepted: " << message;
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    EXPECT_NE(std::string(error.what_without_backtrace()).find(message), std::string::npos)
        << error.what_without_backtrace();
  }
}

TEST(WriterTest, Refusals) {
  for (int protocol : {0, 1, 3, 5}) {
    expect_refused([&] { Writer w(protocol); }, "protocol " + std::to_string(protocol) + " is not written");
  }
  Writer w(2);
  expect_refused([&] { w.text("ab\xff"); }, "not UTF-8, from its byte 2");
  expect_refused([&] { w.global("os\nsystem", "x"); }, "is no name of a global");
  expect_refused([&] { w.global("os", "x\ny"); }, "is no name of a global");
  expect_refused([&] { w.global("", "x"); }, "is no name of a global");
  expect_refused([&] { w.tuple_of(0); }, "tuple of 0");
  expect_refused([&] { w.tuple_of(4); }, "tuple of 4");
  expect_refused([&] { w.get(0); }, "memo number 0 of 0");
}

}  // namespace
}  // namespace dcp::pickle

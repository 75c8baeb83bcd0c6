#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "test/format/archive_support.h"
#include "test/support/expect_error.h"
#include "torch_dcp/base/error.h"
#include "torch_dcp/format/crc32.h"
#include "torch_dcp/format/zip_internal.h"
#include "torch_dcp/format/zip_records_internal.h"

namespace dcp::zip {
namespace {

using test::concat;
using test::expect_error;

Bytes bytes_of(std::string_view text) { return {text.begin(), text.end()}; }

Archive read(ByteSpan bytes) { return read_archive(SpanFile(bytes), 0, static_cast<std::int64_t>(bytes.size()), {}); }

Bytes read(ByteSpan bytes, std::string_view name, std::int64_t max_bytes = 1'000'000) {
  return read_member(SpanFile(bytes), 0, read(bytes).at(name), max_bytes);
}

void put(Bytes& out, std::uint64_t value, int byte_count) {
  for (int i = 0; i < byte_count; ++i) out.push_back(static_cast<std::uint8_t>(value >> (8 * i)));
}

void patch(Bytes& bytes, std::size_t at, std::uint64_t value, int byte_count) {
  for (int i = 0; i < byte_count; ++i) bytes.at(at + i) = static_cast<std::uint8_t>(value >> (8 * i));
}

// A member of a zip as other programs write it. Fields that are not set are sound.
struct Part {
  std::string name;
  Bytes data;
  std::uint16_t method = kMethodStored;
  std::int64_t bytes = -1;  // when inflated
  std::int64_t crc32 = -1;
  std::uint16_t flags = 0;
  std::string local_name = {};
  Bytes extra = {};
  Bytes far_position = {};  // the zip64 extra that has the header's position
};

struct End {
  int count_change = 0;
  std::string comment = {};
};

// Sizes and sums in the local headers, neither zip64 nor data descriptors.
Bytes build(const std::vector<Part>& parts, const End& end = {}) {
  Bytes out, directory;
  for (const Part& part : parts) {
    const std::string& local_name = part.local_name.empty() ? part.name : part.local_name;
    const auto position = out.size();
    Bytes common;
    put(common, 20, 2);
    put(common, part.flags, 2);
    put(common, part.method, 2);
    put(common, 0, 4);
    put(common, part.crc32 < 0 ? crc32_of(part.data) : static_cast<std::uint64_t>(part.crc32), 4);
    put(common, part.data.size(), 4);
    put(common, part.bytes < 0 ? part.data.size() : static_cast<std::uint64_t>(part.bytes), 4);
    put(out, kLocalHeaderSignature, 4);
    out = concat({out, common});
    put(out, local_name.size(), 2);
    put(out, part.extra.size(), 2);
    out = concat({out, as_bytes(local_name), part.extra, part.data});
    put(directory, kDirectoryRecordSignature, 4);
    put(directory, 20, 2);
    directory = concat({directory, common});
    put(directory, part.name.size(), 2);
    put(directory, part.far_position.size(), 2);
    put(directory, 0, 2 + 2);  // comment, disk
    put(directory, 0, 2 + 4);  // attributes
    put(directory, part.far_position.empty() ? position : kFull32, 4);
    directory = concat({directory, as_bytes(part.name), part.far_position});
  }
  const std::size_t directory_position = out.size();
  out = concat({out, directory});
  put(out, kEndRecordSignature, 4);
  put(out, 0, 4);
  put(out, parts.size() + end.count_change, 2);
  put(out, parts.size() + end.count_change, 2);
  put(out, directory.size(), 4);
  put(out, directory_position, 4);
  put(out, end.comment.size(), 2);
  return concat({out, as_bytes(end.comment)});
}

// Deflate's form of bytes that are not compressed.
Bytes deflated(ByteSpan data) {
  Bytes out = {1};
  put(out, data.size(), 2);
  put(out, ~data.size(), 2);
  return concat({out, data});
}

Part deflated_part(const std::string& name, ByteSpan data, std::int64_t bytes = -1) {
  return {name, deflated(data), kMethodDeflated, bytes < 0 ? static_cast<std::int64_t>(data.size()) : bytes,
          crc32_of(data)};
}

TEST(Crc32, IsZips) {
  EXPECT_EQ(crc32_of(as_bytes("123456789")), 0xCBF43926u);
  EXPECT_EQ(crc32_of({}), 0u);
  EXPECT_EQ(crc32_of({}, 17), 17u);
  EXPECT_EQ(crc32_of(as_bytes("56789"), crc32_of(as_bytes("1234"))), 0xCBF43926u);
}

TEST(Crc32, CombinesAtEveryPlace) {
  Bytes bytes(1000);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::uint8_t>(i * i + i / 7);
  const std::uint32_t whole = crc32_of(bytes);
  for (std::size_t i = 0; i <= bytes.size(); ++i) {
    const ByteSpan second = ByteSpan(bytes).subspan(i);
    const std::uint32_t first = crc32_of(ByteSpan(bytes).first(i));
    ASSERT_EQ(crc32_combine(first, crc32_of(second), static_cast<std::int64_t>(second.size())), whole) << i;
    ASSERT_EQ(crc32_of(second, first), whole) << i;
  }
  expect_error(ErrorKind::kInvalidArgument, "-1", [] { crc32_combine(1, 2, -1); });
}

TEST(ZipWriter, IsReadBack) {
  Writer writer;
  writer.add("data.pkl", as_bytes("pickle"));
  writer.add_format_members();
  writer.add("data/0", {});
  writer.begin_streamed("data/1", 3);
  const Bytes head = writer.take_head();
  EXPECT_EQ(head.size() % 64, 0u);
  writer.end_streamed(crc32_of(as_bytes("abc")));
  writer.add_closing_members();
  const Bytes bytes = concat({head, as_bytes("abc"), writer.finish()});
  EXPECT_EQ(bytes.size(), static_cast<std::size_t>(archive_bytes({{"data.pkl", 6},
                                                                  {".format_version", 1},
                                                                  {".storage_alignment", 2},
                                                                  {"byteorder", 6},
                                                                  {"data/0", 0},
                                                                  {"data/1", 3},
                                                                  {"version", 2},
                                                                  {".data/serialization_id", 40}})));

  const Archive archive = read(bytes);
  EXPECT_EQ(archive.folder, "archive");
  std::vector<std::string> names;
  for (const Member& member : archive.members) {
    names.push_back(member.name);
    EXPECT_EQ(member.data_position % 64, 0) << member.name;
    EXPECT_FALSE(member.is_deflated);
  }
  EXPECT_EQ(names, (std::vector<std::string>{".data/serialization_id", ".format_version", ".storage_alignment",
                                             "byteorder", "data.pkl", "data/0", "data/1", "version"}));
  EXPECT_EQ(read(bytes, "data.pkl"), bytes_of("pickle"));
  EXPECT_EQ(read(bytes, "data/0"), Bytes());
  EXPECT_EQ(read(bytes, "data/1"), bytes_of("abc"));
  EXPECT_EQ(read(bytes, ".data/serialization_id").size(), 40u);
  EXPECT_EQ(archive.find("data/2"), nullptr);
  expect_error(ErrorKind::kCorruptData, "data/2", [&] { archive.at("data/2"); });
}

TEST(ZipWriter, IdsFollowContent) {
  const auto id = [](std::string_view name, std::string_view data) {
    Writer writer;
    writer.add(name, as_bytes(data));
    writer.add_closing_members();
    const Bytes bytes = writer.finish();
    return read(bytes, ".data/serialization_id");
  };
  EXPECT_EQ(id("a", "1"), id("a", "1"));
  EXPECT_NE(id("a", "1"), id("a", "2"));
  EXPECT_NE(id("a", "1"), id("b", "1"));
}

TEST(ZipReader, ReadsOtherForms) {
  const Bytes text(300, 'x');
  const Bytes zip = build({{"top/", {}}, deflated_part("top/a/b", text), {"top/c", bytes_of("123")}}, {0, "remark"});
  const Archive archive = read(zip);
  EXPECT_EQ(archive.folder, "top");
  ASSERT_EQ(archive.members.size(), 2u);
  EXPECT_TRUE(archive.at("a/b").is_deflated);
  EXPECT_EQ(read(zip, "a/b"), text);
  EXPECT_EQ(read(zip, "c"), bytes_of("123"));
  expect_error(ErrorKind::kCorruptData, "at most 299", [&] { read(zip, "a/b", 299); });

  // A zip's sizes may stand in a zip64 extra without need.
  Bytes extra = {1, 0, 16, 0};
  put(extra, 3, 8);
  put(extra, 3, 8);
  Bytes large = build({{"top/c", bytes_of("123"), 0, -1, -1, 0, "", extra}});
  patch(large, 18, 0xFFFFFFFFFFFFFFFF, 8);
  EXPECT_EQ(read(large, "c"), bytes_of("123"));
  patch(large, 30 + 5 + 4, 4, 1);
  expect_error(ErrorKind::kCorruptData, "disagree", [&] { read(large); });
}

TEST(ZipReader, ReadsFarPositions) {
  const auto read_at = [](std::uint64_t position) {
    Bytes extra = {1, 0, 8, 0};
    put(extra, position, 8);
    return read(build({{"top/c", bytes_of("123")}, {"top/d", bytes_of("45"), 0, -1, -1, 0, "", {}, extra}}), "d");
  };
  EXPECT_EQ(read_at(38), bytes_of("45"));
  expect_error(ErrorKind::kCorruptData, "goes past byte", [&] { read_at(39 + 1000); });
  expect_error(ErrorKind::kCorruptData, "goes past byte", [&] { read_at(INT64_MAX); });
  expect_error(ErrorKind::kCorruptData, "is 18446744073709551615", [&] { read_at(UINT64_MAX); });
}

TEST(ZipReader, FindsTheEndBehindOtherBytes) {
  const Bytes zip = build({{"top/c", bytes_of("123")}});
  for (std::size_t count : {1u, 22u, 4096u, 60'000u, 65'535u}) {
    EXPECT_EQ(read(concat({zip, Bytes(count, 7)}), "c"), bytes_of("123")) << count;
  }
  expect_error(ErrorKind::kCorruptData, "no end record", [&] { read(concat({zip, Bytes(65'536, 7)})); });
  expect_error(ErrorKind::kCorruptData, "end record begins", [&] { read(concat({Bytes(1, 7), zip})); });
  expect_error(ErrorKind::kCorruptData, "no zip archive", [&] { read(Bytes(21)); });
  expect_error(ErrorKind::kCorruptData, "not inside the file", [&] { read_archive(SpanFile(zip), 1, zip.size(), {}); });
  expect_error(ErrorKind::kCorruptData, "not inside the file", [&] { read_archive(SpanFile(zip), -1, 3, {}); });
  expect_error(ErrorKind::kCorruptData, "not inside the file",
               [&] { read_archive(SpanFile(zip), 5, std::numeric_limits<std::int64_t>::max(), {}); });
}

TEST(ZipReader, RefusesBadMembers) {
  struct Case {
    std::string text;
    ErrorKind kind;
    std::vector<Part> parts;
    End end = {};
  };
  const Part good = {"top/c", bytes_of("123")};
  const Bytes empty = {};
  const std::vector<Case> cases = {
      {"two members \"c\"", ErrorKind::kCorruptData, {good, good}},
      {"outside of the zip's folder", ErrorKind::kCorruptData, {good, {"other/c", empty}}},
      {"in no folder", ErrorKind::kCorruptData, {{"c", empty}}},
      {"no name", ErrorKind::kCorruptData, {good, {"top/../c", empty}}},
      {"no name", ErrorKind::kCorruptData, {good, {"../c", empty}}},
      {"no name", ErrorKind::kCorruptData, {good, {"/c", empty}}},
      {"no name", ErrorKind::kCorruptData, {good, {"top//c", empty}}},
      {"no name", ErrorKind::kCorruptData, {good, {"top/./c", empty}}},
      {"null byte", ErrorKind::kCorruptData, {good, {std::string("top/c\0d", 7), empty}}},
      {"in no folder", ErrorKind::kCorruptData, {good, {"", empty}}},
      {"folder \"top/a/\" has 1 bytes", ErrorKind::kCorruptData, {good, {"top/a/", bytes_of("x")}}},
      {"TorchScript", ErrorKind::kUnsupported, {good, {"top/constants.pkl", empty}}},
      {"method 99", ErrorKind::kUnsupported, {{"top/c", bytes_of("123"), 99}}},
      {"encrypted", ErrorKind::kUnsupported, {{"top/c", bytes_of("123"), 0, -1, -1, kFlagEncrypted}}},
      {"encrypted", ErrorKind::kUnsupported, {{"top/c", bytes_of("123"), 0, -1, -1, kFlagMaskedHeader}}},
      {"is stored, but has 4 and 3", ErrorKind::kCorruptData, {{"top/c", bytes_of("123"), 0, 4}}},
      {"said to inflate", ErrorKind::kCorruptData, {deflated_part("top/c", bytes_of("1"), 100'000)}},
      {"not that of \"top/c\"", ErrorKind::kCorruptData, {{"top/c", empty, 0, -1, -1, 0, "top/d"}}},
      {"extra field", ErrorKind::kCorruptData, {{"top/c", empty, 0, -1, -1, 0, "", {9, 9, 1, 0}}}},
      {"has no members", ErrorKind::kCorruptData, {}},
      {"goes on at byte", ErrorKind::kCorruptData, {good, {"top/d", empty}}, {-1}},
      {"no directory record", ErrorKind::kCorruptData, {{"top/" + std::string(200, 'c'), empty}}, {1}},
      {"says that it has 4 members", ErrorKind::kCorruptData, {good}, {3}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.text);
    expect_error(c.kind, c.text, [&] { read(build(c.parts, c.end)); });
  }
}

TEST(ZipReader, RefusesBadPositions) {
  const std::vector<Part> parts = {{"top/a", bytes_of("123")}, {"top/b", bytes_of("4567")}};
  const Bytes good = build(parts);
  const std::size_t header = 30 + 5 + 3;  // of b
  const std::size_t directory = header + 30 + 5 + 4;
  const std::size_t second = directory + 46 + 5;  // b's record
  const std::size_t end = second + 46 + 5;
  ASSERT_EQ(read(good, "b"), bytes_of("4567"));
  struct Case {
    std::string text;
    std::size_t at;
    std::uint64_t value;
    int bytes;
    ErrorKind kind = ErrorKind::kCorruptData;
  };
  const std::vector<Case> cases = {
      {"goes past byte 3, ", second + 42, 3, 4},
      {"no header of \"top/a\" at byte 0", 0, 0, 4},
      {"goes past byte", second + 42, end, 4},
      {"goes past byte", second + 42, 0xFFFFFFFE, 4},
      {"zip64 extra", second + 42, 0xFFFFFFFF, 4},
      {"something else begins", second + 42, 0, 4},
      {"does not begin with a member", directory + 42, header, 4},
      {"4 bytes after its header", directory + 20, 0x0000000400000004, 8},
      {"something else begins at byte", second + 20, 0x7FFFFFFF7FFFFFFF, 8},
      {"disagree", second + 20, 0x0000000300000003, 8},
      {"disagree", second + 16, 5, 4},
      {"disagree", header + 14, 5, 4},
      {"disagree", header + 8, 8, 2},
      {"encrypted", header + 6, 1, 2, ErrorKind::kUnsupported},
      {"several disks", second + 34, 1, 2, ErrorKind::kUnsupported},
      {"goes past the directory", second + 32, 1, 2},
      {"something else begins", header + 28, 1, 2},
      {"end record begins", end + 16, directory + 1, 4},
      {"end record begins", end + 12, 1, 4},
      {"end record begins", end + 16, end + 1, 4},
      {"zip64 end record that is not there", end + 16, 0xFFFFFFFF, 4},
      {"two numbers of members", end + 8, 1, 2},
      {"several disks", end + 4, 1, 2, ErrorKind::kUnsupported},
      {"comment goes past", end + 20, 1, 2},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.text + " at " + std::to_string(c.at));
    Bytes bad = good;
    patch(bad, c.at, c.value, c.bytes);
    expect_error(c.kind, c.text, [&] { read(bad); });
  }
}

TEST(ZipReader, RefusesBadZip64Records) {
  const Bytes good = test::small_item();
  const std::size_t end = good.size() - 22;
  const std::size_t locator = end - 20;
  const std::size_t record = locator - 56;
  struct Case {
    std::string text;
    std::size_t at;
    std::uint64_t value;
    int bytes;
    ErrorKind kind = ErrorKind::kCorruptData;
  };
  const std::vector<Case> cases = {
      {"its locator lies", locator + 8, record + 1, 8},
      {"is 18446744073709551615", locator + 8, ~0ull, 8},
      {"no zip64 end record at byte", locator + 8, record - 1, 8},
      {"several disks", locator + 16, 2, 4, ErrorKind::kUnsupported},
      {"several disks", record + 16, 1, 4, ErrorKind::kUnsupported},
      {"does not reach", record + 4, 45, 8},
      {"two numbers", record + 24, 8, 8},
      {"disagree", record + 40, 1, 8},
      {"disagree", end + 16, 1, 4},
      {"disagree", end + 8, 0x00060006, 4},
      {"is 9223372036854775808", record + 48, 1ull << 63, 8},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.text + " at " + std::to_string(c.at));
    Bytes bad = good;
    patch(bad, c.at, c.value, c.bytes);
    expect_error(c.kind, c.text, [&] { read(bad); });
  }
}

TEST(ZipReader, RefusesBadData) {
  const auto read_c = [](const Part& part) { return read(build({part}), "c"); };
  expect_error(ErrorKind::kCorruptData, "CRC-32", [&] { read_c({"top/c", bytes_of("123"), 0, -1, 77}); });
  EXPECT_EQ(read_c({"top/c", bytes_of("123"), 0, -1, 0}), bytes_of("123"));  // 0: not recorded

  const Bytes text = bytes_of("some text");
  Part part = deflated_part("top/c", text);
  EXPECT_EQ(read_c(part), text);
  expect_error(ErrorKind::kCorruptData, "more than the 8", [&] { read_c(deflated_part("top/c", text, 8)); });
  expect_error(ErrorKind::kCorruptData, "to 9 bytes", [&] { read_c(deflated_part("top/c", text, 10)); });
  part.crc32 = 78;
  expect_error(ErrorKind::kCorruptData, "CRC-32", [&] { read_c(part); });
  part = deflated_part("top/c", text);
  part.data.pop_back();
  expect_error(ErrorKind::kCorruptData, "ends too early", [&] { read_c(part); });
  part.data.push_back('t');
  part.data.push_back('!');
  expect_error(ErrorKind::kCorruptData, "ends at byte", [&] { read_c(part); });
  part.data[0] = 7;
  expect_error(ErrorKind::kCorruptData, "invalid block type", [&] { read_c(part); });
}

TEST(ZipReader, ChecksVersionAndByteOrder) {
  const auto is_big = [](std::vector<Part> parts) {
    const Bytes zip = build(parts);
    return read_is_big_endian(SpanFile(zip), 0, read(zip));
  };
  const auto version = [](std::string_view text) { return Part{"top/version", bytes_of(text)}; };
  const auto order = [](std::string_view text) { return Part{"top/byteorder", bytes_of(text)}; };
  EXPECT_FALSE(is_big({version("3\n")}));
  EXPECT_FALSE(is_big({version("1"), order("little")}));
  EXPECT_TRUE(is_big({version("10\r\n"), order("big")}));
  EXPECT_FALSE(is_big({{"top/.data/version", bytes_of("2")}}));
  expect_error(ErrorKind::kCorruptData, "middle", [&] { is_big({version("3"), order("middle")}); });
  expect_error(ErrorKind::kCorruptData, "no member \"version\"", [&] { is_big({order("big")}); });
  for (const char* text : {"0", "11", "-1"}) {
    expect_error(ErrorKind::kUnsupported, "known are 1 to 10", [&] { is_big({version(text)}); });
  }
  for (const char* text : {"", "\n", "x", "3x", " 3", "99999999999"}) {
    expect_error(ErrorKind::kCorruptData, "version is", [&] { is_big({version(text)}); });
  }
}

TEST(ItemWindow, GivesTheItemsBytes) {
  for (std::size_t length : {std::size_t{0}, std::size_t{100}, std::size_t{ItemWindow::kWholeBytes},
                             std::size_t{ItemWindow::kWholeBytes} + 1, std::size_t{100'000}}) {
    Bytes bytes(length + 30);
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::uint8_t>(i * 31 + i / 256);
    const SpanFile file(bytes);
    const ItemWindow window(file, 10, static_cast<std::int64_t>(length));
    ASSERT_EQ(window.size(), length);
    for (std::size_t count : {0u, 1u, 60u, 5000u}) {
      for (std::size_t at = 0; at + count <= length; at += 41) {
        Bytes out(count);
        window.read_at(at, out);
        ASSERT_TRUE(std::equal(out.begin(), out.end(), bytes.begin() + 10 + static_cast<std::ptrdiff_t>(at)));
      }
      Bytes out(count);
      expect_error(ErrorKind::kCorruptData, "outside of the item", [&] { window.read_at(length - count + 1, out); });
    }
  }
}

}  // namespace
}  // namespace dcp::zip

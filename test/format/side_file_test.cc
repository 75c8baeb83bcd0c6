#include "torch_dcp/format/side_file.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "test/format/golden_support.h"
#include "torch_dcp/format/metadata_pickle.h"

namespace dcp {
namespace {

using test::expect_error;

Key int_key(std::int64_t key) { return key; }

Metadata typed_metadata() {
  Metadata metadata;
  metadata.storage_meta = {"ckpt", "save-1", std::nullopt};
  metadata.planner_data.emplace();
  metadata.planner_data->insert("plain", {PathItem::dict_key("plain")});
  metadata.planner_data->insert("a.-7.2.x", {PathItem::dict_key("a"), PathItem::dict_key(int_key(-7)),
                                             PathItem::list_index(2), PathItem::dict_key("x")});
  metadata.planner_data->insert("\xC3\xBC\"\n.1", {PathItem::dict_key("\xC3\xBC\"\n"), PathItem::dict_key(int_key(1))});
  return metadata;
}

SideFile decode(const std::string& text, const ParseLimits& limits = {}) {
  return decode_side_file(as_bytes(text), limits);
}

TEST(SideFile, TypedPathsSurviveASave) {
  const Metadata saved = typed_metadata();
  const SideFile side_file = make_side_file(saved);
  EXPECT_EQ(side_file.typed_paths.size(), 2u);

  Metadata loaded = decode_metadata(encode_metadata(saved));
  EXPECT_NE(*loaded.planner_data->find("a.-7.2.x"), *saved.planner_data->find("a.-7.2.x"));
  apply_side_file(decode_side_file(encode_side_file(side_file)), loaded);
  for (const auto& [key, path] : *saved.planner_data) EXPECT_EQ(*loaded.planner_data->find(key), path) << key;
}

TEST(SideFile, OfAnotherSaveChangesNothing) {
  SideFile side_file = make_side_file(typed_metadata());
  side_file.save_id = "save-2";
  Metadata loaded = decode_metadata(encode_metadata(typed_metadata()));
  const Path before = *loaded.planner_data->find("a.-7.2.x");
  apply_side_file(side_file, loaded);
  EXPECT_EQ(*loaded.planner_data->find("a.-7.2.x"), before);

  loaded.planner_data.reset();
  side_file.save_id = "save-1";
  apply_side_file(side_file, loaded);
  EXPECT_FALSE(loaded.planner_data);
}

TEST(SideFile, PathsThatDisagreeChangeNothing) {
  const Metadata plain = decode_metadata(encode_metadata(typed_metadata()));
  const Path path = *plain.planner_data->find("a.-7.2.x");
  const std::vector<Path> others = {
      {path[0], PathItem::dict_key(int_key(7)), path[2], path[3]},
      {path[0], PathItem::dict_key(int_key(-7)), PathItem::dict_key(int_key(2)), path[3]},
      {path[0], PathItem::dict_key(int_key(-7)), path[2]},
      {path[0], PathItem::dict_key(int_key(-7)), path[2], PathItem::dict_key("y")},
  };
  for (const Path& other : others) {
    SideFile side_file;
    side_file.save_id = "save-1";
    side_file.typed_paths.insert("a.-7.2.x", other);
    side_file.typed_paths.insert("ghost", other);
    Metadata metadata = plain;
    apply_side_file(side_file, metadata);
    EXPECT_EQ(*metadata.planner_data->find("a.-7.2.x"), path) << describe(other);
    EXPECT_FALSE(metadata.planner_data->contains("ghost"));
  }
}

TEST(SideFile, LoneSurrogatesAreLeftOut) {
  Metadata metadata = typed_metadata();
  metadata.planner_data->insert("\xED\xA0\x80.1", {PathItem::dict_key("\xED\xA0\x80"), PathItem::dict_key(int_key(1))});
  const SideFile side_file = make_side_file(metadata);
  EXPECT_EQ(side_file.typed_paths.size(), 2u);
  EXPECT_EQ(decode_side_file(encode_side_file(side_file)).typed_paths.size(), 2u);
}

/// Metadata with a tensor of 2500 bytes in two chunks.
Metadata summed_metadata() {
  Metadata metadata = typed_metadata();
  TensorStorageMetadata tensor;
  tensor.properties.dtype = c10::ScalarType::Byte;
  tensor.size = {50, 50};
  tensor.chunks = {make_box({0, 0}, {41, 50}), make_box({41, 0}, {9, 50})};
  metadata.state_dict_metadata.insert("\xC3\xBC\"", tensor);
  return metadata;
}

TEST(SideFile, BlockSumsSurviveASave) {
  SideFile side_file = make_side_file(summed_metadata());
  EXPECT_EQ(as_text(encode_side_file(side_file)).find("block_sums"), std::string::npos) << "there are none";
  side_file.block_sums.block_bytes = 1000;
  side_file.block_sums.items.insert({"\xC3\xBC\"", Sizes{0, 0}, {}}, {0, 0xFFFFFFFF, 0x01234567});
  EXPECT_EQ(find_side_file_fault(side_file, summed_metadata()), std::nullopt);
  const SideFile read = decode_side_file(encode_side_file(side_file));
  EXPECT_EQ(read.format_version, 1);
  EXPECT_EQ(read.block_sums.block_bytes, 1000);
  ASSERT_EQ(read.block_sums.items.size(), 1u);
  EXPECT_EQ(*read.block_sums.items.find({"\xC3\xBC\"", Sizes{0, 0}, {}}),
            (std::vector<std::uint32_t>{0, 0xFFFFFFFF, 0x01234567}));
  EXPECT_EQ(read.typed_paths.size(), 2u);

  side_file.block_sums.items.insert({"\xED\xA0\x80", Sizes{0}, {}}, {1, 2});
  EXPECT_EQ(decode_side_file(encode_side_file(side_file)).block_sums.items.size(), 1u) << "a lone surrogate";
}

TEST(SideFile, BlockSumsThatDoNotFitTheMetadataAreAFault) {
  const auto fault_of = [](MetadataIndex index, std::int64_t block_bytes, std::size_t count) {
    SideFile side_file = make_side_file(summed_metadata());
    side_file.block_sums.block_bytes = block_bytes;
    side_file.block_sums.items.insert(std::move(index), std::vector<std::uint32_t>(count, 1));
    return find_side_file_fault(side_file, summed_metadata()).value_or("");
  };
  const std::string key = "\xC3\xBC\"";
  EXPECT_EQ(fault_of({key, Sizes{0, 0}, {}}, 1000, 3), "");
  EXPECT_EQ(fault_of({key, Sizes{41, 0}, {}}, 150, 3), "");
  EXPECT_NE(fault_of({key, Sizes{0, 0}, {}}, 1000, 2).find("2 block sums"), std::string::npos);
  EXPECT_NE(fault_of({key, Sizes{41, 0}, {}}, 150, 4).find("another size"), std::string::npos);
  EXPECT_NE(fault_of({key, Sizes{1, 0}, {}}, 1000, 3).find("no such chunk"), std::string::npos);
  EXPECT_NE(fault_of({"ghost", Sizes{0, 0}, {}}, 1000, 3).find("ghost at [0, 0]"), std::string::npos);
}

TEST(SideFile, RefusalsOfBlockSums) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"([])", "no object"},
      {R"({"items": []})", "block_bytes"},
      {R"({"block_bytes": 0, "items": []})", "block_bytes"},
      {R"({"block_bytes": -1, "items": []})", "block_bytes"},
      {R"({"block_bytes": 1e6, "items": []})", "block_bytes"},
      {R"({"block_bytes": 67108865, "items": []})", "block_bytes"},
      {R"({"block_bytes": 18446744073709551615, "items": []})", "block_bytes"},
      {R"({"block_bytes": 1000})", "no list"},
      {R"({"block_bytes": 1000, "items": {}})", "no list"},
      {R"({"block_bytes": 1000, "items": [5]})", "no key, offsets and sums"},
      {R"({"block_bytes": 1000, "items": [["k", [0]]]})", "no key, offsets and sums"},
      {R"({"block_bytes": 1000, "items": [["k", [0], 7]]})", "no key, offsets and sums"},
      {R"({"block_bytes": 1000, "items": [["k", 0, "00000000"]]})", "'k'"},
      {R"({"block_bytes": 1000, "items": [["k", [-1], "00000000"]]})", "'k'"},
      {R"({"block_bytes": 1000, "items": [["k", [0.5], "00000000"]]})", "'k'"},
      {R"({"block_bytes": 1000, "items": [["k", [0], ""]]})", "'k'"},
      {R"({"block_bytes": 1000, "items": [["k", [0], "0000000"]]})", "'k'"},
      {R"({"block_bytes": 1000, "items": [["k", [0], "0000000G"]]})", "'k'"},
      {R"({"block_bytes": 1000, "items": [["k", [0], "00000000"], ["k", [0], "00000000"]]})", "twice"},
  };
  for (const auto& [sums, message] : cases) {
    const std::string text = R"({"format_version": 1, "save_id": "s", "block_sums": )" + sums + "}";
    expect_error(ErrorKind::kCorruptData, message, sums, [&text] { decode(text); });
  }
  std::string many = "0";
  for (int i = 0; i < 64; ++i) many += ", 0";
  expect_error(ErrorKind::kCorruptData, "64 offsets", "dimensions", [&] {
    decode(R"({"format_version": 1, "save_id": "s", "block_sums": {"block_bytes": 1, "items": [["k", [)" + many +
           R"(], "00000000"]]}})");
  });
}

TEST(SideFile, UnknownFieldsAreIgnored) {
  const SideFile side_file = decode(
      R"({"later": [{"x": [1, 2]}], "format_version": 1, "save_id": "s", "typed_paths": {"a.1": ["a", {"int_key": 1}]}})");
  EXPECT_EQ(side_file.save_id, "s");
  EXPECT_EQ(*side_file.typed_paths.find("a.1"), (Path{PathItem::dict_key("a"), PathItem::dict_key(int_key(1))}));
  EXPECT_TRUE(decode(R"({"format_version": 1, "save_id": ""})").typed_paths.empty());
}

TEST(SideFile, Refusals) {
  using enum ErrorKind;
  const std::string deep = std::string(100'000, '[') + std::string(100'000, ']');
  const std::vector<std::tuple<std::string, ErrorKind, std::string>> cases = {
      {"", kCorruptData, "no JSON"},
      {"{\"format_version\": 1,", kCorruptData, "no JSON"},
      {"\x80\x04N.", kCorruptData, "no JSON"},
      {"[]", kCorruptData, "no object"},
      {deep, kCorruptData, "deeper"},
      {R"({"save_id": "s"})", kCorruptData, "format_version"},
      {R"({"format_version": "1", "save_id": "s"})", kCorruptData, "format_version"},
      {R"({"format_version": 1.0, "save_id": "s"})", kCorruptData, "format_version"},
      {R"({"format_version": 0, "save_id": "s"})", kCorruptData, "format_version"},
      {R"({"format_version": 18446744073709551615, "save_id": "s"})", kCorruptData, "format_version"},
      {R"({"format_version": 2, "save_id": "s"})", kUnsupported, "format_version 2"},
      {R"({"format_version": 1})", kCorruptData, "save_id"},
      {R"({"format_version": 1, "save_id": 5})", kCorruptData, "save_id"},
      {R"({"format_version": 1, "save_id": "s", "typed_paths": []})", kCorruptData, "typed_paths"},
      {R"({"format_version": 1, "save_id": "s", "typed_paths": {"k": "k"}})", kCorruptData, "'k'"},
      {R"({"format_version": 1, "save_id": "s", "typed_paths": {"k": []}})", kCorruptData, "'k'"},
      {R"({"format_version": 1, "save_id": "s", "typed_paths": {"k": [-1]}})", kCorruptData, "'k'"},
      {R"({"format_version": 1, "save_id": "s", "typed_paths": {"k": [16000001]}})", kCorruptData, "'k'"},
      {R"({"format_version": 1, "save_id": "s", "typed_paths": {"k": [1.5]}})", kCorruptData, "'k'"},
      {R"({"format_version": 1, "save_id": "s", "typed_paths": {"k": [null]}})", kCorruptData, "'k'"},
      {R"({"format_version": 1, "save_id": "s", "typed_paths": {"k": [{}]}})", kCorruptData, "'k'"},
      {R"({"format_version": 1, "save_id": "s", "typed_paths": {"k": [{"int_key": "1"}]}})", kCorruptData, "'k'"},
      {R"({"format_version": 1, "save_id": "s", "typed_paths": {"k": [{"int_key": 9223372036854775808}]}})",
       kCorruptData, "'k'"},
  };
  for (const auto& [text, kind, message] : cases) {
    expect_error(kind, message, text.substr(0, 100), [&text] { decode(text); });
  }
  ParseLimits limits;
  limits.max_header_bytes = 10;
  expect_error(kCorruptData, "more than 10", "size",
               [&] { decode(R"({"format_version": 1, "save_id": "s"})", limits); });
}

TEST(SideFile, EveryTruncationIsRefused) {
  SideFile side_file = make_side_file(typed_metadata());
  side_file.block_sums.block_bytes = 7;
  side_file.block_sums.items.insert({"w", Sizes{0}, {}}, {1, 2, 3});
  const Bytes bytes = encode_side_file(side_file);
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_THROW(decode_side_file(ByteSpan(bytes).first(size)), Error) << size;
  }
}

}  // namespace
}  // namespace dcp

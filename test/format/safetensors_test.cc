#include "torch_dcp/format/safetensors.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "test/support/expect_error.h"
#include "torch_dcp/format/safetensors_index.h"
#include "torch_dcp/io/span_file.h"
#include "torch_dcp/tensor/dtype.h"

namespace dcp::test {
namespace {

const std::string kFixtures = "test/golden/fixtures/";

std::string read_text(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in) << path;
  return {std::istreambuf_iterator<char>(in), {}};
}

/// A file of this header and so many bytes of data.
std::string file_of(const std::string& json, std::size_t data_bytes) {
  std::string file;
  for (int i = 0; i < 8; ++i) file += static_cast<char>(json.size() >> (8 * i));
  return file + json + std::string(data_bytes, '\x11');
}

SafetensorsHeader read(const std::string& file, const ParseLimits& limits = {}) {
  return read_safetensors_header(SpanFile(as_bytes(file)), limits);
}

void expect_refused(const std::string& json, std::size_t data_bytes, const std::string& text,
                    ErrorKind kind = ErrorKind::kCorruptData) {
  SCOPED_TRACE(json.substr(0, 200));
  expect_error(kind, text, [&] { read(file_of(json, data_bytes)); });
}

/// A header of one float32 tensor `w` of [4, 3] with the given offsets text, or other fields.
std::string with_w(const std::string& fields) { return R"({"w": {)" + fields + "}}"; }

std::string sharded(const std::string& info) {
  return nlohmann::json{{"__metadata__", {{"DCP_SHARDING_INFO", info}}},
                        {"w", {{"dtype", "F32"}, {"shape", {4, 3}}, {"data_offsets", {0, 48}}}}}
      .dump();
}

TEST(SafetensorsHeader, ReadsWhatPyTorchWrote) {
  const std::string file = read_text(kFixtures + "hf_single/ckpt/model-00001-of-00001.safetensors");
  const SafetensorsHeader header = read(file);
  ASSERT_EQ(header.tensors.size(), 11u);
  const SafetensorsTensor& first = header.tensors.front();
  EXPECT_EQ(first.name, "ints");
  EXPECT_EQ(first.dtype, ScalarType::Long);
  EXPECT_EQ(first.sizes, Sizes{3});
  EXPECT_EQ(first.saved_offsets, Sizes{0});
  EXPECT_EQ(first.byte_count, 24);
  EXPECT_EQ(header.metadata.size(), 2u);
  EXPECT_EQ(*header.metadata.find("format"), "pt");
  EXPECT_EQ(header.data_position % 8, 0);
}

/// The same header again, but for the order of the metadata, which varies from run to run of PyTorch.
TEST(SafetensorsHeader, WritesTheBytesOfThePackage) {
  for (const char* path :
       {"hf_single/ckpt/model-00001-of-00001.safetensors", "hf_mapped/ckpt/model-00002-of-00003.safetensors",
        "hf_sharded_4ranks/ckpt/shard-00002-model-00001-of-00001.safetensors",
        "hf_sharded_4ranks/ckpt/shard-00004-model-00001-of-00001.safetensors"}) {
    SCOPED_TRACE(path);
    const std::string file = read_text(kFixtures + path);
    const SafetensorsHeader read_header = read(file);
    std::vector<SafetensorsTensor> tensors = read_header.tensors;
    std::reverse(tensors.begin(), tensors.end());
    for (SafetensorsTensor& tensor : tensors) tensor.position = tensor.byte_count = -1;
    SafetensorsHeader header = lay_out_safetensors(std::move(tensors));
    header.metadata.insert("format", "pt");
    const Bytes bytes = encode_safetensors_header(header);
    ASSERT_EQ(static_cast<std::int64_t>(bytes.size()), read_header.data_position);
    const std::string ours(as_text(bytes));
    const std::size_t tensors_at = file.find("\"},\"");
    EXPECT_EQ(ours.substr(tensors_at), file.substr(tensors_at, bytes.size() - tensors_at));
    const auto metadata_of = [](const std::string& text, std::size_t size) {
      auto json = nlohmann::json::parse(text.substr(8, size - 8))["__metadata__"];
      // A JSON text within; its tensors come in the plan's order.
      json["DCP_SHARDING_INFO"] = nlohmann::json::parse(json["DCP_SHARDING_INFO"].get<std::string>());
      return json;
    };
    EXPECT_EQ(metadata_of(ours, bytes.size()), metadata_of(file, bytes.size()));
  }
}

TEST(SafetensorsHeader, ReadsItsOwn) {
  std::vector<SafetensorsTensor> tensors;
  tensors.push_back({"b", ScalarType::BFloat16, {3, 2}, {}, 0, 0});
  tensors.push_back({"a\"\\\n\x01 \xC3\xA9", ScalarType::BFloat16, {}, {}, 0, 0});
  tensors.push_back({"none", ScalarType::ComplexFloat, {0, 5}, {}, 0, 0});
  tensors.push_back({"", ScalarType::Bool, {1}, {}, 0, 0});
  const SafetensorsHeader laid = lay_out_safetensors(tensors);
  const Bytes head = encode_safetensors_header(laid);
  const SafetensorsHeader header = read(std::string(as_text(head)) + std::string(15, '\0'));
  ASSERT_EQ(header.tensors.size(), 4u);
  const std::vector<std::string> names = {"none", "a\"\\\n\x01 \xC3\xA9", "b", ""};
  const std::vector<std::int64_t> positions = {0, 0, 2, 14};
  for (std::size_t i = 0; i < names.size(); ++i) {
    EXPECT_EQ(header.tensors[i].name, names[i]);
    EXPECT_EQ(header.tensors[i].position, positions[i]);
    EXPECT_EQ(header.tensors[i].dtype, laid.tensors[i].dtype);
    EXPECT_EQ(header.tensors[i].sizes, laid.tensors[i].sizes);
    EXPECT_FALSE(header.tensors[i].saved_offsets);
  }
  EXPECT_TRUE(read(std::string(as_text(encode_safetensors_header({})))).tensors.empty());
}

TEST(SafetensorsHeader, GlobalSizesBesideTheOffsets) {
  std::vector<SafetensorsTensor> tensors;
  tensors.push_back({"a", ScalarType::Char, {2, 3}, Sizes{4, 0}, 0, 0, Sizes{7, 3}});
  tensors.push_back({"b", ScalarType::Char, {}, Sizes{}, 0, 0, Sizes{}});
  tensors.push_back({"c", ScalarType::Char, {1}, Sizes{8}, 0, 0});
  const SafetensorsHeader laid = lay_out_safetensors(tensors);
  const std::string head(as_text(encode_safetensors_header(laid)));
  // As PyTorch's readers want it, but for the field more.
  const auto json = nlohmann::json::parse(head.substr(8));
  EXPECT_EQ(nlohmann::json::parse(json["__metadata__"]["DCP_SHARDING_INFO"].get<std::string>()),
            nlohmann::json::parse(R"({"a": {"saved_offsets": [4, 0], "global_size": [7, 3]},
                                      "b": {"saved_offsets": [], "global_size": []}, "c": {"saved_offsets": [8]}})"));
  const SafetensorsHeader header = read(head + std::string(8, '\0'));
  ASSERT_EQ(header.tensors.size(), 3u);
  EXPECT_EQ(header.tensors[0].saved_offsets, (Sizes{4, 0}));
  EXPECT_EQ(header.tensors[0].global_size, (Sizes{7, 3}));
  EXPECT_EQ(header.tensors[1].global_size, Sizes());
  EXPECT_FALSE(header.tensors[2].global_size);

  tensors[0].global_size = Sizes{5, 3};
  expect_error(ErrorKind::kInvalidArgument, "key 'a': its part [4, 0] + [2, 3] does not lie in its global size [5, 3]",
               [&] { lay_out_safetensors(tensors); });
  tensors[0].global_size = Sizes{7};
  expect_error(ErrorKind::kInvalidArgument, "key 'a': its part", [&] { lay_out_safetensors(tensors); });
  expect_error(ErrorKind::kInvalidArgument, "a global size and no offsets",
               [] { lay_out_safetensors({{"w", ScalarType::Char, {1}, {}, 0, 0, Sizes{1}}}); });
}

TEST(SafetensorsHeader, TakesWhatThePackageTakes) {
  // Unknown fields, no padding, any order of names, several empty tensors at one place.
  const SafetensorsHeader header = read(file_of(
      R"({"c":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"shape":[0],"x":{"y":[1,{"z":null}]},"data_offsets":[1,1],)"
      R"("dtype":"U8"},"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0],"w":1.5,"v":"t","u":true}}  )",
      1));
  ASSERT_EQ(header.tensors.size(), 3u);
  EXPECT_EQ(header.tensors[0].name, "a");
  EXPECT_EQ(header.tensors[2].name, "b");
}

TEST(SafetensorsDtypes, BothWays) {
  const std::vector<std::pair<const char*, const char*>> rows = {{"F64", "float64"},
                                                                 {"F32", "float32"},
                                                                 {"F16", "float16"},
                                                                 {"BF16", "bfloat16"},
                                                                 {"I64", "int64"},
                                                                 {"I32", "int32"},
                                                                 {"I16", "int16"},
                                                                 {"I8", "int8"},
                                                                 {"U64", "uint64"},
                                                                 {"U32", "uint32"},
                                                                 {"U16", "uint16"},
                                                                 {"U8", "uint8"},
                                                                 {"BOOL", "bool"},
                                                                 {"C64", "complex64"},
                                                                 {"F8_E4M3", "float8_e4m3fn"},
                                                                 {"F8_E5M2", "float8_e5m2"},
                                                                 {"F8_E4M3FNUZ", "float8_e4m3fnuz"},
                                                                 {"F8_E5M2FNUZ", "float8_e5m2fnuz"}};
  for (const auto& [name, dtype] : rows) {
    EXPECT_EQ(dtype_from_safetensors(name), dtype_from_name(dtype)) << name;
    EXPECT_EQ(safetensors_dtype(dtype_from_name(dtype).value()), name);
  }
  for (const ScalarType dtype : {ScalarType::ComplexDouble, ScalarType::ComplexHalf, ScalarType::QInt8}) {
    EXPECT_FALSE(safetensors_dtype(dtype));
    expect_error(ErrorKind::kUnsupported, "key 'bad': safetensors have no dtype " + dtype_name(dtype),
                 [&] { lay_out_safetensors({{"bad", dtype, {1}, {}, 0, 0}}); });
  }
  // Read, where this LibTorch has it, but not written: Python's package cannot open it.
  EXPECT_EQ(dtype_from_safetensors("F8_E8M0"), dtype_from_name("float8_e8m0fnu"));
  if (const auto e8m0 = dtype_from_name("float8_e8m0fnu")) {
    EXPECT_FALSE(safetensors_dtype(*e8m0));
  }
}

TEST(SafetensorsHeader, EveryFaultOfATensorIsNamed) {
  std::vector<SafetensorsTensor> tensors;
  tensors.push_back({"z", ScalarType::ComplexDouble, {1}, {}, 0, 0});
  tensors.push_back({"__metadata__", ScalarType::Float, {1}, {}, 0, 0});
  tensors.push_back({"\xFF", ScalarType::Float, {1}, {}, 0, 0});
  tensors.push_back({"half", ScalarType::Float, {1}, Sizes{0}, 0, 0});
  for (const char* text : {"4 faults", "complex128", "taken by the form", "no UTF-8", "only some tensors"}) {
    expect_error(ErrorKind::kUnsupported, text, [&] { lay_out_safetensors(tensors); });
  }
  expect_error(ErrorKind::kKey, "'w' is twice", [] {
    lay_out_safetensors({{"w", ScalarType::Float, {1}, {}, 0, 0}, {"w", ScalarType::Float, {1}, {}, 0, 0}});
  });
  const std::int64_t large = std::int64_t{1} << 61;
  expect_error(ErrorKind::kInvalidArgument, "'w': bytes of sizes",
               [&] { lay_out_safetensors({{"w", ScalarType::Float, {large}, {}, 0, 0}}); });
  expect_error(ErrorKind::kInvalidArgument, "overflow", [&] {
    lay_out_safetensors({{"v", ScalarType::Char, {large, 3}, {}, 0, 0}, {"w", ScalarType::Char, {large}, {}, 0, 0}});
  });
}

TEST(SafetensorsRefusals, LengthOfTheHeader) {
  expect_error(ErrorKind::kCorruptData, "5 bytes", [] { read("12345"); });
  std::string huge = file_of("{}", 0);
  for (int i = 0; i < 7; ++i) huge[i] = '\xFF';
  huge[7] = '\x7F';
  expect_error(ErrorKind::kCorruptData, "a header of 9223372036854775807 bytes", [&] { read(huge); });
  std::string long_header = file_of("{}", 0);
  long_header[0] = 6;
  expect_error(ErrorKind::kCorruptData, "the header ends at byte 14 of a file of 10 bytes", [&] { read(long_header); });
  ParseLimits limits;
  limits.max_header_bytes = 1;
  expect_error(ErrorKind::kCorruptData, "the limit is 1", [&] { read(file_of("{}", 0), limits); });
}

TEST(SafetensorsRefusals, Json) {
  expect_refused("{]", 0, "no JSON from byte 2");
  expect_refused("", 0, "no JSON");
  expect_refused("{}x", 0, "no JSON");
  expect_refused("{\"\xFF\": 1}", 0, "no JSON");
  expect_refused("[1, 2]", 0, "the header is a list");
  expect_refused("3", 0, "the header is a number");
  expect_refused(R"("w")", 0, "the header is a text");
  expect_refused(std::string(50000, '['), 0, "the header is a list");
  expect_refused(R"({"w": {"dtype": )" + std::string(50000, '['), 0, "nested deeper than 16");
  expect_refused(R"({"w": {"x": )" + std::string(50000, '['), 0, "nested deeper than 16");
  expect_refused(R"({"w": [1]})", 0, "'w' is a list");
  expect_refused(R"({"w": null})", 0, "'w' is null");
  expect_refused(R"({"__metadata__": {"a": 1}})", 0, "the metadata's 'a' is a number");
  expect_refused(R"({"__metadata__": {"a": {}}})", 0, "the metadata's 'a' is no text");
  expect_refused(R"({"__metadata__": {"a": "", "a": ""}})", 0, "the metadata has 'a' twice");
}

TEST(SafetensorsRefusals, FieldsOfATensor) {
  const std::string shape = R"("shape": [4, 3], )";
  const std::string dtype = R"("dtype": "F32", )";
  const std::string offsets = R"("data_offsets": [0, 48])";
  EXPECT_EQ(read(file_of(with_w(dtype + shape + offsets), 48)).tensors.size(), 1u);
  expect_refused(with_w(shape + offsets), 48, "tensor 'w' lacks");
  expect_refused(with_w(dtype + offsets), 48, "tensor 'w' lacks");
  expect_refused(with_w(dtype + R"("shape": [4, 3])"), 48, "tensor 'w' lacks");
  expect_refused(with_w(dtype + dtype + shape + offsets), 48, "tensor 'w' has dtype twice");
  expect_refused(with_w(dtype + shape + shape + offsets), 48, "tensor 'w' has shape twice");
  expect_refused(with_w(R"("dtype": "F7", )" + shape + offsets), 48, "tensor 'w': unknown dtype 'F7'");
  expect_refused(with_w(R"("dtype": "F4", )" + shape + offsets), 48, "this LibTorch has no dtype F4",
                 ErrorKind::kUnsupported);
  expect_refused(with_w(R"("dtype": 7, )" + shape + offsets), 48, "tensor 'w': dtype has a number");
  expect_refused(with_w(dtype + R"("shape": [-4, -3], )" + offsets), 48, "tensor 'w': shape has a negative number, -4");
  expect_refused(with_w(dtype + R"("shape": [4.0, 3], )" + offsets), 48, "tensor 'w': shape has a fraction");
  expect_refused(with_w(dtype + R"("shape": [[4, 3]], )" + offsets), 48, "tensor 'w': shape is no list");
  expect_refused(with_w(dtype + R"("shape": {"a": 4}, )" + offsets), 48, "tensor 'w': shape is no list");
  expect_refused(with_w(dtype + R"("shape": 4, )" + offsets), 48, "tensor 'w': shape has a number");
  expect_refused(with_w(dtype + R"("shape": [18446744073709551615], )" + offsets), 48, "beyond 64 bits");
  expect_refused(with_w(dtype + R"("shape": [99999999999999999999999], )" + offsets), 48, "beyond 64 bits");
  expect_refused(with_w(dtype + R"("shape": [4294967296, 4294967296, 4294967296], )" + offsets), 48,
                 "do not fit 64 bits");
  expect_refused(with_w(dtype + R"("shape": [4294967296, 4294967296, 0], )" + R"("data_offsets": [0, 0])"), 0,
                 "do not fit 64 bits");
  expect_refused(with_w(dtype + R"("shape": [5, 3], )" + offsets), 48, "takes 60 bytes, its data_offsets have 48");
  std::string many = "1";
  for (int i = 0; i < 64; ++i) many += ",1";
  expect_refused(with_w(dtype + R"("shape": [)" + many + "], " + offsets), 48, "more than 64 numbers");
  expect_refused(R"({"w":{"dtype":"F32","shape":[6],"data_offsets":[0,24]},"w":{"dtype":"F32","shape":[6],)"
                 R"("data_offsets":[24,48]}})",
                 48, "tensor 'w' is there twice");
}

TEST(SafetensorsRefusals, PlacesOfTensors) {
  const std::string w = R"("dtype": "F32", "shape": [4, 3], "data_offsets": )";
  expect_refused(with_w(w + "[48, 0]"), 48, "tensor 'w': data_offsets [48, 0] are no range");
  expect_refused(with_w(w + "[-48, 0]"), 48, "tensor 'w': data_offsets has a negative number");
  expect_refused(with_w(w + "[48]"), 48, "are no range");
  expect_refused(with_w(w + "[0, 48, 48]"), 48, "more than 2 numbers");
  expect_refused(with_w(w + "[0, 48]"), 40, "tensor 'w' ends at byte 48");
  expect_refused(with_w(w + "[8, 56]"), 48, "bytes 0 to 8 of the data belong to no tensor; behind them lies 'w'");
  expect_refused(with_w(w + "[0, 48]"), 49, "its tensors end at 48 with 'w'");
  expect_refused("{}", 1, "1 bytes of data");
  const std::string v = R"("v": {"dtype": "F32", "shape": [6], "data_offsets": [24, 48]})";
  expect_refused(R"({"w": {)" + w + "[0, 48]}, " + v + "}", 48,
                 "tensor 'v' begins at byte 24 of the data, inside of tensor 'w'");
  expect_refused(with_w(R"("dtype": "U8", "shape": [9223372036854775807], "data_offsets": [0, 9223372036854775807])"),
                 48, "tensor 'w' ends at byte 9223372036854775807");
}

TEST(SafetensorsRefusals, ShardingInfo) {
  EXPECT_EQ(read(file_of(sharded(R"({"w": {"saved_offsets": [2, 0], "more": [{}]}, "other": [1]})"), 48))
                .tensors[0]
                .saved_offsets,
            (Sizes{2, 0}));
  expect_refused(sharded("{}"), 48, "DCP_SHARDING_INFO has no saved_offsets of tensor 'w'");
  expect_refused(sharded(R"({"w": {}})"), 48, "no saved_offsets of tensor 'w'");
  expect_refused(sharded("{{"), 48, "in DCP_SHARDING_INFO");
  expect_refused(sharded(std::string(50000, '[')), 48, "DCP_SHARDING_INFO has a list");
  expect_refused(sharded("7"), 48, "DCP_SHARDING_INFO has a number in a wrong place");
  expect_refused(sharded(R"({"w": 7})"), 48, "DCP_SHARDING_INFO of tensor 'w' has a number in a wrong place");
  expect_refused(sharded(R"({"w": {"saved_offsets": 7}})"), 48, "of tensor 'w' has a number in a wrong place");
  expect_refused(sharded(R"({"w": {"saved_offsets": [0]}})"), 48, "tensor 'w': 1 saved_offsets for the 2 dimensions");
  expect_refused(sharded(R"({"w": {"saved_offsets": [[0, 0]]}})"), 48,
                 "tensor 'w': its field saved_offsets is no list");
  expect_refused(sharded(R"({"w": {"saved_offsets": [-4, 0]}})"), 48, "tensor 'w': saved_offsets has a negative");
  expect_refused(sharded(R"({"w": {"saved_offsets": [9223372036854775807, 0]}})"), 48, "does not fit 64 bits");
  expect_refused(sharded(R"({"w": {"saved_offsets": [9223372036854775808, 0]}})"), 48, "beyond 64 bits");
  expect_refused(sharded(R"({"w": {"saved_offsets": [0.5, 0]}})"), 48, "a fraction");
  expect_refused(sharded(R"({"w": {"saved_offsets": [0, 0]}, "w": {"saved_offsets": [0, 0]}})"), 48, "'w' is twice");
  expect_refused(sharded(R"({"w": {"saved_offsets": [0, 0], "saved_offsets": [0, 0]}})"), 48,
                 "'w' has saved_offsets twice");
}

TEST(SafetensorsRefusals, GlobalSizes) {
  const auto with_size = [](const std::string& size) {
    return sharded(R"({"w": {"global_size": )" + size + R"(, "saved_offsets": [2, 0]}})");
  };
  EXPECT_EQ(read(file_of(with_size("[6, 3]"), 48)).tensors[0].global_size, (Sizes{6, 3}));
  expect_refused(with_size("[5, 3]"), 48,
                 "tensor 'w': its part [2, 0] + [4, 3] does not lie in its global_size [5, 3]");
  expect_refused(with_size("[6, 2]"), 48, "does not lie in its global_size [6, 2]");
  expect_refused(with_size("[6]"), 48, "tensor 'w': 1 global_size for the 2 dimensions");
  expect_refused(with_size("[]"), 48, "tensor 'w': 0 global_size for the 2 dimensions");
  expect_refused(with_size("[6, 3, 1]"), 48, "tensor 'w': 3 global_size for the 2 dimensions");
  expect_refused(with_size("6"), 48, "of tensor 'w' has a number in a wrong place");
  expect_refused(with_size("null"), 48, "of tensor 'w' has null in a wrong place");
  expect_refused(with_size("{}"), 48, "tensor 'w': its field global_size is no list");
  expect_refused(with_size("[[6, 3]]"), 48, "tensor 'w': its field global_size is no list");
  expect_refused(with_size("[6, -3]"), 48, "tensor 'w': global_size has a negative number");
  expect_refused(with_size("[6, 9223372036854775808]"), 48, "beyond 64 bits");
  expect_refused(with_size(R"([6, 3], "global_size": [6, 3])"), 48, "'w' has global_size twice");
  expect_refused(sharded(R"({"w": {"global_size": [6, 3]}})"), 48, "no saved_offsets of tensor 'w'");
  // A size without bytes allocates nothing; that no part holds the rest is the folder's to say.
  EXPECT_EQ(read(file_of(with_size("[9223372036854775807, 9223372036854775807]"), 48)).tensors[0].global_size,
            (Sizes{INT64_MAX, INT64_MAX}));
}

TEST(SafetensorsIndex, ReadsAndWritesPyTorchsBytes) {
  for (const char* name : {"hf_single", "hf_mapped", "hf_consolidated_2ranks"}) {
    const std::string text = read_text(kFixtures + name + "/ckpt/model.safetensors.index.json");
    SafetensorsIndex index = decode_safetensors_index(as_bytes(text));
    EXPECT_FALSE(index.weight_map.empty());
    index.total_size = nlohmann::json::parse(text)["metadata"]["total_size"];
    EXPECT_EQ(as_text(encode_safetensors_index(index)), text);
  }
  EXPECT_EQ(as_text(encode_safetensors_index({})),
            "{\n  \"metadata\": {\n    \"total_size\": 0\n  },\n  \"weight_map\": {}\n}");
}

TEST(SafetensorsIndex, IgnoresWhatItDoesNotKnow) {
  const auto index = decode_safetensors_index(as_bytes(
      R"({"metadata": {"total_size": 1.5, "x": [{"y": null}]}, "more": [], "weight_map": {"w": "a.safetensors"}})"));
  ASSERT_EQ(index.weight_map.size(), 1u);
  EXPECT_EQ(*index.weight_map.find("w"), "a.safetensors");
}

TEST(SafetensorsIndex, Refusals) {
  const auto refuse = [](const std::string& json, const std::string& text) {
    SCOPED_TRACE(json);
    expect_error(ErrorKind::kCorruptData, text, [&] { decode_safetensors_index(as_bytes(json)); });
  };
  refuse("{", "no JSON");
  refuse("[]", "a list");
  refuse("7", "it is a number");
  refuse("{}", "no weight_map");
  refuse(R"({"weight_map": [1]})", "weight_map is a list");
  refuse(R"({"weight_map": "w"})", "weight_map is a text");
  refuse(R"({"weight_map": {"w": 7}})", "w is a number");
  refuse(R"({"weight_map": {"w": {}}})", "w is a list or an object");
  refuse(R"({"weight_map": {}, "weight_map": {}})", "weight_map is there twice");
  refuse(R"({"weight_map": {"w": "a.safetensors", "w": "b.safetensors"}})", "'w' is there twice");
  for (const char* file : {"../outside.safetensors", "/a.safetensors", "b/a.safetensors", "b\\\\a.safetensors",
                           ".safetensors", "", "a.bin", "..", "a\\u0000.safetensors"}) {
    refuse(R"({"weight_map": {"w": ")" + std::string(file) + R"(", "v": "a.safetensors"}})", "key 'w': its file");
  }
  ParseLimits limits;
  limits.max_header_bytes = 3;
  expect_error(ErrorKind::kCorruptData, "the limit is 3", [&] { decode_safetensors_index(as_bytes("{   }"), limits); });
}

}  // namespace
}  // namespace dcp::test

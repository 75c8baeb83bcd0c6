#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "test/format/golden_support.h"
#include "torch_dcp/format/object_item.h"
#include "torch_dcp/format/object_json.h"
#include "torch_dcp/format/tensor_pickle_internal.h"
#include "torch_dcp/format/zip_internal.h"
#include "torch_dcp/pickle/writer.h"
#include "torch_dcp/state_dict/equal.h"

namespace dcp {
namespace {

using Json = nlohmann::ordered_json;
using std::string_literals::operator""s;  // for opcodes with NULs
using test::expect_error;

at::Tensor make_tensor(at::ScalarType dtype, std::vector<std::int64_t> sizes, unsigned seed = 1) {
  at::Tensor tensor = at::empty(sizes, at::TensorOptions(dtype));
  std::mt19937 random(seed);
  auto* bytes = static_cast<std::uint8_t*>(tensor.data_ptr());
  const auto largest = dtype == at::ScalarType::Bool ? 1 : 255;
  for (std::size_t i = 0; i < tensor.nbytes(); ++i) bytes[i] = static_cast<std::uint8_t>(random() % (largest + 1u));
  return tensor;
}

// ---- what Python wrote ------------------------------------------------------------------------------

struct GoldenItem {
  std::string label;
  std::string key;
  Bytes item;
  Json value;
};

/// All object items of all golden checkpoints that no transform has changed.
std::vector<GoldenItem> golden_items() {
  std::vector<GoldenItem> items;
  for (const std::string& name : test::golden_checkpoints()) {
    std::map<std::string, Bytes> files;
    const Json expected = test::read_expected(name);
    for (const auto& [key, entry] : expected["entries"].items()) {
      if (entry["kind"] != "bytes" || !entry.contains("stored")) continue;
      const Json& place = entry["stored"][0];
      if (place.contains("transform_descriptors")) continue;
      const std::string file = place["file"];
      if (!files.contains(file)) files[file] = test::read_golden(name + "/ckpt/" + file);
      const auto begin = files[file].begin() + place["offset"].get<std::ptrdiff_t>();
      items.push_back(
          {name + " " + key, key, Bytes(begin, begin + place["length"].get<std::ptrdiff_t>()), entry["value"]});
    }
  }
  return items;
}

/// The item with zeros in place of the digits of its serialization id, of that member's CRCs and of its own.
Bytes without_serialization_id(Bytes item) {
  const std::string_view kName = "archive/.data/serialization_id";
  std::string text(as_text(item));
  const std::size_t header = text.find(kName) - 30;
  const auto number16 = [&text](std::size_t at) {
    return static_cast<std::size_t>(static_cast<std::uint8_t>(text[at]) | static_cast<std::uint8_t>(text[at + 1]) << 8);
  };
  const std::size_t data = header + 30 + number16(header + 26) + number16(header + 28);
  text.replace(data, 40, 40, '0');
  text.replace(data + 44, 4, 4, '\0');  // the CRC in the data descriptor
  const std::size_t record = text.rfind(kName) - 46;
  text.replace(record + 16, 4, 4, '\0');
  const ByteSpan bytes = as_bytes(text);
  return {bytes.begin(), bytes.end()};
}

/// What becomes of the description when an object was read into a Value and written again: an OrderedDict is a dict.
Json with_plain_dicts(Json value) {
  if (value.is_array()) {
    for (Json& element : value) element = with_plain_dicts(element);
  } else if (value.is_object()) {
    if (value.value("t", "") == "ordereddict") value["t"] = "dict";
    if (value.contains("v")) value["v"] = with_plain_dicts(value["v"]);
  }
  return value;
}

TEST(ObjectGolden, JsonIsWhatPythonSays) {
  const auto items = golden_items();
  ASSERT_GT(items.size(), 300u);
  std::set<std::string> types;
  for (const GoldenItem& golden : items) {
    const Json described = object_item_to_json(golden.item);
    EXPECT_EQ(described, golden.value) << golden.label;
    EXPECT_EQ(described.dump(-1, ' ', true), golden.value.dump(-1, ' ', true)) << golden.label;
    types.insert(golden.value["t"]);
  }
  EXPECT_GE(types.size(), 15u);
}

TEST(ObjectGolden, ValuesRoundTrip) {
  for (const GoldenItem& golden : golden_items()) {
    const Value value = decode_object_item(golden.item);
    const Bytes again = encode_object_item(value);
    if (value.kind() == ValueKind::kOpaque) {
      EXPECT_EQ(again, golden.item) << golden.label;
    } else {
      EXPECT_EQ(object_item_to_json(again), with_plain_dicts(golden.value)) << golden.label;
      EXPECT_TRUE(bit_equal(value, decode_object_item(again))) << golden.label;
    }
  }
}

TEST(ObjectGolden, BytesArePythons) {
  const std::set<std::string> keys = {"int",
                                      "neg",
                                      "big",
                                      "zero",
                                      "i255",
                                      "i256",
                                      "i65536",
                                      "float",
                                      "inf",
                                      "nan",
                                      "minus_zero",
                                      "true",
                                      "false",
                                      "none",
                                      "str",
                                      "empty_str",
                                      "long_str",
                                      "bytes",
                                      "empty_bytes",
                                      "tuple0",
                                      "tuple1",
                                      "tuple2",
                                      "tuple3",
                                      "tuple4",
                                      "list",
                                      "empty_list",
                                      "tuple_of_tensors",
                                      "list_of_tensors"};
  std::size_t compared = 0;
  for (const GoldenItem& golden : golden_items()) {
    if (!golden.label.starts_with("objects") || !keys.contains(golden.key)) continue;
    const Bytes again = encode_object_item(decode_object_item(golden.item));
    EXPECT_EQ(without_serialization_id(again), without_serialization_id(golden.item)) << golden.label;
    ++compared;
  }
  EXPECT_GE(compared, keys.size());
  EXPECT_EQ(encode_object_item(Value(7)).size(), 1261u);
}

TEST(ObjectGolden, OpaqueTypes) {
  const std::map<std::string, std::string> types = {
      {"set", "set"},  {"size", "torch.Size"}, {"dtype", "torch.dtype"},  {"device", "torch.device"},
      {"huge", "int"}, {"complex", "complex"}, {"bytearray", "bytearray"}};
  std::size_t found = 0;
  for (const GoldenItem& golden : golden_items()) {
    const auto type = types.find(golden.key);
    if (!golden.label.starts_with("objects ") || type == types.end()) continue;
    const Value value = decode_object_item(golden.item);
    ASSERT_EQ(value.kind(), ValueKind::kOpaque) << golden.label;
    EXPECT_EQ(value.as_opaque().type_name, type->second);
    EXPECT_EQ(*value.as_opaque().item, golden.item);
    ++found;
  }
  EXPECT_EQ(found, types.size());
}

// ---- round trips --------------------------------------------------------------------------------------

class RandomValue {
 public:
  explicit RandomValue(unsigned seed) : random_(seed) {}

  Value make(int depth) {
    switch (number(0, depth > 0 ? 9 : 6)) {
      case 0:
        return None();
      case 1:
        return number(0, 1) == 1;
      case 2:
        return static_cast<std::int64_t>(std::uniform_int_distribution<std::uint64_t>()(random_)) >> number(0, 63);
      case 3:
        return std::normal_distribution<double>()(random_) * (number(0, 9) == 0 ? 1e300 * 1e300 : 1);
      case 4:
        return text();
      case 5:
        return bytes();
      case 6:
        return tensor();
      case 7:
        return sequence<List>(depth);
      case 8:
        return sequence<Tuple>(depth);
      default:
        return dict(depth);
    }
  }

 private:
  std::size_t number(std::size_t low, std::size_t high) {
    return std::uniform_int_distribution<std::size_t>(low, high)(random_);
  }
  std::string text() {
    std::string text;
    for (std::size_t i = number(0, 5); i > 0; --i) text += number(0, 1) == 0 ? "ab" : "\xE2\x98\x83";
    return text;
  }
  Bytes bytes() {
    Bytes bytes(number(0, 300));
    for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random_());
    return bytes;
  }
  at::Tensor tensor() {
    static const std::vector<at::ScalarType> kDtypes = {at::kFloat,
                                                        at::kBool,
                                                        at::kLong,
                                                        at::kBFloat16,
                                                        at::kComplexFloat,
                                                        at::ScalarType::Float8_e4m3fn,
                                                        at::ScalarType::UInt16};
    std::vector<std::int64_t> sizes;
    for (std::size_t d = number(0, 4); d > 0; --d) sizes.push_back(static_cast<std::int64_t>(number(0, 4)));
    return make_tensor(kDtypes[number(0, kDtypes.size() - 1)], sizes, static_cast<unsigned>(random_()));
  }
  template <typename Sequence>
  Value sequence(int depth) {
    Sequence values;
    for (std::size_t i = number(0, 5); i > 0; --i) values.push_back(make(depth - 1));
    return values;
  }
  Value dict(int depth) {
    Dict values;
    for (std::size_t i = number(0, 5); i > 0; --i) {
      const Key key = number(0, 1) == 0 ? Key(text()) : Key(static_cast<std::int64_t>(number(0, 70'000)) - 3);
      values.insert_or_assign(key, make(depth - 1));
    }
    return values;
  }

  std::mt19937 random_;
};

TEST(ObjectRoundTrip, RandomValues) {
  for (unsigned seed = 0; seed < 400; ++seed) {
    const Value value = RandomValue(seed).make(4);
    const Bytes item = encode_object_item(value);
    const Value decoded = decode_object_item(item);
    EXPECT_EQ(first_difference(value, decoded), "") << seed;
    EXPECT_EQ(encode_object_item(decoded), item) << seed;
    EXPECT_FALSE(object_item_to_json(item).is_null()) << seed;
  }
}

TEST(ObjectRoundTrip, LongSequencesAndViews) {
  List numbers;
  Dict map;
  for (std::int64_t i = 0; i < 2001; ++i) {
    numbers.push_back(i);
    map[i] = "v";
  }
  const at::Tensor base = make_tensor(at::kFloat, {4, 6});
  const Value value(Tuple{numbers, map, base.t(), base.narrow(1, 2, 3), base.select(0, 1).requires_grad_()});
  EXPECT_EQ(first_difference(value, decode_object_item(encode_object_item(value))), "");

  const at::Tensor complex = make_tensor(at::kComplexFloat, {3});
  const Value decoded = decode_object_item(encode_object_item(Tuple{complex.conj()}));
  EXPECT_TRUE(bit_equal(decoded.as_tuple()[0], Value(complex.conj().resolve_conj())));
}

TEST(ObjectRoundTrip, DepthUpToTheLimit) {
  const auto nested = [](int depth) {
    Value value(make_tensor(at::kFloat, {1}));
    for (int i = 0; i < depth; ++i) value = List{std::move(value)};
    return value;
  };
  const Value deep = nested(496);
  EXPECT_TRUE(bit_equal(deep, decode_object_item(encode_object_item(deep))));
  expect_error(ErrorKind::kUnsupported, "deeper", "encode", [&] { encode_object_item(nested(497)); });
}

TEST(ObjectRoundTrip, WhatCannotLieInAnObject) {
  const Opaque opaque{std::make_shared<const Bytes>(Bytes{1, 2}), "set"};
  EXPECT_EQ(encode_object_item(opaque), (Bytes{1, 2}));
  expect_error(ErrorKind::kUnsupported, "['a'][1]: an object of type set", "opaque",
               [&] { encode_object_item(Dict{{"a", Tuple{1, opaque}}}); });
  const ShardedTensor sharded({2}, at::kFloat, {});
  expect_error(ErrorKind::kUnsupported, "[0]: a ShardedTensor", "sharded", [&] { encode_object_item(Tuple{sharded}); });
  expect_error(ErrorKind::kUnsupported, "Stateful", "stateful",
               [&] { encode_object_item(std::shared_ptr<Stateful>()); });
  expect_error(ErrorKind::kInvalidArgument, "[0]: the tensor is undefined", "undefined",
               [&] { encode_object_item(Tuple{at::Tensor()}); });
  EXPECT_THROW(encode_object_item("\xFF"), Error);
}

// ---- damage and hostility -------------------------------------------------------------------------------

Bytes item_of(ByteSpan pickle, const std::vector<Bytes>& storages = {}) {
  zip::Writer zip;
  zip.add("data.pkl", pickle);
  zip.add_format_members();
  for (std::size_t i = 0; i < storages.size(); ++i) zip.add("data/" + std::to_string(i), storages[i]);
  zip.add_closing_members();
  return zip.finish();
}

Bytes item_of(std::string_view opcodes) { return item_of(as_bytes("\x80\x02" + std::string(opcodes) + ".")); }

TEST(ObjectDamage, TruncationsAreRefused) {
  const Bytes item = encode_object_item(Tuple{"text", 5, make_tensor(at::kFloat, {3})});
  for (std::size_t size = 0; size < item.size(); ++size) {
    EXPECT_THROW(decode_object_item(Bytes(item.begin(), item.begin() + static_cast<std::ptrdiff_t>(size))), Error)
        << size;
  }
}

TEST(ObjectDamage, FlipsNeverChangeAValue) {
  const Value value(Tuple{"text", 5, make_tensor(at::kFloat, {3})});
  const Bytes item = encode_object_item(value);
  std::size_t refused = 0;
  for (std::size_t at = 0; at < item.size(); ++at) {
    for (std::uint8_t flip : {0x01, 0x10, 0xFF}) {
      Bytes changed = item;
      changed[at] ^= flip;
      try {
        EXPECT_EQ(first_difference(value, decode_object_item(changed)), "") << at;
      } catch (const Error&) {
        ++refused;
      }
    }
  }
  EXPECT_GT(refused, item.size());
}

TEST(ObjectHostile, NamesThatRunCodeAreRefused) {
  const std::vector<std::pair<std::string, std::string>> names = {
      {"posix", "system"},     {"os", "system"},        {"__builtin__", "eval"},       {"builtins", "exec"},
      {"builtins", "getattr"}, {"subprocess", "Popen"}, {"os.path", "join"},           {"importlib", "import_module"},
      {"pickle", "loads"},     {"io", "open"},          {"__builtin__", "__import__"}, {"sys", "exit"}};
  for (const auto& [module, name] : names) {
    const std::string global = "c" + module + "\n" + name + "\n";
    for (const std::string& opcodes : {global + "X\x01\0\0\0x\x85R"s, global, "]" + global + "a"}) {
      expect_error(ErrorKind::kUnsupported, module + "." + name, name, [&] { decode_object_item(item_of(opcodes)); });
      expect_error(ErrorKind::kUnsupported, module + "." + name, name, [&] { object_item_to_json(item_of(opcodes)); });
    }
  }
  // Nor hidden in the state of something harmless, or behind a dotted name.
  EXPECT_THROW(decode_object_item(item_of("ccollections\nOrderedDict\n)R}X\x01\x00\x00\x00acos\nsystem\nsb")), Error);
  pickle::Writer dotted(4);
  dotted.global("torch", "serialization.os.system");
  expect_error(ErrorKind::kUnsupported, "os.system", "dotted",
               [&] { decode_object_item(item_of(std::move(dotted).finish())); });
}

TEST(ObjectHostile, UnknownObjectsAreOpaque) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"ccollections\ndeque\n]K\x01"
       "a\x85R",
       "collections.deque"},
      {"cmy.package\nPoint\n)\x81}X\x01\0\0\0xK\x01sb"s, "my.package.Point"},
      {"c__builtin__\nxrange\nK\0K\x05K\x01\x87R"s, "range"},
      {"ccollections\ndefaultdict\nc__builtin__\nlist\n\x85R", "collections.defaultdict"},
      {"ctorch\nbfloat16\n", "torch.dtype"},
      {"}NK\x01s", "dict"},
      {"]c__builtin__\nset\n]\x85Ra", "list"},
      {"ccopy_reg\n_reconstructor\ncm\nC\nc__builtin__\nobject\nN\x87R", "m.C"},
      {"ctorch._utils\n_rebuild_sparse_tensor\n)R", "torch.Tensor"},
      {"\x8a\x09\0\0\0\0\0\0\0\0\x01"s, "int"},
      {"]q\0c__builtin__\nset\n]h\0a\x85Ra"s, "list"},
  };
  for (const auto& [opcodes, type] : cases) {
    const Bytes item = item_of(opcodes);
    const Value value = decode_object_item(item);
    ASSERT_EQ(value.kind(), ValueKind::kOpaque) << type;
    EXPECT_EQ(value.as_opaque().type_name, type);
    EXPECT_EQ(encode_object_item(value), item) << type;
  }
}

TEST(ObjectHostile, Forms) {
  EXPECT_EQ(decode_object_item(item_of("cbuiltins\nbytes\n)R")).as_bytes(), Bytes());
  EXPECT_EQ(decode_object_item(item_of("C\x02\xFF"
                                       "a"))
                .as_bytes(),
            (Bytes{0xFF, 'a'}));
  EXPECT_EQ(decode_object_item(item_of("}(K\x01K\x02K\x01K\x03u")).as_dict().at(std::int64_t{1}).as_int(), 3);
  EXPECT_EQ(object_item_to_json(item_of("cbuiltins\nfrozenset\n](K\x0aK\x02"
                                        "e\x85R"))
                .dump(),
            R"({"t":"frozenset","v":[{"t":"int","v":"10"},{"t":"int","v":"2"}]})");
  EXPECT_EQ(object_item_to_json(item_of("X\x03\0\0\0\xED\xA0\x80"s)).dump(),
            R"({"t":"str","utf8_surrogatepass_hex":"eda080"})");
  EXPECT_EQ(object_item_to_json(item_of("cm\nC\n)\x81")).dump(), R"({"t":"other","type":"m.C"})");
  EXPECT_EQ(object_item_to_json(item_of("c__builtin__\nxrange\nK\x01\x85R")).dump(),
            R"({"t":"other","type":"builtins.range"})");
}

struct HostileCase {
  const char* name;
  ErrorKind kind;
  const char* message;
  Bytes item;
};

std::string laughs() {
  std::string opcodes = "]q";
  opcodes.push_back('\0');
  for (char level = 1; level < 60; ++level) {
    opcodes += "]q" + std::string(1, level) + "(h" + std::string(1, static_cast<char>(level - 1)) + "h" +
               std::string(1, static_cast<char>(level - 1)) + "e";
  }
  return opcodes;
}

TEST(ObjectHostile, Structures) {
  using enum ErrorKind;
  const std::string self = "]q\0h\0a"s;
  const std::vector<HostileCase> cases = {
      {"persistent id", kCorruptData, "persistent id", item_of("X\x06\0\0\0moduleX\x02\0\0\0os\x86Q"s)},
      {"deep", kCorruptData, "nested", item_of(std::string(100'000, ']') + std::string(99'999, 'a'))},
      {"self", kUnsupported, "nested", item_of(self)},
      {"laughs", kUnsupported, "memory", item_of("(" + laughs() + "t")},
      {"huge memo", kCorruptData, "memo", item_of("]r\xFF\xFF\xFF\xFF")},
      {"huge string", kCorruptData, "",
       item_of("X\xFF\xFF\xFF\xFF"
               "abc")},
      {"bytes beyond latin-1", kCorruptData, "latin-1",
       item_of("c_codecs\nencode\nX\x03\0\0\0\xE2\x98\x83X\x06\0\0\0latin1\x86R"s)},
  };
  for (const HostileCase& hostile : cases) {
    expect_error(hostile.kind, hostile.message, hostile.name, [&] { decode_object_item(hostile.item); });
    expect_error(hostile.kind, hostile.message, hostile.name, [&] { object_item_to_json(hostile.item); });
  }
}

/// An item of a tuple of tensors on one storage; `edit` may change the pickle.
Bytes tensor_item(const std::function<void(std::string&)>& edit, Bytes storage = Bytes(24)) {
  pickle::Writer writer(2);
  write_tensor_call(writer, "0", at::kFloat, {2, 3});
  writer.tuple_of(1);
  std::string text(as_text(std::move(writer).finish()));
  edit(text);
  return item_of(as_bytes(text), {std::move(storage)});
}

void replace(std::string& text, std::string_view from, std::string_view to) {
  const std::size_t at = text.find(from);
  ASSERT_NE(at, std::string::npos) << from;
  text.replace(at, from.size(), to);
}

TEST(ObjectHostile, TensorsInside) {
  const auto edited = [](std::string from, std::string to) {
    return tensor_item([=](std::string& text) { replace(text, from, to); });
  };
  EXPECT_EQ(decode_object_item(tensor_item([](std::string&) {})).as_tuple()[0].as_tensor().numel(), 6);
  const std::string key_zero =
      "X\x01\0\0\0"
      "0"s;
  const std::string key_one =
      "X\x01\0\0\0"
      "1"s;
  const std::string key_path = "X\x04\0\0\0../0"s;
  const std::vector<std::pair<const char*, Bytes>> cases = {
      {"key path", edited(key_zero, key_path)},
      {"missing storage", edited(key_zero, key_one)},
      {"storage class", edited("FloatStorage", "load")},
      {"larger sizes", edited("K\x02K\x03\x86", "K\x02K\x04\x86")},
      {"negative size", edited("K\x02K\x03\x86", "J\xFE\xFF\xFF\xFFK\x03\x86")},
      {"larger strides", edited("K\x03K\x01\x86", "K\x09K\x01\x86")},
      {"short storage", tensor_item([](std::string&) {}, Bytes(20))},
      {"long storage", tensor_item([](std::string&) {}, Bytes(28))},
  };
  for (const auto& [name, item] : cases) {
    EXPECT_THROW(decode_object_item(item), Error) << name;
    EXPECT_THROW(object_item_to_json(item), Error) << name;
  }
  // Terabytes of a stored element.
  const Bytes expanded = tensor_item([](std::string& text) {
    replace(text, "K\x02K\x03\x86", "\x8a\x06\0\0\0\0\0\x01K\x03\x86"s);
    replace(text, "K\x03K\x01\x86", "K\0K\0\x86"s);
  });
  expect_error(ErrorKind::kUnsupported, "memory", "expanded", [&] { decode_object_item(expanded); });
}

}  // namespace
}  // namespace dcp

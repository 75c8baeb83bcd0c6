#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "test/format/golden_support.h"
#include "torch_dcp/format/metadata_pickle.h"
#include "torch_dcp/pickle/writer.h"
#include "torch_dcp/tensor/dtype.h"

namespace dcp {
namespace {

using Json = nlohmann::ordered_json;
using test::expect_error;

constexpr std::string_view kModule = "torch.distributed.checkpoint.metadata";
constexpr std::string_view kFileSystem = "torch.distributed.checkpoint.filesystem";

void expect_equal(const Metadata& a, const Metadata& b, const std::string& label) {
  ASSERT_EQ(a.state_dict_metadata.size(), b.state_dict_metadata.size()) << label;
  auto other = b.state_dict_metadata.begin();
  for (const auto& [key, stored] : a.state_dict_metadata) {
    ASSERT_EQ(key, other->first) << label;
    ASSERT_EQ(stored.index(), other->second.index()) << label << " " << key;
    if (const auto* tensor = std::get_if<TensorStorageMetadata>(&stored)) {
      const auto& same = std::get<TensorStorageMetadata>(other->second);
      ASSERT_EQ(tensor->properties, same.properties) << label << " " << key;
      ASSERT_EQ(tensor->size, same.size) << label << " " << key;
      ASSERT_EQ(tensor->chunks, same.chunks) << label << " " << key;
    }
    ++other;
  }
  ASSERT_EQ(a.planner_data.has_value(), b.planner_data.has_value()) << label;
  if (a.planner_data) {
    ASSERT_TRUE(
        std::equal(a.planner_data->begin(), a.planner_data->end(), b.planner_data->begin(), b.planner_data->end()))
        << label;
  }
  ASSERT_EQ(a.storage_data.size(), b.storage_data.size()) << label;
  auto info = b.storage_data.begin();
  for (const auto& [index, stored] : a.storage_data) {
    ASSERT_EQ(index, info->first) << label;
    ASSERT_EQ(index.index, info->first.index) << label;
    ASSERT_EQ(stored, info->second) << label;
    ++info;
  }
  ASSERT_EQ(a.storage_meta.has_value(), b.storage_meta.has_value()) << label;
  if (a.storage_meta) {
    EXPECT_EQ(a.storage_meta->checkpoint_id, b.storage_meta->checkpoint_id) << label;
    EXPECT_EQ(a.storage_meta->save_id, b.storage_meta->save_id) << label;
    EXPECT_EQ(a.storage_meta->load_id, b.storage_meta->load_id) << label;
  }
  EXPECT_EQ(a.version, b.version) << label;
}

// ---- what Python wrote ------------------------------------------------------------------------------

Json path_json(const Path& path) {
  Json steps = Json::array();
  for (const PathItem& item : path) {
    steps.push_back(item.step == PathStep::kListIndex ? Json(item.index) : Json(item.key));
  }
  return steps;
}

std::vector<std::int64_t> list(const Sizes& sizes) { return {sizes.begin(), sizes.end()}; }

void expect_stored(const Metadata& metadata, const std::string& key, const Json& stored, const std::string& label) {
  const auto& entry = *metadata.state_dict_metadata.find(key);
  if (const auto* tensor = std::get_if<TensorStorageMetadata>(&entry)) {
    EXPECT_EQ(tensor->chunks.size(), stored.size()) << label;
  }
  for (const Json& place : stored) {
    MetadataIndex index{key, {}, {}};
    if (place.contains("offsets")) {
      const auto offsets = place["offsets"].get<std::vector<std::int64_t>>();
      const auto sizes = place["sizes"].get<std::vector<std::int64_t>>();
      index.offset = Sizes(offsets.begin(), offsets.end());
      const auto& chunks = std::get<TensorStorageMetadata>(entry).chunks;
      const Box box{*index.offset, Sizes(sizes.begin(), sizes.end())};
      EXPECT_NE(std::find(chunks.begin(), chunks.end(), box), chunks.end()) << label << " " << to_string(box);
    }
    const std::optional<StorageInfo> info = metadata.storage_data.find(index);
    ASSERT_TRUE(info) << label << " " << place;
    EXPECT_EQ(info->relative_path, place["file"].get<std::string>()) << label;
    EXPECT_EQ(info->offset, place["offset"].get<std::int64_t>()) << label;
    EXPECT_EQ(info->length, place["length"].get<std::int64_t>()) << label;
    const auto transforms = place.value("transform_descriptors", Json(nullptr));
    EXPECT_EQ(Json(info->transform_descriptors), transforms.is_null() ? Json::array() : transforms) << label;
  }
}

void expect_entry(const Metadata& metadata, const std::string& key, const Json& expected, const std::string& label) {
  const StorageMetadata* stored = metadata.state_dict_metadata.find(key);
  ASSERT_NE(stored, nullptr) << label;
  const auto* tensor = std::get_if<TensorStorageMetadata>(stored);
  ASSERT_EQ(tensor != nullptr, expected["kind"] == "tensor") << label;
  if (tensor != nullptr) {
    EXPECT_EQ(dtype_name(tensor->properties), expected["dtype"].get<std::string>()) << label;
    EXPECT_EQ(Json(list(tensor->size)), expected["shape"]) << label;
    if (expected.contains("requires_grad")) {
      EXPECT_EQ(tensor->properties.requires_grad, expected["requires_grad"].get<bool>()) << label;
    }
  }
  if (expected.contains("path")) {
    ASSERT_TRUE(metadata.planner_data) << label;
    const Path* path = metadata.planner_data->find(key);
    ASSERT_NE(path, nullptr) << label;
    EXPECT_EQ(path_json(*path), expected["path"]) << label;
  }
  if (expected.contains("stored")) expect_stored(metadata, key, expected["stored"], label);
}

TEST(MetadataGolden, EveryCheckpointIsRead) {
  const auto names = test::golden_checkpoints();
  ASSERT_GE(names.size(), 30u);
  for (const std::string& name : names) {
    const Json expected = test::read_expected(name);
    const Metadata metadata = decode_metadata(test::read_golden(name + "/ckpt/.metadata"));
    if (expected.contains("version")) {
      EXPECT_EQ(metadata.version ? Json(*metadata.version) : Json(nullptr), expected["version"]) << name;
      EXPECT_EQ(metadata.planner_data.has_value(), expected["has_planner_data"].get<bool>()) << name;
    }
    EXPECT_EQ(metadata.state_dict_metadata.size(), expected["entries"].size()) << name;
    for (const auto& [key, entry] : expected["entries"].items()) expect_entry(metadata, key, entry, name + " " + key);
    expect_equal(metadata, decode_metadata(encode_metadata(metadata)), name);
  }
}

TEST(MetadataGolden, PerRankMetadataIsRead) {
  const Json expected = test::read_expected("no_collectives_2ranks");
  for (const std::string rank : {"0", "1"}) {
    const Metadata metadata = decode_metadata(test::read_golden("no_collectives_2ranks/ckpt/__" + rank + ".metadata"));
    const Json& entries = expected["ranks"][rank]["entries"];
    EXPECT_EQ(metadata.state_dict_metadata.size(), entries.size());
    for (const auto& [key, entry] : entries.items()) expect_entry(metadata, key, entry, "rank " + rank + " " + key);
  }
}

TEST(MetadataGolden, CheckpointIdsOfAllPythons) {
  const auto id_of = [](const std::string& name) {
    return decode_metadata(test::read_golden(name + "/ckpt/.metadata")).storage_meta->checkpoint_id;
  };
  EXPECT_EQ(id_of("no_crc"), "ckpt");
  EXPECT_EQ(id_of("fsspec_str_id"), "ckpt");
  EXPECT_EQ(id_of("old_python_3_12_path"), "/data/run/ckpt");
  EXPECT_EQ(id_of("old_python_3_13_path"), "ckpt");
  EXPECT_EQ(id_of("windows_path"), "C:\\run\\ckpt");
  EXPECT_FALSE(decode_metadata(test::read_golden("old_torch_2_0/ckpt/.metadata")).storage_meta);
}

// ---- round trips --------------------------------------------------------------------------------------

class RandomMetadata {
 public:
  explicit RandomMetadata(unsigned seed) : random_(seed) {}

  Metadata make() {
    Metadata metadata;
    const std::size_t count = number(0, 40);
    if (number(0, 3) != 0) metadata.planner_data.emplace();
    for (std::size_t i = 0; i < count; ++i) add_entry(metadata, text() + std::to_string(i));
    if (number(0, 1) != 0) metadata.storage_meta = {optional_text(), optional_text(), optional_text()};
    metadata.version = optional_text();
    return metadata;
  }

 private:
  std::size_t number(std::size_t low, std::size_t high) {
    return std::uniform_int_distribution<std::size_t>(low, high)(random_);
  }
  std::int64_t magnitude() {
    return static_cast<std::int64_t>(std::uniform_int_distribution<std::uint64_t>()(random_) >> number(2, 63));
  }
  std::string text() {
    static const std::vector<std::string> kParts = {"a", ".", "layers", "\xC3\xBC", "\xED\xA0\x80", "", "0", "/", "\n"};
    std::string text;
    for (std::size_t i = number(0, 6); i > 0; --i) text += kParts[number(0, kParts.size() - 1)];
    return number(0, 20) == 0 ? text + std::string(300, 'k') : text;
  }
  std::optional<std::string> optional_text() {
    return number(0, 1) != 0 ? std::optional<std::string>(text()) : std::nullopt;
  }
  Sizes sizes(std::size_t ndim) {
    Sizes result;
    const std::size_t largest = ndim > 3 ? 200 : 100'000;
    for (std::size_t d = 0; d < ndim; ++d)
      result.push_back(static_cast<std::int64_t>(number(0, largest) >> number(0, 17)));
    return result;
  }
  TensorStorageMetadata tensor() {
    static const std::vector<ScalarType> kDtypes = {ScalarType::Float, ScalarType::BFloat16, ScalarType::Bool,
                                                    ScalarType::Float8_e4m3fn, ScalarType::ComplexDouble};
    TensorStorageMetadata tensor;
    tensor.properties = {kDtypes[number(0, kDtypes.size() - 1)], NewerDtype::kNone, number(0, 1) != 0,
                         static_cast<MemoryFormat>(number(0, 2)), number(0, 1) != 0};
    const std::size_t ndim = number(0, 3) == 0 ? number(0, 6) : number(0, 3);
    tensor.size = number(0, 9) == 0 ? Sizes(ndim, 1) : sizes(ndim);
    for (std::size_t i = number(0, 5); i > 0; --i) tensor.chunks.push_back({sizes(ndim), sizes(ndim)});
    return tensor;
  }
  StorageInfo info() {
    StorageInfo info{"__" + std::to_string(number(0, 3)) + "_0.distcp", magnitude(), magnitude(), {}};
    if (number(0, 5) == 0) info.transform_descriptors = {"stream.zstd/1", "other/2"};
    return info;
  }
  void add_entry(Metadata& metadata, const std::string& key) {
    if (metadata.planner_data) {
      Path path{PathItem::dict_key(text())};
      for (std::size_t i = number(0, 4); i > 0; --i) {
        path.push_back(number(0, 1) != 0 ? PathItem::dict_key(text())
                                         : PathItem::list_index(static_cast<std::int64_t>(number(0, 70'000))));
      }
      metadata.planner_data->insert(key, path);
    }
    if (number(0, 2) == 0) {
      metadata.state_dict_metadata.insert(key, BytesStorageMetadata());
      metadata.storage_data.insert({key, std::nullopt, std::nullopt}, info());
      return;
    }
    const TensorStorageMetadata stored = tensor();
    for (std::size_t i = 0; i < stored.chunks.size(); ++i) {
      metadata.storage_data.insert({key, stored.chunks[i].offsets, static_cast<std::int64_t>(i)}, info());
    }
    metadata.state_dict_metadata.insert(key, stored);
  }

  std::mt19937 random_;
};

TEST(MetadataRoundTrip, RandomMetadata) {
  for (unsigned seed = 0; seed < 300; ++seed) {
    const Metadata metadata = RandomMetadata(seed).make();
    const Bytes bytes = encode_metadata(metadata);
    const Metadata decoded = decode_metadata(bytes);
    expect_equal(metadata, decoded, "seed " + std::to_string(seed));
    EXPECT_EQ(encode_metadata(decoded), bytes) << seed;
  }
}

TEST(MetadataRoundTrip, IntegerKeysBecomeTexts) {
  Metadata metadata;
  metadata.planner_data.emplace();
  metadata.planner_data->insert(
      "a.7.0", {PathItem::dict_key("a"), PathItem::dict_key(Key(std::int64_t{7})), PathItem::list_index(0)});
  const Path expected{PathItem::dict_key("a"), PathItem::dict_key("7"), PathItem::list_index(0)};
  EXPECT_EQ(*decode_metadata(encode_metadata(metadata)).planner_data->find("a.7.0"), expected);
}

Metadata many_chunks(std::int64_t keys, std::int64_t ranks) {
  Metadata metadata;
  metadata.planner_data.emplace();
  for (std::int64_t k = 0; k < keys; ++k) {
    const std::string key = "model.layers." + std::to_string(k) + ".weight";
    TensorStorageMetadata tensor;
    tensor.size = {8 * ranks, 4096};
    for (std::int64_t r = 0; r < ranks; ++r) tensor.chunks.push_back({{8 * r, 0}, {8, 4096}});
    metadata.state_dict_metadata.insert(key, tensor);
    metadata.planner_data->insert(key, {PathItem::dict_key("model"), PathItem::dict_key(key.substr(6))});
  }
  for (std::int64_t r = 0; r < ranks; ++r) {
    for (std::int64_t k = 0; k < keys; ++k) {
      metadata.storage_data.insert({"model.layers." + std::to_string(k) + ".weight", Sizes{8 * r, 0}, r},
                                   {"__" + std::to_string(r) + "_0.distcp", 133'000 * k, 132'649, {}});
    }
  }
  return metadata;
}

TEST(MetadataRoundTrip, ManyItemsTakeFewBytes) {
  const Metadata metadata = many_chunks(110, 128);
  const Bytes bytes = encode_metadata(metadata);
  EXPECT_LE(bytes.size(), 115 * metadata.storage_data.size());
  expect_equal(metadata, decode_metadata(bytes), "many");
}

// ---- damage -------------------------------------------------------------------------------------------

TEST(MetadataDamage, EveryTruncationIsRefused) {
  for (const std::string name : {"no_crc", "old_protocol_2"}) {
    const Bytes bytes = test::read_golden(name + "/ckpt/.metadata");
    for (std::size_t size = 0; size < bytes.size(); ++size) {
      EXPECT_THROW(decode_metadata(ByteSpan(bytes).first(size)), Error) << name << " " << size;
    }
  }
}

TEST(MetadataDamage, FlippedBytesAreReadOrRefused) {
  const Bytes bytes = test::read_golden("old_protocol_2/ckpt/.metadata");
  std::size_t refused = 0;
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    for (std::uint8_t flip : {0x01, 0x80, 0xFF}) {
      Bytes changed = bytes;
      changed[at] ^= flip;
      try {
        decode_metadata(changed);
      } catch (const Error&) {
        ++refused;
      }
    }
  }
  EXPECT_GT(refused, bytes.size());
}

// ---- hostile metadata -----------------------------------------------------------------------------------

using Write = std::function<void(pickle::Writer&)>;

void write_size(pickle::Writer& writer, const std::vector<std::int64_t>& sizes) {
  writer.global("torch", "Size");
  writer.mark();
  for (std::int64_t size : sizes) writer.integer(size);
  writer.tuple_from_mark();
  writer.tuple_of(1);
  writer.reduce();
}

Write size_of(std::vector<std::int64_t> sizes) {
  return [sizes](pickle::Writer& writer) { write_size(writer, sizes); };
}
Write text_of(std::string text) {
  return [text](pickle::Writer& writer) { writer.text(text); };
}
Write int_of(std::int64_t value) {
  return [value](pickle::Writer& writer) { writer.integer(value); };
}
Write none() {
  return [](pickle::Writer& writer) { writer.none(); };
}
Write list_of(std::vector<Write> items) {
  return [items](pickle::Writer& writer) {
    writer.empty_list();
    writer.mark();
    for (const Write& item : items) item(writer);
    writer.appends_from_mark();
  };
}
Write tuple_of(std::vector<Write> items) {
  return [items](pickle::Writer& writer) {
    writer.mark();
    for (const Write& item : items) item(writer);
    writer.tuple_from_mark();
  };
}
Write dict_of(std::vector<std::pair<Write, Write>> entries) {
  return [entries](pickle::Writer& writer) {
    writer.empty_dict();
    writer.mark();
    for (const auto& [key, value] : entries) {
      key(writer);
      value(writer);
    }
    writer.set_items_from_mark();
  };
}
Write global_of(std::string module, std::string name) {
  return [module, name](pickle::Writer& writer) { writer.global(module, name); };
}
Write call_of(Write callee, std::vector<Write> arguments) {
  return [callee, arguments](pickle::Writer& writer) {
    callee(writer);
    tuple_of(arguments)(writer);
    writer.reduce();
  };
}
Write object_of(Write cls, Write state) {
  return [cls, state](pickle::Writer& writer) {
    cls(writer);
    writer.empty_tuple();
    writer.new_object();
    state(writer);
    writer.build();
  };
}

/// A sound checkpoint of a tensor `w` [4, 3] and an object `n`, each part of which can be replaced.
struct Parts {
  Write dtype = global_of("torch", "float32");
  Write layout = call_of(global_of("torch.serialization", "_get_layout"), {text_of("torch.strided")});
  Write memory_format = call_of(global_of(std::string(kModule), "_MEM_FORMAT_ENCODING"), {int_of(0)});
  Write size = size_of({4, 3});
  Write chunk_offsets = size_of({0, 0});
  Write chunk_sizes = size_of({4, 3});
  Write tensor_key = text_of("w");
  Write tensor;  // when replaced as a whole
  std::vector<std::pair<Write, Write>> more_state;
  Write state;
  Write fqn = text_of("w");
  Write index = int_of(0);
  Write index_offset = size_of({0, 0});
  Write relative_path = text_of("__0_0.distcp");
  Write offset = int_of(0);
  Write length = int_of(1577);
  Write transforms = none();
  std::vector<std::pair<Write, Write>> more_storage;
  Write storage;
  std::vector<std::pair<Write, Write>> paths = {{text_of("w"), tuple_of({text_of("w")})}};
  Write planner;
  std::vector<std::pair<Write, Write>> storage_meta_fields = {{text_of("checkpoint_id"), text_of("ckpt")}};
  Write storage_meta;
  Write version = text_of("1.0.0");
  std::vector<std::pair<Write, Write>> more_fields;
  std::string left_out;  // a field of Metadata
  Write root;

  static Write meta(const std::string& cls) { return global_of(std::string(kModule), cls); }

  Write make_index(Write of_fqn, Write of_index, Write of_offset) const {
    return object_of(meta("MetadataIndex"),
                     dict_of({{text_of("fqn"), of_fqn}, {text_of("index"), of_index}, {text_of("offset"), of_offset}}));
  }
  Write make_info() const {
    return object_of(global_of(std::string(kFileSystem), "_StorageInfo"),
                     dict_of({{text_of("relative_path"), relative_path},
                              {text_of("offset"), offset},
                              {text_of("length"), length},
                              {text_of("transform_descriptors"), transforms}}));
  }
  Write make_tensor() const {
    const Write pinned = [](pickle::Writer& writer) { writer.boolean(false); };
    const Write properties =
        object_of(meta("TensorProperties"), tuple_of({dtype, layout, pinned, memory_format, pinned}));
    const Write chunk = object_of(meta("ChunkStorageMetadata"),
                                  dict_of({{text_of("offsets"), chunk_offsets}, {text_of("sizes"), chunk_sizes}}));
    return object_of(
        meta("TensorStorageMetadata"),
        dict_of({{text_of("properties"), properties}, {text_of("size"), size}, {text_of("chunks"), list_of({chunk})}}));
  }
  static Write make_object() {
    return [](pickle::Writer& writer) {
      writer.global(kModule, "BytesStorageMetadata");
      writer.empty_tuple();
      writer.new_object();
    };
  }

  Bytes pickle() const {
    std::vector<std::pair<Write, Write>> states = {{tensor_key, tensor ? tensor : make_tensor()},
                                                   {text_of("n"), make_object()}};
    states.insert(states.end(), more_state.begin(), more_state.end());
    std::vector<std::pair<Write, Write>> infos = {{make_index(fqn, index, index_offset), make_info()}};
    infos.insert(infos.end(), more_storage.begin(), more_storage.end());
    const Write meta_object = object_of(meta("StorageMeta"), dict_of(storage_meta_fields));
    std::vector<std::pair<std::string, Write>> fields = {{"state_dict_metadata", state ? state : dict_of(states)},
                                                         {"planner_data", planner ? planner : dict_of(paths)},
                                                         {"storage_data", storage ? storage : dict_of(infos)},
                                                         {"storage_meta", storage_meta ? storage_meta : meta_object},
                                                         {"version", version}};
    std::vector<std::pair<Write, Write>> entries;
    for (const auto& [name, value] : fields) {
      if (name != left_out) entries.emplace_back(text_of(name), value);
    }
    entries.insert(entries.end(), more_fields.begin(), more_fields.end());
    pickle::Writer writer(4);
    (root ? root : object_of(meta("Metadata"), dict_of(entries)))(writer);
    return std::move(writer).finish();
  }
};

struct HostileCase {
  const char* name;
  ErrorKind kind;
  const char* message;
  std::function<void(Parts&)> change;
};

constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();

const std::vector<HostileCase>& hostile_cases() {
  using enum ErrorKind;
  static const std::vector<HostileCase> cases = {
      // Code and names.
      {"os_system", kCorruptData, "posix.system",
       [](Parts& p) { p.planner = call_of(global_of("posix", "system"), {text_of("true")}); }},
      {"root_code", kCorruptData, "builtins.exec",
       [](Parts& p) { p.root = call_of(global_of("builtins", "exec"), {text_of("1")}); }},
      {"root_none", kCorruptData, "Metadata", [](Parts& p) { p.root = none(); }},
      {"root_dict", kCorruptData, "a dict", [](Parts& p) { p.root = dict_of({}); }},
      {"root_called", kCorruptData, "Metadata", [](Parts& p) { p.root = call_of(Parts::meta("Metadata"), {}); }},
      {"build_dict", kCorruptData, "__class__",
       [](Parts& p) { p.storage_meta_fields.push_back({text_of("__class__"), tuple_of({int_of(1)})}); }},
      {"getattr", kCorruptData, "planner_data",
       [](Parts& p) {
         p.planner = call_of(
             call_of(global_of("builtins", "getattr"), {global_of("torch", "Size"), text_of("__subclasses__")}), {});
       }},
      {"getattr_of_enum", kCorruptData, "memory_format",
       [](Parts& p) {
         p.memory_format = call_of(global_of("builtins", "getattr"),
                                   {Parts::meta("_MEM_FORMAT_ENCODING"), text_of("__subclasses__")});
       }},
      {"getattr_of_other", kCorruptData, "memory_format",
       [](Parts& p) {
         p.memory_format = call_of(global_of("builtins", "getattr"),
                                   {global_of("torch", "Size"), text_of("TORCH_CONTIGUOUS_FORMAT")});
       }},
      {"unknown_global", kCorruptData, "_reconstruct",
       [](Parts& p) { p.planner = global_of("numpy.core.multiarray", "_reconstruct"); }},
      {"dotted_global", kCorruptData, "a memory format",
       [](Parts& p) { p.memory_format = call_of(global_of(std::string(kModule), "os.system"), {int_of(0)}); }},
      {"other_module", kCorruptData, "TensorStorageMetadata",
       [](Parts& p) { p.tensor = object_of(global_of("evil", "TensorStorageMetadata"), dict_of({})); }},
      {"dtype_function", kUnsupported, "'w'", [](Parts& p) { p.dtype = global_of("torch", "load"); }},
      {"dtype_unknown", kUnsupported, "torch.float7", [](Parts& p) { p.dtype = global_of("torch", "float7"); }},
      {"dtype_module", kCorruptData, "dtype", [](Parts& p) { p.dtype = global_of("numpy", "float32"); }},
      {"enum_value", kCorruptData, "9 is no memory format",
       [](Parts& p) { p.memory_format = call_of(Parts::meta("_MEM_FORMAT_ENCODING"), {int_of(9)}); }},
      {"layout_unknown", kUnsupported, "os.system",
       [](Parts& p) { p.layout = call_of(global_of("torch.serialization", "_get_layout"), {text_of("os.system")}); }},
      {"layout_sparse", kUnsupported, "key 'w'",
       [](Parts& p) {
         p.layout = call_of(global_of("torch.serialization", "_get_layout"), {text_of("torch.sparse_coo")});
       }},
      {"extra_field_with_call", kUnsupported, "future",
       [](Parts& p) { p.more_fields.push_back({text_of("future"), list_of({call_of(global_of("a", "b"), {})})}); }},
      {"path_of_checkpoint", kCorruptData, "checkpoint_id",
       [](Parts& p) { p.storage_meta_fields[0].second = call_of(global_of("pathlib", "Path.home"), {text_of("x")}); }},
      // Structure.
      {"no_state", kCorruptData, "state_dict_metadata", [](Parts& p) { p.left_out = "state_dict_metadata"; }},
      {"no_storage", kCorruptData, "storage_data", [](Parts& p) { p.left_out = "storage_data"; }},
      {"state_is_list", kCorruptData, "a list", [](Parts& p) { p.state = list_of({}); }},
      {"storage_is_list", kCorruptData, "a list", [](Parts& p) { p.storage = list_of({}); }},
      {"value_is_string", kCorruptData, "key 'w'", [](Parts& p) { p.tensor = text_of("x"); }},
      {"key_int", kCorruptData, "a str", [](Parts& p) { p.tensor_key = int_of(5); }},
      {"key_twice", kCorruptData, "'w' is there twice",
       [](Parts& p) { p.more_state.push_back({text_of("w"), Parts::make_object()}); }},
      {"field_twice", kCorruptData, "'version' is there twice",
       [](Parts& p) { p.more_fields.push_back({text_of("version"), text_of("1")}); }},
      {"fqn_int", kCorruptData, "fqn", [](Parts& p) { p.fqn = int_of(5); }},
      {"storage_twice", kCorruptData, "is there twice",
       [](Parts& p) {
         p.more_storage.push_back({p.make_index(text_of("w"), int_of(1), size_of({0, 0})), p.make_info()});
       }},
      {"version_int", kCorruptData, "version", [](Parts& p) { p.version = int_of(1); }},
      // Sizes and chunks.
      {"size_negative", kCorruptData, "key 'w', size: -4 is negative", [](Parts& p) { p.size = size_of({-4, 3}); }},
      {"size_product", kCorruptData, "overflow", [](Parts& p) { p.size = size_of({1ll << 32, 1ll << 32, 1ll << 32}); }},
      {"size_wraps", kCorruptData, "overflow", [](Parts& p) { p.size = size_of({1ll << 32, 1ll << 32}); }},
      {"size_bytes", kCorruptData, "overflow", [](Parts& p) { p.size = size_of({1ll << 61}); }},
      {"size_dims", kUnsupported, "1000 dimensions",
       [](Parts& p) { p.size = size_of(std::vector<std::int64_t>(1000, 1)); }},
      {"size_list", kCorruptData, "size", [](Parts& p) { p.size = list_of({int_of(4), int_of(3)}); }},
      {"size_strings", kCorruptData, "size",
       [](Parts& p) { p.size = call_of(global_of("torch", "Size"), {tuple_of({text_of("4"), text_of("3")})}); }},
      {"size_bool", kCorruptData, "size",
       [](Parts& p) { p.size = tuple_of({[](pickle::Writer& writer) { writer.boolean(true); }, int_of(12)}); }},
      {"chunk_offset", kCorruptData, "negative", [](Parts& p) { p.chunk_offsets = size_of({-1, 0}); }},
      {"chunk_size", kCorruptData, "negative", [](Parts& p) { p.chunk_sizes = size_of({-4, 3}); }},
      {"chunk_overflow", kCorruptData, "overflow", [](Parts& p) { p.chunk_offsets = size_of({kMax, 0}); }},
      {"chunk_numel", kCorruptData, "overflow", [](Parts& p) { p.chunk_sizes = size_of({1ll << 40, 1ll << 40}); }},
      {"chunk_rank", kCorruptData, "2 dimensions",
       [](Parts& p) { p.chunk_offsets = size_of({0}), p.chunk_sizes = size_of({12}); }},
      {"chunk_rank_mixed", kCorruptData, "1 sizes", [](Parts& p) { p.chunk_sizes = size_of({12}); }},
      // Places.
      {"offset_negative", kCorruptData, "key 'w', offset", [](Parts& p) { p.offset = int_of(-4); }},
      {"length_negative", kCorruptData, "length", [](Parts& p) { p.length = int_of(-1); }},
      {"sum_overflow", kCorruptData, "overflow", [](Parts& p) { p.offset = int_of(kMax - 7), p.length = int_of(64); }},
      {"offset_string", kCorruptData, "an int", [](Parts& p) { p.offset = text_of("0"); }},
      {"offset_float", kCorruptData, "an int",
       [](Parts& p) { p.offset = [](pickle::Writer& writer) { writer.real(0.0); }; }},
      {"offset_none", kCorruptData, "an int", [](Parts& p) { p.offset = none(); }},
      {"index_offset", kCorruptData, "negative", [](Parts& p) { p.index_offset = size_of({-1, 0}); }},
      {"transforms_text", kCorruptData, "a list", [](Parts& p) { p.transforms = text_of("stream.zstd/1"); }},
      // Planner data.
      {"planner_list", kCorruptData, "a dict", [](Parts& p) { p.planner = list_of({}); }},
      {"planner_huge_index", kUnsupported, "1000000000",
       [](Parts& p) { p.paths[0].second = tuple_of({text_of("big"), int_of(1'000'000'000)}); }},
      {"planner_negative_index", kCorruptData, "key 'w': -1",
       [](Parts& p) { p.paths[0].second = tuple_of({text_of("neg"), int_of(-1)}); }},
      {"planner_empty_path", kCorruptData, "empty", [](Parts& p) { p.paths[0].second = tuple_of({}); }},
      {"planner_root_index", kCorruptData, "list position",
       [](Parts& p) { p.paths[0].second = tuple_of({int_of(0), text_of("x")}); }},
      {"planner_not_tuple", kCorruptData, "a tuple", [](Parts& p) { p.paths[0].second = text_of("w"); }},
      {"planner_bad_item", kCorruptData, "an int",
       [](Parts& p) {
         p.paths[0].second = tuple_of({text_of("w"), [](pickle::Writer& writer) { writer.real(1.5); }});
       }},
      {"planner_key_twice", kCorruptData, "twice",
       [](Parts& p) { p.paths.push_back({text_of("w"), tuple_of({text_of("v")})}); }},
      {"planner_self", kCorruptData, "a tuple",
       [](Parts& p) {
         p.planner = [](pickle::Writer& writer) {
           writer.empty_dict();
           const auto number = writer.put();
           writer.text("w");
           writer.get(number);
           writer.set_item();
         };
       }},
  };
  return cases;
}

TEST(MetadataHostile, Cases) {
  for (const HostileCase& hostile : hostile_cases()) {
    Parts parts;
    hostile.change(parts);
    const Bytes bytes = parts.pickle();
    expect_error(hostile.kind, hostile.message, hostile.name, [&bytes] { decode_metadata(bytes); });
  }
}

TEST(MetadataHostile, FileNames) {
  const std::vector<std::string> names = {"../outside.distcp",
                                          "sub/../__0_0.distcp",
                                          "/etc/passwd",
                                          "..\\outside",
                                          "C:outside",
                                          std::string("__0\0.x", 6),
                                          "",
                                          ".",
                                          "..",
                                          "/dev/zero",
                                          ".metadata",
                                          "sub/data.distcp"};
  for (const std::string& name : names) {
    Parts parts;
    parts.relative_path = text_of(name);
    expect_error(ErrorKind::kCorruptData, "key 'w', relative_path", name, [&] { decode_metadata(parts.pickle()); });
  }
  Parts parts;
  parts.relative_path = none();
  expect_error(ErrorKind::kCorruptData, "relative_path", "none", [&] { decode_metadata(parts.pickle()); });
  parts.relative_path = text_of("...odd name\xC3\xBC.distcp");
  EXPECT_EQ(decode_metadata(parts.pickle()).storage_data.begin()->second.relative_path, "...odd name\xC3\xBC.distcp");
}

/// A pickle without frames, the bytes `from` in it replaced.
Bytes replaced(const Bytes& pickle, std::string_view from, std::string_view to) {
  std::string text(as_text(pickle));
  text.erase(2, 9);
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos);
  text.replace(at, from.size(), to);
  const ByteSpan bytes = as_bytes(text);
  return {bytes.begin(), bytes.end()};
}

TEST(MetadataHostile, NumbersBeyond64Bits) {
  const std::string_view marker("\x8a\x05\x11\x22\x33\x44\x55", 7);
  const std::string_view two_to_the_63("\x8a\x09\0\0\0\0\0\0\0\x80\0", 11);
  const std::string_view two_to_the_70("\x8a\x09\0\0\0\0\0\0\0\0\x40", 11);
  constexpr std::int64_t kMarker = 0x5544332211;
  const std::vector<std::pair<const char*, std::function<void(Parts&)>>> cases = {
      {"size", [](Parts& p) { p.size = size_of({kMarker, 3}); }},
      {"offset", [](Parts& p) { p.offset = int_of(kMarker); }},
      {"length", [](Parts& p) { p.length = int_of(kMarker); }},
      {"offsets of a chunk", [](Parts& p) { p.chunk_offsets = size_of({kMarker, 0}); }},
      {"planner_data of key 'w'", [](Parts& p) { p.paths[0].second = tuple_of({text_of("w"), int_of(kMarker)}); }},
  };
  for (const auto& [name, change] : cases) {
    Parts parts;
    change(parts);
    for (std::string_view number : {two_to_the_63, two_to_the_70}) {
      const Bytes bytes = replaced(parts.pickle(), marker, number);
      expect_error(ErrorKind::kCorruptData, "does not fit 64 bits", name, [&bytes] { decode_metadata(bytes); });
      expect_error(ErrorKind::kCorruptData, name, name, [&bytes] { decode_metadata(bytes); });
    }
  }
}

TEST(MetadataHostile, DeepAndSharedStructures) {
  Parts parts;
  parts.planner = int_of(0x5544332211);
  const Bytes sound = parts.pickle();
  const std::string_view marker("\x8a\x05\x11\x22\x33\x44\x55", 7);
  std::string laughs = "(]r\x0b\x0b\x0b\x0b";
  for (char level = 12; level < 72; ++level) {
    const std::string below(4, static_cast<char>(level - 1));
    laughs += "]r" + std::string(4, level) + "(j" + below + "j" + below + "e";
  }
  laughs += "t";
  EXPECT_THROW(decode_metadata(replaced(sound, marker, std::string(95'000, ']') + std::string(94'999, 'a'))), Error);
  EXPECT_THROW(decode_metadata(replaced(sound, marker, laughs)), Error);
  EXPECT_THROW(decode_metadata(replaced(sound, marker, "X\x02\xFF\xFF\xFF")), Error);

  // The same in a field that would be ignored.
  Parts ignored;
  ignored.more_fields.push_back({text_of("future"), [](pickle::Writer& writer) {
                                   writer.empty_list();
                                   std::uint32_t below = writer.put();
                                   for (int level = 0; level < 60; ++level) {
                                     writer.get(below);
                                     writer.get(below);
                                     writer.tuple_of(2);
                                     below = writer.put();
                                     writer.tuple_of(2);
                                   }
                                 }});
  expect_error(ErrorKind::kUnsupported, "too large", "laughs", [&] { decode_metadata(ignored.pickle()); });
}

TEST(MetadataHostile, SharedTextsAreNotCopiedWithoutEnd) {
  const std::string text(std::size_t{1} << 18, 'x');
  // Not text_of, whose copies would hold as many copies of it.
  const Write long_text = [&text](pickle::Writer& writer) { writer.text(text); };
  const auto expect_refused = [&text](const char* name, const Parts& parts) {
    const Bytes bytes = parts.pickle();
    ASSERT_LT(bytes.size(), 2 * text.size()) << "the text is shared";
    expect_error(ErrorKind::kUnsupported, ".metadata: its shared parts", name, [&] { decode_metadata(bytes); });
  };
  Parts paths;
  for (int i = 0; i < 1000; ++i) paths.paths.push_back({text_of(std::to_string(i)), tuple_of({long_text})});
  expect_refused("paths", paths);
  Parts one_path;
  one_path.paths.push_back({text_of("p"), tuple_of(std::vector<Write>(400, long_text))});
  expect_refused("one path", one_path);
  Parts files;
  files.relative_path = long_text;
  Parts keys;
  Parts transforms;
  transforms.transforms = list_of(std::vector<Write>(200, long_text));
  expect_refused("transforms", transforms);
  for (int i = 1; i < 1000; ++i) {
    files.more_storage.push_back({files.make_index(text_of("w"), int_of(i), size_of({i, 0})), files.make_info()});
    keys.more_storage.push_back({keys.make_index(long_text, int_of(i), size_of({i, 0})), keys.make_info()});
  }
  expect_refused("files", files);
  expect_refused("keys", keys);
  Parts id;
  id.storage_meta_fields = {
      {text_of("checkpoint_id"), call_of(global_of("pathlib", "PosixPath"), std::vector<Write>(200, long_text))}};
  expect_refused("id", id);

  // A few long names are nothing special.
  Parts few;
  few.paths = {{text_of("w"), tuple_of({long_text, long_text})}};
  EXPECT_EQ(decode_metadata(few.pickle()).planner_data->find("w")->size(), 2u);
}

TEST(MetadataHostile, OddButSound) {
  Parts plain;
  EXPECT_EQ(decode_metadata(plain.pickle()).state_dict_metadata.size(), 2u);

  Parts parts;
  parts.index = int_of(7);
  parts.version = text_of("99.0.0");
  parts.storage_meta_fields.push_back({text_of("modules"), list_of({text_of("m")})});
  parts.more_fields.push_back({text_of("future"), dict_of({{int_of(1), list_of({none()})}})});
  parts.paths = {{text_of("ghost"), tuple_of({text_of("ghost")})}};
  parts.more_storage.push_back({parts.make_index(text_of("ghost"), none(), none()), parts.make_info()});
  parts.chunk_sizes = tuple_of({int_of(4), int_of(3)});
  const Metadata metadata = decode_metadata(parts.pickle());
  EXPECT_EQ(metadata.version, "99.0.0");
  EXPECT_EQ(metadata.storage_data.size(), 2u);
  EXPECT_EQ(metadata.storage_data.begin()->first.index, 7);
  EXPECT_EQ(std::get<TensorStorageMetadata>(*metadata.state_dict_metadata.find("w")).chunks[0].sizes, (Sizes{4, 3}));
}

TEST(MetadataHostile, LimitsHold) {
  Parts parts;
  ParseLimits limits;
  limits.max_ndim = 1;
  expect_error(ErrorKind::kUnsupported, "2 dimensions", "ndim", [&] { decode_metadata(parts.pickle(), limits); });
  limits = {};
  limits.max_values = 10;
  EXPECT_THROW(decode_metadata(parts.pickle(), limits), Error);
}

}  // namespace
}  // namespace dcp

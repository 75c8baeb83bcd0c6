#include "torch_dcp/format/side_file.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "torch_dcp/base/checked_math.h"
#include "torch_dcp/base/error.h"
#include "torch_dcp/tensor/dtype.h"

// A JSON object: {"format_version": 1, "save_id": text, "typed_paths": {flat key: [step, ...]},
// "block_sums": {"block_bytes": number, "items": [[flat key, [offset, ...], sums], ...]}}. A step is a text for a dict
// key, a number for a list position and {"int_key": number} for an integer dict key. Sums are a text of 8 hexadecimal
// digits each. Other fields are ignored, so that a later version may add some.

namespace dcp {
namespace {

using Json = nlohmann::json;  // the ordered one takes quadratic time for many keys

constexpr const char* kFormatVersionField = "format_version";
constexpr const char* kSaveIdField = "save_id";
constexpr const char* kTypedPathsField = "typed_paths";
constexpr const char* kIntKeyField = "int_key";
constexpr const char* kBlockSumsField = "block_sums";
constexpr const char* kBlockBytesField = "block_bytes";
constexpr const char* kItemsField = "items";

constexpr std::size_t kSumDigits = 8;

bool has_int_key(const Path& path) {
  return std::any_of(path.begin(), path.end(), [](const PathItem& item) { return item.step == PathStep::kDictIntKey; });
}

/// Python's lone surrogates are 3 bytes that begin with ED and one from A0 on; JSON cannot hold them.
bool is_json_text(std::string_view text) {
  for (std::size_t i = text.find('\xED'); i != std::string_view::npos; i = text.find('\xED', i + 1)) {
    if (i + 1 < text.size() && static_cast<std::uint8_t>(text[i + 1]) >= 0xA0) return false;
  }
  return true;
}

bool is_json_path(const Path& path) {
  return std::all_of(path.begin(), path.end(), [](const PathItem& item) { return is_json_text(item.key); });
}

/// Whether the two are one path for Python, which has integer keys as texts.
bool is_same_in_python(const Path& typed, const Path& plain) {
  return std::equal(typed.begin(), typed.end(), plain.begin(), plain.end(), [](const PathItem& a, const PathItem& b) {
    const bool is_list_position = a.step == PathStep::kListIndex;
    return is_list_position == (b.step == PathStep::kListIndex) && to_string(a) == to_string(b);
  });
}

Json encode_path(const Path& path) {
  Json steps = Json::array();
  for (const PathItem& item : path) {
    switch (item.step) {
      case PathStep::kDictKey:
        steps.push_back(item.key);
        break;
      case PathStep::kListIndex:
        steps.push_back(item.index);
        break;
      case PathStep::kDictIntKey:
        steps.push_back(Json::object({{kIntKeyField, item.index}}));
        break;
    }
  }
  return steps;
}

Json parse_json(ByteSpan bytes, const ParseLimits& limits) {
  DCP_CHECK(bytes.size() <= limits.max_header_bytes, kCorruptData, "side file: ", bytes.size(), " bytes, more than ",
            limits.max_header_bytes);
  const auto check_depth = [&limits](int depth, Json::parse_event_t, Json&) {
    DCP_CHECK(std::cmp_less_equal(depth, limits.max_depth), kCorruptData, "side file: its JSON is nested deeper than ",
              limits.max_depth);
    return true;
  };
  try {
    return Json::parse(bytes.begin(), bytes.end(), check_depth);
  } catch (const Json::parse_error& error) {
    DCP_THROW(kCorruptData, "side file: no JSON from byte ", error.byte, " on: ", error.what());
  }
}

/// The field's value, or null.
const Json* find_field(const Json& object, const char* name) {
  const auto found = object.find(name);
  return found == object.end() ? nullptr : &*found;
}

/// The integer of 64 bits that `json` is, if it is one.
std::optional<std::int64_t> int_of(const Json* json) {
  if (json == nullptr || !json->is_number_integer()) return std::nullopt;
  if (json->is_number_unsigned() && !std::in_range<std::int64_t>(json->get<std::uint64_t>())) return std::nullopt;
  return json->get<std::int64_t>();
}

PathItem decode_step(const Json& step, const std::string& key, const ParseLimits& limits) {
  if (step.is_string()) return PathItem::dict_key(step.get<std::string>());
  if (step.is_object()) {
    const auto int_key = int_of(find_field(step, kIntKeyField));
    DCP_CHECK(int_key, kCorruptData, "side file: the path of '", key, "' has a step without an integer key");
    return PathItem::dict_key(Key(*int_key));
  }
  const auto index = int_of(&step);
  DCP_CHECK(index && *index >= 0 && std::cmp_less_equal(*index, limits.max_list_index), kCorruptData,
            "side file: the path of '", key, "' has a step that is no key and no list position up to ",
            limits.max_list_index);
  return PathItem::list_index(*index);
}

Path decode_path(const Json& steps, const std::string& key, const ParseLimits& limits) {
  DCP_CHECK(steps.is_array() && !steps.empty() && steps.size() <= limits.max_depth, kCorruptData,
            "side file: the path of '", key, "' is no list of 1 to ", limits.max_depth, " steps");
  Path path;
  path.reserve(steps.size());
  for (const Json& step : steps) path.push_back(decode_step(step, key, limits));
  return path;
}

std::string encode_sums(const std::vector<std::uint32_t>& sums) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  text.reserve(sums.size() * kSumDigits);
  for (const std::uint32_t sum : sums) {
    for (int shift = 28; shift >= 0; shift -= 4) text.push_back(kDigits[(sum >> shift) & 15]);
  }
  return text;
}

Json encode_block_sums(const BlockSums& block_sums) {
  Json items = Json::array();
  for (const auto& [index, sums] : block_sums.items) {
    if (!is_json_text(index.fqn)) continue;
    Json offsets = Json::array();
    for (const std::int64_t offset : *index.offset) offsets.push_back(offset);
    items.push_back(Json::array({index.fqn, std::move(offsets), encode_sums(sums)}));
  }
  return Json::object({{kBlockBytesField, block_sums.block_bytes}, {kItemsField, std::move(items)}});
}

std::vector<std::uint32_t> decode_sums(const std::string& text, const std::string& key) {
  const bool is_hex = text.find_first_not_of("0123456789abcdef") == std::string::npos;
  DCP_CHECK(is_hex && !text.empty() && text.size() % kSumDigits == 0, kCorruptData, "side file: the block sums of '",
            key, "' are no text of ", kSumDigits, " hexadecimal digits each");
  std::vector<std::uint32_t> sums(text.size() / kSumDigits);
  const char* digits = text.data();
  for (std::uint32_t& sum : sums) {
    std::from_chars(digits, digits + kSumDigits, sum, 16);
    digits += kSumDigits;
  }
  return sums;
}

Sizes decode_offsets(const Json& offsets, const std::string& key, const ParseLimits& limits) {
  DCP_CHECK(offsets.is_array() && offsets.size() <= limits.max_ndim, kCorruptData, "side file: the block sums of '",
            key, "' have no list of up to ", limits.max_ndim, " offsets");
  Sizes sizes;
  for (const Json& offset : offsets) {
    const auto value = int_of(&offset);
    DCP_CHECK(value && *value >= 0, kCorruptData, "side file: the block sums of '", key, "' have a bad offset");
    sizes.push_back(*value);
  }
  return sizes;
}

BlockSums decode_block_sums(const Json& json, const ParseLimits& limits) {
  DCP_CHECK(json.is_object(), kCorruptData, "side file: block_sums is no object");
  const auto block_bytes = int_of(find_field(json, kBlockBytesField));
  DCP_CHECK(block_bytes && *block_bytes >= 1 && *block_bytes <= BlockSums::kMaxBlockBytes, kCorruptData,
            "side file: block_bytes is no number from 1 to ", BlockSums::kMaxBlockBytes);
  const Json* items = find_field(json, kItemsField);
  DCP_CHECK(items != nullptr && items->is_array(), kCorruptData, "side file: block_sums has no list of items");
  BlockSums block_sums;
  block_sums.block_bytes = *block_bytes;
  block_sums.items.reserve(items->size());
  for (const Json& item : *items) {
    DCP_CHECK(item.is_array() && item.size() == 3 && item[0].is_string() && item[2].is_string(), kCorruptData,
              "side file: block_sums has an item that is no key, offsets and sums");
    const auto& key = item[0].get_ref<const std::string&>();
    const bool is_new = block_sums.items.insert({key, decode_offsets(item[1], key, limits), {}},
                                                decode_sums(item[2].get_ref<const std::string&>(), key));
    DCP_CHECK(is_new, kCorruptData, "side file: the block sums of '", key, "' are there twice");
  }
  return block_sums;
}

std::optional<std::string> find_sums_fault(const BlockSums& block_sums, const Metadata& metadata) {
  if (block_sums.items.empty()) return std::nullopt;
  // The sums come without the numbers of their chunks, and a tensor may have very many.
  std::unordered_map<MetadataIndex, Sizes, MetadataIndexHash> sizes_of_chunks;
  for (const auto& [key, entry] : metadata.state_dict_metadata) {
    const auto* tensor = std::get_if<TensorStorageMetadata>(&entry);
    if (tensor == nullptr) continue;
    for (const Box& chunk : tensor->chunks) {
      sizes_of_chunks.emplace(MetadataIndex{key, chunk.offsets, {}}, chunk.sizes);
    }
  }
  for (const auto& [index, sums] : block_sums.items) {
    const auto chunk = sizes_of_chunks.find(index);
    if (chunk == sizes_of_chunks.end()) {
      return c10::str("it has block sums of ", to_string(index), ", the metadata has no such chunk");
    }
    const auto& tensor = std::get<TensorStorageMetadata>(*metadata.state_dict_metadata.find(index.fqn));
    const auto numel = checked_numel(chunk->second);
    const auto bytes = numel ? checked_mul(*numel, element_bytes(tensor.properties.dtype)) : std::nullopt;
    if (!bytes || *bytes == 0 || !std::cmp_equal((*bytes - 1) / block_sums.block_bytes + 1, sums.size())) {
      return c10::str("it has ", sums.size(), " block sums of ", to_string(index), ", which has another size");
    }
  }
  return std::nullopt;
}

}  // namespace

std::string save_id_of(const Metadata& metadata) {
  return metadata.storage_meta ? metadata.storage_meta->save_id.value_or("") : "";
}

SideFile make_side_file(const Metadata& metadata) {
  SideFile side_file;
  side_file.save_id = save_id_of(metadata);
  if (!metadata.planner_data) return side_file;
  for (const auto& [key, path] : *metadata.planner_data) {
    if (has_int_key(path) && is_json_text(key) && is_json_path(path)) side_file.typed_paths.insert(key, path);
  }
  return side_file;
}

void apply_side_file(const SideFile& side_file, Metadata& metadata) {
  if (side_file.save_id == save_id_of(metadata)) apply_typed_paths(side_file, metadata);
}

void apply_typed_paths(const SideFile& side_file, Metadata& metadata) {
  if (!metadata.planner_data) return;
  for (const auto& [key, typed] : side_file.typed_paths) {
    Path* plain = metadata.planner_data->find(key);
    if (plain != nullptr && is_same_in_python(typed, *plain)) *plain = typed;
  }
}

std::optional<std::string> find_side_file_fault(const SideFile& side_file, const Metadata& metadata) {
  if (side_file.save_id != save_id_of(metadata)) {
    return c10::str("it belongs to save ", side_file.save_id, ", not to ", save_id_of(metadata));
  }
  for (const auto& [key, typed] : side_file.typed_paths) {
    const Path* plain = metadata.planner_data ? metadata.planner_data->find(key) : nullptr;
    if (plain == nullptr) return c10::str("it has a path for '", key, "', the metadata has none");
    if (is_same_in_python(typed, *plain)) continue;
    return c10::str("the path of '", key, "' is ", describe(typed), ", in the metadata ", describe(*plain));
  }
  return find_sums_fault(side_file.block_sums, metadata);
}

Bytes encode_side_file(const SideFile& side_file) {
  Json paths = Json::object();
  for (const auto& [key, path] : side_file.typed_paths) paths[key] = encode_path(path);
  Json root = Json::object();
  root[kFormatVersionField] = side_file.format_version;
  root[kSaveIdField] = side_file.save_id;
  root[kTypedPathsField] = std::move(paths);
  if (!side_file.block_sums.items.empty()) root[kBlockSumsField] = encode_block_sums(side_file.block_sums);
  const std::string text = root.dump();
  return Bytes(text.begin(), text.end());
}

SideFile decode_side_file(ByteSpan bytes, const ParseLimits& limits) {
  const Json root = parse_json(bytes, limits);
  DCP_CHECK(root.is_object(), kCorruptData, "side file: its JSON is no object");
  SideFile side_file;
  const auto version = int_of(find_field(root, kFormatVersionField));
  DCP_CHECK(version && *version >= 1, kCorruptData, "side file: no format_version");
  DCP_CHECK(*version <= SideFile::kFormatVersion, kUnsupported, "side file: format_version ", *version,
            ", this library reads up to ", SideFile::kFormatVersion);
  side_file.format_version = *version;
  const Json* save_id = find_field(root, kSaveIdField);
  DCP_CHECK(save_id != nullptr && save_id->is_string(), kCorruptData, "side file: save_id is no text");
  side_file.save_id = save_id->get<std::string>();
  if (const Json* sums = find_field(root, kBlockSumsField)) side_file.block_sums = decode_block_sums(*sums, limits);
  const Json* paths = find_field(root, kTypedPathsField);
  if (paths == nullptr) return side_file;
  DCP_CHECK(paths->is_object(), kCorruptData, "side file: typed_paths is no object");
  for (const auto& [key, steps] : paths->items()) side_file.typed_paths.insert(key, decode_path(steps, key, limits));
  return side_file;
}

}  // namespace dcp

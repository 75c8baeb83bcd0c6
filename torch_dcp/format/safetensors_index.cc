#include "torch_dcp/format/safetensors_index.h"

#include "torch_dcp/base/error.h"
#include "torch_dcp/base/fault_list.h"
#include "torch_dcp/format/json_visitor_internal.h"

namespace dcp {
namespace {

constexpr std::string_view kWeightMap = "weight_map";

bool is_plain_safetensors_name(std::string_view name) {
  constexpr std::string_view kSuffix = ".safetensors";
  return name.size() > kSuffix.size() && name.size() <= 255 && name.ends_with(kSuffix) &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos;
}

class IndexVisitor final : public JsonVisitor {
 public:
  bool begin(const Path& path, bool is_object) override {
    if (!path.empty() && path[0] != kWeightMap) return false;
    DCP_CHECK(is_object && path.size() < 2, kCorruptData, path.empty() ? "it" : path.back(),
              " is a list or an object where none may be");
    return true;
  }

  void end(const Path&) override {}

  void key(const Path& path) override {
    if (path[0] != kWeightMap) return;
    if (path.size() == 1) {
      DCP_CHECK(!has_weight_map, kCorruptData, "weight_map is there twice");
      has_weight_map = true;
    } else {
      DCP_CHECK(!index.weight_map.contains(path[1]), kCorruptData, "tensor '", path[1], "' is there twice");
    }
  }

  void integer(const Path& path, std::int64_t) override { other(path, "a number"); }

  void text(const Path& path, std::string& value) override {
    if (path.size() != 2 || path[0] != kWeightMap) return other(path, "a text");
    if (!is_plain_safetensors_name(value)) {
      faults.add(ErrorKind::kCorruptData, path[1],
                 "its file '" + value.substr(0, 300) + "' is not the plain name of a .safetensors file");
    }
    index.weight_map.insert(path[1], std::move(value));
  }

  void other(const Path& path, const char* kind) override {
    DCP_CHECK(!path.empty() && path[0] != kWeightMap, kCorruptData, path.empty() ? "it" : path.back(), " is ", kind);
  }

  SafetensorsIndex index;
  FaultList faults;
  bool has_weight_map = false;
};

}  // namespace

SafetensorsIndex decode_safetensors_index(ByteSpan bytes, const ParseLimits& limits) {
  DCP_CHECK(bytes.size() <= limits.max_header_bytes, kCorruptData, "an index of ", bytes.size(),
            " bytes; the limit is ", limits.max_header_bytes);
  IndexVisitor visitor;
  visit_json(as_text(bytes), limits.max_depth, visitor);
  DCP_CHECK(visitor.has_weight_map, kCorruptData, "the index has no weight_map");
  visitor.faults.throw_if_any("the index leads out of its folder", DCP_WHERE);
  return std::move(visitor.index);
}

Bytes encode_safetensors_index(const SafetensorsIndex& index) {
  std::string json =
      "{\n  \"metadata\": {\n    \"total_size\": " + std::to_string(index.total_size) + "\n  },\n  \"weight_map\": {";
  const char* separator = "\n    ";
  for (const auto& [name, file] : index.weight_map) {
    json += separator + json_string(name) + ": " + json_string(file);
    separator = ",\n    ";
  }
  json += index.weight_map.empty() ? "}\n}" : "\n  }\n}";
  return Bytes(json.begin(), json.end());
}

}  // namespace dcp

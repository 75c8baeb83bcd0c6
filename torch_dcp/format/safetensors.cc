#include "torch_dcp/format/safetensors.h"

#include <algorithm>
#include <limits>
#include <tuple>
#include <unordered_set>
#include <utility>

#include "torch_dcp/base/checked_math.h"
#include "torch_dcp/base/error.h"
#include "torch_dcp/format/safetensors_internal.h"
#include "torch_dcp/tensor/dtype.h"

namespace dcp {
namespace {

using namespace safetensors_form;  // NOLINT: the names of one small header

struct DtypeRow {
  std::string_view name;
  std::string_view dtype;  ///< Python's name
  bool is_written = true;
};

/// In the order of the package, by which it lays out files from the last to the first.
constexpr DtypeRow kDtypes[] = {
    {"BOOL", "bool"},
    {"U8", "uint8"},
    {"I8", "int8"},
    {"F8_E5M2", "float8_e5m2"},
    {"F8_E4M3", "float8_e4m3fn"},
    {"F8_E8M0", "float8_e8m0fnu", false},
    {"F8_E4M3FNUZ", "float8_e4m3fnuz"},
    {"F8_E5M2FNUZ", "float8_e5m2fnuz"},
    {"I16", "int16"},
    {"U16", "uint16"},
    {"F16", "float16"},
    {"BF16", "bfloat16"},
    {"I32", "int32"},
    {"U32", "uint32"},
    {"F32", "float32"},
    {"C64", "complex64"},
    {"F64", "float64"},
    {"I64", "int64"},
    {"U64", "uint64"},
};

/// The package has names for these, in which an element is no whole byte; LibTorch has no such tensors.
constexpr std::string_view kPackedDtypes[] = {"F4", "F6_E2M3", "F6_E3M2"};

ScalarType parse_dtype(std::string_view text, const std::string& name) {
  const auto dtype = dtype_from_safetensors(text);
  if (dtype) return *dtype;
  const bool is_known =
      std::find(std::begin(kPackedDtypes), std::end(kPackedDtypes), text) != std::end(kPackedDtypes) ||
      std::any_of(std::begin(kDtypes), std::end(kDtypes), [&](const DtypeRow& row) { return row.name == text; });
  DCP_CHECK(!is_known, kUnsupported, "tensor '", name, "': this LibTorch has no dtype ", text);
  DCP_THROW(kCorruptData, "tensor '", name, "': unknown dtype '", text.substr(0, 40), "'");
}

/// {"__metadata__": {name: text}, tensor: {"dtype": text, "shape": [...], "data_offsets": [begin, end]}}
class HeaderVisitor final : public JsonVisitor {
 public:
  explicit HeaderVisitor(const ParseLimits& limits) : limits_(limits) {}

  bool begin(const Path& path, bool is_object) override {
    if (path.size() < 2) {
      DCP_CHECK(is_object, kCorruptData, path.empty() ? "the header" : "'" + path[0] + "'",
                " is a list, and must be an object");
      return true;
    }
    refuse_in_metadata(path, "no text");
    if (path.size() > 2 || !is_list_field(path[1])) return false;
    DCP_CHECK(!is_object && !is_in_list_, kCorruptData, "tensor '", path[0], "': ", path[1],
              " is no list of whole numbers");
    is_in_list_ = true;
    return true;
  }

  void end(const Path& path) override {
    if (path.size() == 1) finish_entry(path[0]);
    is_in_list_ = false;
  }

  void key(const Path& path) override {
    if (path.size() == 1) {
      DCP_CHECK(names_.insert(path[0]).second, kCorruptData, "tensor '", path[0], "' is there twice");
      entry_ = {};
    } else if (path[0] == kMetadataField) {
      DCP_CHECK(!metadata_.contains(path[1]), kCorruptData, "the metadata has '", path[1], "' twice");
    } else {
      take_field(path);
    }
  }

  void integer(const Path& path, std::int64_t value) override {
    if (!is_in_list_) return other(path, "a number");
    if (path[1] == "shape") {
      add_number(entry_.shape, value, path, limits_.max_ndim);
    } else {
      add_number(entry_.offsets, value, path, 2);
    }
  }

  void text(const Path& path, std::string& value) override {
    if (path.size() == 2 && path[0] == kMetadataField) {
      metadata_.insert(path[1], std::move(value));
    } else if (path.size() == 2 && path[1] == "dtype") {
      entry_.dtype = parse_dtype(value, path[0]);
    } else {
      other(path, "a text");
    }
  }

  void other(const Path& path, const char* kind) override {
    DCP_CHECK(!path.empty(), kCorruptData, "the header is ", kind, ", and must be an object");
    DCP_CHECK(path.size() > 1, kCorruptData, "'", path[0], "' is ", kind, ", and must be an object");
    refuse_in_metadata(path, kind);
    DCP_CHECK(path[1] != "dtype" && !is_list_field(path[1]), kCorruptData, "tensor '", path[0], "': ", path[1], " has ",
              kind, " in it");
  }

  std::vector<SafetensorsTensor> tensors;
  OrderedMap<std::string, std::string>& metadata() { return metadata_; }

 private:
  struct Entry {
    std::optional<ScalarType> dtype;
    std::vector<std::int64_t> shape;
    std::vector<std::int64_t> offsets;
    bool has_dtype = false, has_shape = false, has_offsets = false;
  };

  static bool is_list_field(std::string_view field) { return field == "shape" || field == "data_offsets"; }

  static void refuse_in_metadata(const Path& path, const char* kind) {
    DCP_CHECK(path[0] != kMetadataField, kCorruptData, "the metadata's '", path[1], "' is ", kind,
              ", and must be a text");
  }

  void take_field(const Path& path) {
    bool* has = path[1] == "dtype"          ? &entry_.has_dtype
                : path[1] == "shape"        ? &entry_.has_shape
                : path[1] == "data_offsets" ? &entry_.has_offsets
                                            : nullptr;
    if (has == nullptr) return;
    DCP_CHECK(!*has, kCorruptData, "tensor '", path[0], "' has ", path[1], " twice");
    *has = true;
  }

  void finish_entry(const std::string& name) {
    if (name == kMetadataField) return;
    DCP_CHECK(entry_.dtype && entry_.has_shape && entry_.has_offsets, kCorruptData, "tensor '", name,
              "' lacks its dtype, shape or data_offsets");
    DCP_CHECK(entry_.offsets.size() == 2 && entry_.offsets[0] <= entry_.offsets[1], kCorruptData, "tensor '", name,
              "': data_offsets ", to_string(c10::IntArrayRef(entry_.offsets)), " are no range");
    SafetensorsTensor tensor;
    tensor.name = name;
    tensor.dtype = *entry_.dtype;
    tensor.sizes.assign(entry_.shape.begin(), entry_.shape.end());
    tensor.position = entry_.offsets[0];
    tensor.byte_count = entry_.offsets[1] - entry_.offsets[0];
    const auto numel = checked_numel(tensor.sizes);
    const auto bytes = numel ? checked_mul(*numel, element_bytes(tensor.dtype)) : std::nullopt;
    DCP_CHECK(bytes, kCorruptData, "tensor '", name, "': the bytes of shape ", to_string(tensor.sizes),
              " do not fit 64 bits");
    DCP_CHECK(*bytes == tensor.byte_count, kCorruptData, "tensor '", name, "': shape ", to_string(tensor.sizes), " of ",
              dtype_name(tensor.dtype), " takes ", *bytes, " bytes, its data_offsets have ", tensor.byte_count);
    tensors.push_back(std::move(tensor));
  }

  const ParseLimits& limits_;
  std::unordered_set<std::string> names_;
  OrderedMap<std::string, std::string> metadata_;
  Entry entry_;
  bool is_in_list_ = false;
};

/// Sorts the tensors by their bytes and checks that these fill the file.
void check_cover(SafetensorsHeader& header, std::int64_t data_bytes) {
  std::sort(header.tensors.begin(), header.tensors.end(), [](const SafetensorsTensor& a, const SafetensorsTensor& b) {
    return std::tie(a.position, a.byte_count, a.name) < std::tie(b.position, b.byte_count, b.name);
  });
  std::int64_t end = 0;
  const std::string* before = nullptr;
  for (const SafetensorsTensor& tensor : header.tensors) {
    DCP_CHECK(tensor.position >= end, kCorruptData, "tensor '", tensor.name, "' begins at byte ", tensor.position,
              " of the data, inside of tensor '", before ? *before : "", "', which ends at ", end);
    DCP_CHECK(tensor.position == end, kCorruptData, "bytes ", end, " to ", tensor.position,
              " of the data belong to no tensor; behind them lies '", tensor.name, "'");
    end = tensor.position + tensor.byte_count;
    DCP_CHECK(end <= data_bytes, kCorruptData, "tensor '", tensor.name, "' ends at byte ", end,
              " of the data, of which the file has ", data_bytes);
    before = &tensor.name;
  }
  DCP_CHECK(end == data_bytes, kCorruptData, "the file has ", data_bytes, " bytes of data, its tensors end at ", end,
            before ? " with '" + *before + "'" : std::string());
}

}  // namespace

int safetensors_form::dtype_rank(ScalarType dtype) {
  for (std::size_t i = 0; i < std::size(kDtypes); ++i) {
    if (dtype_from_name(kDtypes[i].dtype) == dtype) return static_cast<int>(i);
  }
  return -1;
}

std::optional<std::string_view> safetensors_dtype(ScalarType dtype) {
  const int rank = dtype_rank(dtype);
  if (rank < 0 || !kDtypes[rank].is_written) return std::nullopt;
  return kDtypes[rank].name;
}

std::optional<ScalarType> dtype_from_safetensors(std::string_view name) {
  for (const DtypeRow& row : kDtypes) {
    if (row.name == name) return dtype_from_name(row.dtype);
  }
  return std::nullopt;
}

SafetensorsHeader read_safetensors_header(const RandomAccessFile& file, const ParseLimits& limits) {
  const std::uint64_t file_bytes = file.size();
  DCP_CHECK(file_bytes >= kLengthBytes, kCorruptData, "no safetensors file: ", file_bytes,
            " bytes, too few for the length of a header");
  std::uint8_t length_bytes[kLengthBytes];
  file.read_at(0, length_bytes);
  std::uint64_t length = 0;
  for (std::size_t i = kLengthBytes; i-- > 0;) length = length << 8 | length_bytes[i];
  DCP_CHECK(length <= limits.max_header_bytes, kCorruptData, "no safetensors file: a header of ", length,
            " bytes; the limit is ", limits.max_header_bytes);
  DCP_CHECK(length <= file_bytes - kLengthBytes, kCorruptData, "the header ends at byte ", kLengthBytes + length,
            " of a file of ", file_bytes, " bytes");
  SafetensorsHeader header;
  {
    Bytes json(static_cast<std::size_t>(length));
    file.read_at(kLengthBytes, json);
    HeaderVisitor visitor(limits);
    try {
      visit_json(as_text(json), kMaxJsonDepth, visitor);
    } catch (Error& error) {
      error.add_context("in the header of a safetensors file");
      throw;
    }
    header.tensors = std::move(visitor.tensors);
    header.metadata = std::move(visitor.metadata());
  }
  header.data_position = static_cast<std::int64_t>(kLengthBytes + length);
  check_cover(header, static_cast<std::int64_t>(file_bytes) - header.data_position);
  read_sharding(header, limits);
  return header;
}

}  // namespace dcp

#include <algorithm>
#include <array>
#include <ostream>
#include <string>
#include <utility>

#include "torch_dcp/base/checked_math.h"
#include "torch_dcp/base/error.h"
#include "torch_dcp/format/metadata_names_internal.h"
#include "torch_dcp/format/metadata_pickle.h"
#include "torch_dcp/pickle/reader.h"
#include "torch_dcp/tensor/dtype.h"

namespace dcp {
namespace {

namespace names = metadata_names;
using pickle::NodeKind;
using pickle::Ref;

/// A field that this library does not know may hold this many plain values.
constexpr std::size_t kMaxUnknownValues = 10'000;

/// Where in the metadata a value stands. Spelled only in errors.
struct Place {
  std::string_view part;  ///< a field of Metadata
  std::optional<std::string_view> key;
  std::string_view field;

  Place at(std::string_view name) const { return {part, key, name}; }
};

std::ostream& operator<<(std::ostream& out, const Place& place) {
  out << ".metadata: " << place.part;
  if (place.key) out << " of key '" << *place.key << "'";
  if (!place.field.empty()) out << ", " << place.field;
  return out;
}

/// None and a field that is not there mean the same in all of them.
bool is_absent(Ref value) { return value == nullptr || value->kind == NodeKind::kNone; }

/// Spells what stands there in place of what was wanted.
std::string describe_node(Ref node) {
  if (node == nullptr) return "nothing";
  if (node->kind == NodeKind::kGlobal) return c10::str("the name ", node->module, ".", node->text);
  if (node->kind != NodeKind::kCall) return c10::str("a ", pickle::node_kind_name(node->kind));
  return node->callee->kind == NodeKind::kGlobal
             ? c10::str("an object of ", node->callee->module, ".", node->callee->text)
             : "an object";
}

bool is_dunder(std::string_view name) { return name.starts_with("__"); }

/// Refuses what could be more than data in a field of a later PyTorch, which is then ignored.
void check_unknown_field(Ref name, Ref value, const Place& place) {
  DCP_CHECK(!is_dunder(name->text), kCorruptData, place, ": a field '", name->text, "' is not allowed");
  std::vector<Ref> pending{value};
  std::size_t seen = 0;
  while (!pending.empty()) {
    const Ref node = pending.back();
    pending.pop_back();
    DCP_CHECK(++seen <= kMaxUnknownValues, kUnsupported, place, ": the unknown field '", name->text, "' is too large");
    DCP_CHECK(node->kind != NodeKind::kGlobal && node->kind != NodeKind::kCall && node->kind != NodeKind::kPersistentId,
              kUnsupported, place, ": the unknown field '", name->text, "' holds ", describe_node(node));
    const std::size_t children = node->items.size() + 2 * node->entries.size();
    DCP_CHECK(children <= kMaxUnknownValues - seen, kUnsupported, place, ": the unknown field '", name->text,
              "' is too large");
    pending.insert(pending.end(), node->items.begin(), node->items.end());
    for (const auto& [key, entry] : node->entries) pending.insert(pending.end(), {key, entry});
  }
}

/// Whether the node is a new object of the class: nothing but a name and a state.
bool is_object(Ref node, std::string_view module, std::string_view cls) {
  return node != nullptr && node->kind == NodeKind::kCall && node->is_new_object &&
         node->callee->is_global(module, cls) && node->items.empty() && node->entries.empty() && node->appended.empty();
}

/// Whether the node is `callee(argument)`; `argument` is set then.
bool is_call_of_one(Ref node, Ref& argument) {
  if (node == nullptr || node->kind != NodeKind::kCall || node->is_new_object || node->items.size() != 1 ||
      node->state != nullptr || !node->entries.empty() || !node->appended.empty()) {
    return false;
  }
  argument = node->items[0];
  return true;
}

/// The fields of an object by the places of their names in `known`; null where there is none.
template <std::size_t N>
std::array<Ref, N> read_fields(Ref object, const std::array<std::string_view, N>& known, const Place& place) {
  std::array<Ref, N> fields{};
  if (object->state == nullptr) return fields;
  DCP_CHECK(object->state->kind == NodeKind::kDict, kCorruptData, place, ": the state of ", describe_node(object),
            " is ", describe_node(object->state), ", not a dict");
  for (const auto& [name, value] : object->state->entries) {
    DCP_CHECK(name->kind == NodeKind::kText, kCorruptData, place, ": a field is named by ", describe_node(name));
    const auto found = std::find(known.begin(), known.end(), name->text);
    if (found == known.end()) {
      check_unknown_field(name, value, place);
      continue;
    }
    Ref& field = fields[static_cast<std::size_t>(found - known.begin())];
    DCP_CHECK(field == nullptr, kCorruptData, place, ": the field '", name->text, "' is there twice");
    field = value;
  }
  return fields;
}

template <std::size_t N>
std::array<Ref, N> read_object(Ref node, std::string_view module, std::string_view cls,
                               const std::array<std::string_view, N>& known, const Place& place) {
  DCP_CHECK(is_object(node, module, cls), kCorruptData, place, ": must be a ", cls, ", is ", describe_node(node));
  return read_fields(node, known, place);
}

std::string_view read_text(Ref node, const Place& place) {
  DCP_CHECK(node != nullptr && node->kind == NodeKind::kText, kCorruptData, place, ": must be a str, is ",
            describe_node(node));
  return node->text;
}

std::int64_t read_int(Ref node, const Place& place) {
  DCP_CHECK(node == nullptr || node->kind != NodeKind::kBigInt, kCorruptData, place, ": ", node->text,
            " does not fit 64 bits");
  DCP_CHECK(node != nullptr && node->kind == NodeKind::kInt, kCorruptData, place, ": must be an int, is ",
            describe_node(node));
  return node->integer;
}

std::int64_t read_count(Ref node, const Place& place) {
  const std::int64_t value = read_int(node, place);
  DCP_CHECK(value >= 0, kCorruptData, place, ": ", value, " is negative");
  return value;
}

bool read_bool(Ref node, const Place& place) {
  DCP_CHECK(node->kind == NodeKind::kBool, kCorruptData, place, ": must be a bool, is ", describe_node(node));
  return node->integer != 0;
}

std::optional<std::string> read_optional_text(Ref node, const Place& place) {
  if (is_absent(node)) return std::nullopt;
  return std::string(read_text(node, place));
}

/// A torch.Size, or the tuple that one is.
Sizes read_sizes(Ref node, const ParseLimits& limits, const Place& place) {
  Ref tuple = node;
  if (node != nullptr && node->kind == NodeKind::kCall) {
    DCP_CHECK(node->callee->is_global("torch", "Size") && is_call_of_one(node, tuple), kCorruptData, place,
              ": must be a torch.Size, is ", describe_node(node));
  }
  DCP_CHECK(tuple != nullptr && tuple->kind == NodeKind::kTuple, kCorruptData, place, ": must be a torch.Size, is ",
            describe_node(tuple));
  DCP_CHECK(tuple->items.size() <= limits.max_ndim, kUnsupported, place, ": ", tuple->items.size(),
            " dimensions, more than ", limits.max_ndim);
  Sizes sizes;
  sizes.reserve(tuple->items.size());
  for (Ref item : tuple->items) sizes.push_back(read_count(item, place));
  return sizes;
}

// ---- the state dict's metadata ------------------------------------------------------------------

c10::ScalarType read_dtype(Ref node, const Place& place) {
  DCP_CHECK(node->kind == NodeKind::kGlobal && node->module == "torch", kCorruptData, place,
            ": must be a torch.dtype, is ", describe_node(node));
  const auto dtype = dtype_from_name(node->text);
  DCP_CHECK(dtype, kUnsupported, place, ": this LibTorch has no dtype torch.", node->text);
  return *dtype;
}

void check_layout(Ref node, const Place& place) {
  Ref name = nullptr;
  DCP_CHECK(is_call_of_one(node, name) && node->callee->is_global("torch.serialization", "_get_layout"), kCorruptData,
            place, ": must be a torch.layout, is ", describe_node(node));
  const std::string_view layout = read_text(name, place);
  DCP_CHECK(layout == "torch.strided", kUnsupported, place, ": layout '", layout, "', only torch.strided is read");
}

bool is_memory_format_class(Ref node) {
  return node->is_global(names::kModule, names::kMemoryFormat) ||
         node->is_global(names::kOldModule, names::kOldMemoryFormat);
}

/// Early Python 3.11 writes an enum's value as `getattr(class, name)`; this is the only call of getattr that is read.
std::optional<MemoryFormat> memory_format_by_name(Ref node) {
  if (node->kind != NodeKind::kCall || node->is_new_object || node->state != nullptr || !node->entries.empty() ||
      !node->appended.empty() || node->items.size() != 2) {
    return std::nullopt;
  }
  if (!node->callee->is_global("builtins", "getattr") && !node->callee->is_global("__builtin__", "getattr")) {
    return std::nullopt;
  }
  if (!is_memory_format_class(node->items[0]) || node->items[1]->kind != NodeKind::kText) return std::nullopt;
  const std::string_view name = node->items[1]->text;
  if (name == "TORCH_CONTIGUOUS_FORMAT") return MemoryFormat::kContiguous;
  if (name == "TORCH_CHANNELS_LAST") return MemoryFormat::kChannelsLast;
  if (name == "TORCH_PRESERVE_FORMAT") return MemoryFormat::kPreserve;
  return std::nullopt;
}

MemoryFormat read_memory_format(Ref node, const Place& place) {
  if (const auto format = memory_format_by_name(node)) return *format;
  Ref value = nullptr;
  DCP_CHECK(is_call_of_one(node, value) && is_memory_format_class(node->callee), kCorruptData, place,
            ": must be a memory format, is ", describe_node(node));
  const std::int64_t number = read_count(value, place);
  DCP_CHECK(number <= static_cast<std::int64_t>(MemoryFormat::kPreserve), kCorruptData, place, ": ", number,
            " is no memory format");
  return static_cast<MemoryFormat>(number);
}

TensorProperties read_properties(Ref node, const Place& place) {
  DCP_CHECK(is_object(node, names::kModule, names::kTensorProperties) ||
                is_object(node, names::kOldModule, names::kTensorProperties),
            kCorruptData, place, ": must be TensorProperties, is ", describe_node(node));
  const Ref state = node->state;
  DCP_CHECK(state != nullptr && state->kind == NodeKind::kTuple && state->items.size() == 5, kCorruptData, place,
            ": the state must be a tuple of 5, is ", describe_node(state));
  TensorProperties properties;
  properties.dtype = read_dtype(state->items[0], place.at("dtype"));
  check_layout(state->items[1], place.at("layout"));
  properties.requires_grad = read_bool(state->items[2], place.at("requires_grad"));
  properties.memory_format = read_memory_format(state->items[3], place.at("memory_format"));
  properties.pin_memory = read_bool(state->items[4], place.at("pin_memory"));
  return properties;
}

Box read_chunk(Ref node, std::size_t ndim, const ParseLimits& limits, const Place& place) {
  const auto [offsets, sizes] =
      read_object<2>(node, names::kModule, names::kChunkStorageMetadata, {"offsets", "sizes"}, place);
  Box box{read_sizes(offsets, limits, place.at("offsets of a chunk")),
          read_sizes(sizes, limits, place.at("sizes of a chunk"))};
  DCP_CHECK(box.offsets.size() == ndim && box.sizes.size() == ndim, kCorruptData, place, ": a chunk with ",
            box.offsets.size(), " offsets and ", box.sizes.size(), " sizes in a tensor of ", ndim, " dimensions");
  for (std::size_t dim = 0; dim < ndim; ++dim) {
    DCP_CHECK(checked_add(box.offsets[dim], box.sizes[dim]), kCorruptData, place, ": the end of chunk ", to_string(box),
              " overflows");
  }
  DCP_CHECK(checked_numel(box.sizes), kCorruptData, place, ": the elements of chunk ", to_string(box), " overflow");
  return box;
}

TensorStorageMetadata read_tensor(Ref node, const ParseLimits& limits, const Place& place) {
  const auto [properties, size, chunks] =
      read_object<3>(node, names::kModule, names::kTensorStorageMetadata, {"properties", "size", "chunks"}, place);
  TensorStorageMetadata tensor;
  tensor.properties = read_properties(properties, place.at("properties"));
  tensor.size = read_sizes(size, limits, place.at("size"));
  const auto numel = checked_numel(tensor.size);
  DCP_CHECK(numel && checked_mul(*numel, element_bytes(tensor.properties.dtype)), kCorruptData, place.at("size"),
            ": the bytes of ", to_string(tensor.size), " overflow");
  DCP_CHECK(chunks != nullptr && chunks->kind == NodeKind::kList, kCorruptData, place.at("chunks"),
            ": must be a list, is ", describe_node(chunks));
  tensor.chunks.reserve(chunks->items.size());
  for (Ref chunk : chunks->items) {
    tensor.chunks.push_back(read_chunk(chunk, tensor.size.size(), limits, place.at("chunks")));
  }
  return tensor;
}

StorageMetadata read_storage_metadata(Ref node, const ParseLimits& limits, const Place& place) {
  if (is_object(node, names::kModule, names::kBytesStorageMetadata)) {
    read_fields<0>(node, {}, place);
    return BytesStorageMetadata();
  }
  return read_tensor(node, limits, place);
}

Ref expect_dict(Ref node, const Place& place) {
  DCP_CHECK(node != nullptr && node->kind == NodeKind::kDict, kCorruptData, place, ": must be a dict, is ",
            describe_node(node));
  return node;
}

OrderedMap<std::string, StorageMetadata> read_state(Ref node, const ParseLimits& limits) {
  const Place place{"state_dict_metadata", {}, {}};
  OrderedMap<std::string, StorageMetadata> state;
  state.reserve(expect_dict(node, place)->entries.size());
  for (const auto& [key_node, value] : node->entries) {
    const std::string_view key = read_text(key_node, place.at("a key"));
    const bool is_new = state.insert(std::string(key), read_storage_metadata(value, limits, {place.part, key, {}}));
    DCP_CHECK(is_new, kCorruptData, place, ": the key '", key, "' is there twice");
  }
  return state;
}

// ---- planner data ---------------------------------------------------------------------------------

PathItem read_path_item(Ref node, const ParseLimits& limits, const Place& place) {
  if (node->kind == NodeKind::kText) return PathItem::dict_key(std::string(node->text));
  const std::int64_t index = read_count(node, place);
  DCP_CHECK(static_cast<std::uint64_t>(index) <= limits.max_list_index, kUnsupported, place, ": the list position ",
            index, " is larger than ", limits.max_list_index);
  return PathItem::list_index(index);
}

Path read_path(Ref node, const ParseLimits& limits, const Place& place) {
  DCP_CHECK(node->kind == NodeKind::kTuple, kCorruptData, place, ": a path must be a tuple, is ", describe_node(node));
  DCP_CHECK(!node->items.empty(), kCorruptData, place, ": the path is empty");
  DCP_CHECK(node->items.size() <= limits.max_depth, kUnsupported, place, ": a path of ", node->items.size(), " steps");
  Path path;
  path.reserve(node->items.size());
  for (Ref item : node->items) path.push_back(read_path_item(item, limits, place));
  DCP_CHECK(path[0].step == PathStep::kDictKey, kCorruptData, place,
            ": the path begins with a list position, but a state dict is a dict");
  return path;
}

std::optional<OrderedMap<std::string, Path>> read_planner_data(Ref node, const ParseLimits& limits) {
  if (is_absent(node)) return std::nullopt;
  const Place place{"planner_data", {}, {}};
  OrderedMap<std::string, Path> paths;
  paths.reserve(expect_dict(node, place)->entries.size());
  for (const auto& [key_node, value] : node->entries) {
    const std::string_view key = read_text(key_node, place.at("a key"));
    const bool is_new = paths.insert(std::string(key), read_path(value, limits, {place.part, key, {}}));
    DCP_CHECK(is_new, kCorruptData, place, ": the key '", key, "' is there twice");
  }
  return paths;
}

// ---- storage data ---------------------------------------------------------------------------------

/// Whether the name can only mean a data file in the checkpoint's own folder, on any system.
bool is_plain_file_name(std::string_view name) {
  constexpr std::string_view kForbidden("/\\:\0", 4);
  return !name.empty() && name != "." && name != ".." && name != ".metadata" &&
         name.find_first_of(kForbidden) == std::string_view::npos;
}

MetadataIndex read_index(Ref node, const ParseLimits& limits) {
  const Place place{"storage_data", {}, {}};
  const auto [fqn, index, offset] =
      read_object<3>(node, names::kModule, names::kMetadataIndex, {"fqn", "index", "offset"}, place.at("a key"));
  MetadataIndex result;
  const std::string_view key = read_text(fqn, place.at("fqn of a key"));
  const Place of_key{place.part, key, {}};
  result.fqn = key;
  if (!is_absent(index)) result.index = read_int(index, of_key.at("index"));
  if (!is_absent(offset)) result.offset = read_sizes(offset, limits, of_key.at("offset of the chunk"));
  return result;
}

std::vector<std::string> read_transforms(Ref node, const Place& place) {
  std::vector<std::string> transforms;
  if (is_absent(node)) return transforms;
  DCP_CHECK(node->kind == NodeKind::kList || node->kind == NodeKind::kTuple, kCorruptData, place,
            ": must be a list, is ", describe_node(node));
  transforms.reserve(node->items.size());
  for (Ref item : node->items) transforms.emplace_back(read_text(item, place));
  return transforms;
}

StorageInfo read_storage_info(Ref node, const Place& place) {
  const auto [path, offset, length, transforms] =
      read_object<4>(node, names::kFileSystemModule, names::kStorageInfo,
                     {"relative_path", "offset", "length", "transform_descriptors"}, place);
  StorageInfo info;
  info.relative_path = read_text(path, place.at("relative_path"));
  DCP_CHECK(is_plain_file_name(info.relative_path), kCorruptData, place.at("relative_path"), ": '", info.relative_path,
            "' is not the plain name of a data file");
  info.offset = read_count(offset, place.at("offset"));
  info.length = read_count(length, place.at("length"));
  DCP_CHECK(checked_add(info.offset, info.length), kCorruptData, place, ": offset ", info.offset, " + length ",
            info.length, " overflows");
  info.transform_descriptors = read_transforms(transforms, place.at("transform_descriptors"));
  return info;
}

OrderedMap<MetadataIndex, StorageInfo, MetadataIndexHash> read_storage_data(Ref node, const ParseLimits& limits) {
  const Place place{"storage_data", {}, {}};
  OrderedMap<MetadataIndex, StorageInfo, MetadataIndexHash> storage;
  storage.reserve(expect_dict(node, place)->entries.size());
  for (const auto& [key, value] : node->entries) {
    MetadataIndex index = read_index(key, limits);
    StorageInfo info = read_storage_info(value, {place.part, index.fqn, {}});
    const bool is_new = storage.insert(std::move(index), std::move(info));
    DCP_CHECK(is_new, kCorruptData, place, ": '", to_string(read_index(key, limits)), "' is there twice");
  }
  return storage;
}

// ---- the rest -------------------------------------------------------------------------------------

/// Joins a path's parts, as `pathlib` pickles them up to Python 3.12.
std::string join_parts(const pickle::List<Ref>& parts, char separator, const Place& place) {
  if (parts.empty()) return ".";
  std::string path;
  for (Ref part : parts) {
    if (!path.empty() && path.back() != separator) path.push_back(separator);
    path += read_text(part, place);
  }
  return path;
}

/// A str, or any form in which a Python pickles a path.
std::optional<std::string> read_checkpoint_id(Ref node, const Place& place) {
  if (node == nullptr || node->kind != NodeKind::kCall) return read_optional_text(node, place);
  const Ref cls = node->callee;
  const bool is_pathlib =
      cls->kind == NodeKind::kGlobal && (cls->module == "pathlib" || cls->module == "pathlib._local");
  const bool is_posix = is_pathlib && (cls->text == "PosixPath" || cls->text == "PurePosixPath");
  const bool is_windows = is_pathlib && (cls->text == "WindowsPath" || cls->text == "PureWindowsPath");
  DCP_CHECK((is_posix || is_windows) && !node->is_new_object && node->state == nullptr && node->entries.empty() &&
                node->appended.empty(),
            kCorruptData, place, ": must be a path, is ", describe_node(node));
  return join_parts(node->items, is_windows ? '\\' : '/', place);
}

std::optional<StorageMeta> read_storage_meta(Ref node) {
  if (is_absent(node)) return std::nullopt;
  const Place place{"storage_meta", {}, {}};
  const auto [checkpoint_id, save_id, load_id] =
      read_object<3>(node, names::kModule, names::kStorageMeta, {"checkpoint_id", "save_id", "load_id"}, place);
  StorageMeta meta;
  meta.checkpoint_id = read_checkpoint_id(checkpoint_id, place.at("checkpoint_id"));
  meta.save_id = read_optional_text(save_id, place.at("save_id"));
  meta.load_id = read_optional_text(load_id, place.at("load_id"));
  return meta;
}

}  // namespace

Metadata decode_metadata(ByteSpan bytes, const ParseLimits& limits) {
  const pickle::Pickle pickle = pickle::parse(bytes, limits);
  const auto [state, planner_data, storage_data, storage_meta, version] = read_object<5>(
      pickle.root, names::kModule, names::kMetadata,
      {"state_dict_metadata", "planner_data", "storage_data", "storage_meta", "version"}, {"the root", {}, {}});
  Metadata metadata;
  metadata.state_dict_metadata = read_state(state, limits);
  metadata.planner_data = read_planner_data(planner_data, limits);
  metadata.storage_data = read_storage_data(storage_data, limits);
  metadata.storage_meta = read_storage_meta(storage_meta);
  metadata.version = read_optional_text(version, {"version", {}, {}});
  return metadata;
}

}  // namespace dcp

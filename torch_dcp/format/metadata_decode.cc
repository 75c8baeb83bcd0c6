#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "torch_dcp/base/checked_math.h"
#include "torch_dcp/base/error.h"
#include "torch_dcp/format/copy_budget_internal.h"
#include "torch_dcp/format/metadata_decoding_internal.h"
#include "torch_dcp/format/metadata_names_internal.h"
#include "torch_dcp/format/metadata_pickle.h"
#include "torch_dcp/pickle/reader.h"
#include "torch_dcp/tensor/dtype.h"

namespace dcp {
namespace {

namespace names = metadata_names;
using metadata_decoding::Bounds;
using metadata_decoding::copy_text;
using metadata_decoding::describe_node;
using metadata_decoding::is_absent;
using metadata_decoding::is_call_of_one;
using metadata_decoding::is_object;
using metadata_decoding::NodeKind;
using metadata_decoding::Place;
using metadata_decoding::read_bool;
using metadata_decoding::read_count;
using metadata_decoding::read_fields;
using metadata_decoding::read_int;
using metadata_decoding::read_object;
using metadata_decoding::read_optional_text;
using metadata_decoding::read_sizes;
using metadata_decoding::read_text;
using metadata_decoding::Ref;

// ---- the state dict's metadata ------------------------------------------------------------------

NamedDtype read_dtype(Ref node, const Place& place) {
  DCP_CHECK(node->kind == NodeKind::kGlobal && node->module() == "torch", kCorruptData, place,
            ": must be a torch.dtype, is ", describe_node(node));
  const auto dtype = named_dtype(node->text());
  DCP_CHECK(dtype, kUnsupported, place, ": this LibTorch has no dtype torch.", node->text());
  return *dtype;
}

void check_layout(Ref node, const Place& place) {
  Ref name = nullptr;
  DCP_CHECK(is_call_of_one(node, name) && node->callee()->is_global("torch.serialization", "_get_layout"), kCorruptData,
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
  if (node->kind != NodeKind::kCall || node->is_new_object || node->state() != nullptr || !node->entries().empty() ||
      !node->appended().empty() || node->items().size() != 2) {
    return std::nullopt;
  }
  if (!node->callee()->is_global("builtins", "getattr") && !node->callee()->is_global("__builtin__", "getattr")) {
    return std::nullopt;
  }
  if (!is_memory_format_class(node->items()[0]) || node->items()[1]->kind != NodeKind::kText) return std::nullopt;
  const std::string_view name = node->items()[1]->text();
  if (name == "TORCH_CONTIGUOUS_FORMAT") return MemoryFormat::kContiguous;
  if (name == "TORCH_CHANNELS_LAST") return MemoryFormat::kChannelsLast;
  if (name == "TORCH_PRESERVE_FORMAT") return MemoryFormat::kPreserve;
  return std::nullopt;
}

MemoryFormat read_memory_format(Ref node, const Place& place) {
  if (const auto format = memory_format_by_name(node)) return *format;
  Ref value = nullptr;
  DCP_CHECK(is_call_of_one(node, value) && is_memory_format_class(node->callee()), kCorruptData, place,
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
  const Ref state = node->state();
  DCP_CHECK(state != nullptr && state->kind == NodeKind::kTuple && state->items().size() == 5, kCorruptData, place,
            ": the state must be a tuple of 5, is ", describe_node(state));
  TensorProperties properties;
  const NamedDtype dtype = read_dtype(state->items()[0], place.at("dtype"));
  properties.dtype = dtype.dtype;
  properties.newer_dtype = dtype.newer;
  check_layout(state->items()[1], place.at("layout"));
  properties.requires_grad = read_bool(state->items()[2], place.at("requires_grad"));
  properties.memory_format = read_memory_format(state->items()[3], place.at("memory_format"));
  properties.pin_memory = read_bool(state->items()[4], place.at("pin_memory"));
  return properties;
}

Box read_chunk(Ref node, std::size_t ndim, const Bounds& bounds, const Place& place) {
  const auto [offsets, sizes] =
      read_object<2>(node, names::kModule, names::kChunkStorageMetadata, {"offsets", "sizes"}, place);
  bounds.budget.charge_value();
  Box box{read_sizes(offsets, bounds, place.at("offsets of a chunk")),
          read_sizes(sizes, bounds, place.at("sizes of a chunk"))};
  DCP_CHECK(box.offsets.size() == ndim && box.sizes.size() == ndim, kCorruptData, place, ": a chunk with ",
            box.offsets.size(), " offsets and ", box.sizes.size(), " sizes in a tensor of ", ndim, " dimensions");
  for (std::size_t dim = 0; dim < ndim; ++dim) {
    DCP_CHECK(checked_add(box.offsets[dim], box.sizes[dim]), kCorruptData, place, ": the end of chunk ", to_string(box),
              " overflows");
  }
  DCP_CHECK(checked_numel(box.sizes), kCorruptData, place, ": the elements of chunk ", to_string(box), " overflow");
  return box;
}

TensorStorageMetadata read_tensor(Ref node, const Bounds& bounds, const Place& place) {
  const auto [properties, size, chunks] =
      read_object<3>(node, names::kModule, names::kTensorStorageMetadata, {"properties", "size", "chunks"}, place);
  TensorStorageMetadata tensor;
  tensor.properties = read_properties(properties, place.at("properties"));
  tensor.size = read_sizes(size, bounds, place.at("size"));
  const auto numel = checked_numel(tensor.size);
  DCP_CHECK(numel && checked_mul(*numel, element_bytes(tensor.properties.dtype)), kCorruptData, place.at("size"),
            ": the bytes of ", to_string(tensor.size), " overflow");
  DCP_CHECK(chunks != nullptr && chunks->kind == NodeKind::kList, kCorruptData, place.at("chunks"),
            ": must be a list, is ", describe_node(chunks));
  tensor.chunks.reserve(chunks->items().size(), tensor.size.size());
  for (Ref chunk : chunks->items()) {
    tensor.chunks.push_back(read_chunk(chunk, tensor.size.size(), bounds, place.at("chunks")));
  }
  return tensor;
}

StorageMetadata read_storage_metadata(Ref node, const Bounds& bounds, const Place& place) {
  if (is_object(node, names::kModule, names::kBytesStorageMetadata)) {
    read_fields<0>(node, {}, place);
    return BytesStorageMetadata();
  }
  return read_tensor(node, bounds, place);
}

Ref expect_dict(Ref node, const Place& place) {
  DCP_CHECK(node != nullptr && node->kind == NodeKind::kDict, kCorruptData, place, ": must be a dict, is ",
            describe_node(node));
  return node;
}

OrderedMap<std::string, StorageMetadata> read_state(Ref node, const Bounds& bounds) {
  const Place place{"state_dict_metadata", {}, {}};
  OrderedMap<std::string, StorageMetadata> state;
  state.reserve(expect_dict(node, place)->entries().size());
  for (const auto& [key_node, value] : node->entries()) {
    const std::string_view key = read_text(key_node, place.at("a key"));
    bounds.budget.charge_value(2 * key.size());  // a map keeps its keys twice
    const bool is_new = state.insert(std::string(key), read_storage_metadata(value, bounds, {place.part, key, {}}));
    DCP_CHECK(is_new, kCorruptData, place, ": the key '", key, "' is there twice");
  }
  return state;
}

// ---- planner data ---------------------------------------------------------------------------------

PathItem read_path_item(Ref node, const Bounds& bounds, const Place& place) {
  bounds.budget.charge_value();
  if (node->kind == NodeKind::kText) return PathItem::dict_key(copy_text(node->text(), bounds));
  const std::int64_t index = read_count(node, place);
  DCP_CHECK(static_cast<std::uint64_t>(index) <= bounds.limits.max_list_index, kUnsupported, place,
            ": the list position ", index, " is larger than ", bounds.limits.max_list_index);
  return PathItem::list_index(index);
}

Path read_path(Ref node, const Bounds& bounds, const Place& place) {
  DCP_CHECK(node->kind == NodeKind::kTuple, kCorruptData, place, ": a path must be a tuple, is ", describe_node(node));
  DCP_CHECK(!node->items().empty(), kCorruptData, place, ": the path is empty");
  DCP_CHECK(node->items().size() <= bounds.limits.max_depth, kUnsupported, place, ": a path of ", node->items().size(),
            " steps");
  Path path;
  path.reserve(node->items().size());
  for (Ref item : node->items()) path.push_back(read_path_item(item, bounds, place));
  DCP_CHECK(path[0].step == PathStep::kDictKey, kCorruptData, place,
            ": the path begins with a list position, but a state dict is a dict");
  return path;
}

std::optional<OrderedMap<std::string, Path>> read_planner_data(Ref node, const Bounds& bounds) {
  if (is_absent(node)) return std::nullopt;
  const Place place{"planner_data", {}, {}};
  OrderedMap<std::string, Path> paths;
  paths.reserve(expect_dict(node, place)->entries().size());
  for (const auto& [key_node, value] : node->entries()) {
    const std::string_view key = read_text(key_node, place.at("a key"));
    bounds.budget.charge_value(2 * key.size());
    const bool is_new = paths.insert(std::string(key), read_path(value, bounds, {place.part, key, {}}));
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

MetadataIndex read_index(Ref node, const Bounds& bounds) {
  const Place place{"storage_data", {}, {}};
  const auto [fqn, index, offset] =
      read_object<3>(node, names::kModule, names::kMetadataIndex, {"fqn", "index", "offset"}, place.at("a key"));
  MetadataIndex result;
  const std::string_view key = read_text(fqn, place.at("fqn of a key"));
  bounds.budget.charge_value(2 * key.size());
  const Place of_key{place.part, key, {}};
  result.fqn = key;
  if (!is_absent(index)) result.index = read_int(index, of_key.at("index"));
  if (!is_absent(offset)) result.offset = read_sizes(offset, bounds, of_key.at("offset of the chunk"));
  return result;
}

std::vector<std::string> read_transforms(Ref node, const Bounds& bounds, const Place& place) {
  std::vector<std::string> transforms;
  if (is_absent(node)) return transforms;
  DCP_CHECK(node->kind == NodeKind::kList || node->kind == NodeKind::kTuple, kCorruptData, place,
            ": must be a list, is ", describe_node(node));
  for (Ref item : node->items()) {
    bounds.budget.charge(sizeof(std::string));
    transforms.push_back(copy_text(read_text(item, place), bounds));
  }
  return transforms;
}

StorageInfo read_storage_info(Ref node, const Bounds& bounds, const Place& place) {
  const auto [path, offset, length, transforms] =
      read_object<4>(node, names::kFileSystemModule, names::kStorageInfo,
                     {"relative_path", "offset", "length", "transform_descriptors"}, place);
  StorageInfo info;
  info.relative_path = copy_text(read_text(path, place.at("relative_path")), bounds);
  DCP_CHECK(is_plain_file_name(info.relative_path), kCorruptData, place.at("relative_path"), ": '", info.relative_path,
            "' is not the plain name of a data file");
  info.offset = read_count(offset, place.at("offset"));
  info.length = read_count(length, place.at("length"));
  DCP_CHECK(checked_add(info.offset, info.length), kCorruptData, place, ": offset ", info.offset, " + length ",
            info.length, " overflows");
  info.transform_descriptors = read_transforms(transforms, bounds, place.at("transform_descriptors"));
  return info;
}

StorageTable read_storage_data(Ref node, const Bounds& bounds) {
  const Place place{"storage_data", {}, {}};
  StorageTable storage;
  storage.reserve(expect_dict(node, place)->entries().size());
  for (const auto& [key, value] : node->entries()) {
    const MetadataIndex index = read_index(key, bounds);
    const bool is_new = storage.insert(index, read_storage_info(value, bounds, {place.part, index.fqn, {}}));
    DCP_CHECK(is_new, kCorruptData, place, ": '", to_string(index), "' is there twice");
  }
  storage.shrink_to_fit();
  return storage;
}

// ---- the rest -------------------------------------------------------------------------------------

/// Joins a path's parts, as `pathlib` pickles them up to Python 3.12.
std::string join_parts(const pickle::List<Ref>& parts, char separator, const Bounds& bounds, const Place& place) {
  if (parts.empty()) return ".";
  std::string path;
  for (Ref part : parts) {
    if (!path.empty() && path.back() != separator) path.push_back(separator);
    const std::string_view text = read_text(part, place);
    bounds.budget.charge(2 * text.size() + 2);  // a string grows by doubling
    path += text;
  }
  return path;
}

/// A str, or any form in which a Python pickles a path.
std::optional<std::string> read_checkpoint_id(Ref node, const Bounds& bounds, const Place& place) {
  if (node == nullptr || node->kind != NodeKind::kCall) return read_optional_text(node, bounds, place);
  const Ref cls = node->callee();
  const bool is_pathlib =
      cls->kind == NodeKind::kGlobal && (cls->module() == "pathlib" || cls->module() == "pathlib._local");
  const bool is_posix = is_pathlib && (cls->text() == "PosixPath" || cls->text() == "PurePosixPath");
  const bool is_windows = is_pathlib && (cls->text() == "WindowsPath" || cls->text() == "PureWindowsPath");
  DCP_CHECK((is_posix || is_windows) && !node->is_new_object && node->state() == nullptr && node->entries().empty() &&
                node->appended().empty(),
            kCorruptData, place, ": must be a path, is ", describe_node(node));
  return join_parts(node->items(), is_windows ? '\\' : '/', bounds, place);
}

std::optional<StorageMeta> read_storage_meta(Ref node, const Bounds& bounds) {
  if (is_absent(node)) return std::nullopt;
  const Place place{"storage_meta", {}, {}};
  const auto [checkpoint_id, save_id, load_id] =
      read_object<3>(node, names::kModule, names::kStorageMeta, {"checkpoint_id", "save_id", "load_id"}, place);
  StorageMeta meta;
  meta.checkpoint_id = read_checkpoint_id(checkpoint_id, bounds, place.at("checkpoint_id"));
  meta.save_id = read_optional_text(save_id, bounds, place.at("save_id"));
  meta.load_id = read_optional_text(load_id, bounds, place.at("load_id"));
  return meta;
}

}  // namespace

Metadata decode_metadata(ByteSpan bytes, const ParseLimits& limits) {
  const pickle::Pickle pickle = pickle::parse(bytes, limits);
  CopyBudget budget = CopyBudget::of_metadata(bytes.size());
  const Bounds bounds{limits, budget};
  const auto [state, planner_data, storage_data, storage_meta, version] = read_object<5>(
      pickle.root, names::kModule, names::kMetadata,
      {"state_dict_metadata", "planner_data", "storage_data", "storage_meta", "version"}, {"the root", {}, {}});
  Metadata metadata;
  metadata.state_dict_metadata = read_state(state, bounds);
  metadata.planner_data = read_planner_data(planner_data, bounds);
  metadata.storage_data = read_storage_data(storage_data, bounds);
  metadata.storage_meta = read_storage_meta(storage_meta, bounds);
  metadata.version = read_optional_text(version, bounds, {"version", {}, {}});
  return metadata;
}

}  // namespace dcp

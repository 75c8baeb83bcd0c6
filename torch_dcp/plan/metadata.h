#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "torch_dcp/base/ordered_map.h"
#include "torch_dcp/state_dict/path.h"
#include "torch_dcp/tensor/box.h"
#include "torch_dcp/tensor/dtype.h"

namespace dcp {

/// Names one stored or planned item: `(fqn, offset)` is its identity, `index` only a hint.
struct DCP_API MetadataIndex {
  std::string fqn;                    ///< flat key
  std::optional<Sizes> offset;        ///< of the chunk, [ndim]; nothing for objects
  std::optional<std::int64_t> index;  ///< the chunk's number among the tensor's chunks

  friend bool operator==(const MetadataIndex& a, const MetadataIndex& b) {
    return a.fqn == b.fqn && a.offset == b.offset;
  }
};

struct MetadataIndexHash {
  std::size_t operator()(const MetadataIndex& index) const {
    std::size_t hash = std::hash<std::string>()(index.fqn);
    return index.offset ? hash * 31 + SizesHash()(*index.offset) : hash;
  }
};

/// Spells `w at [2, 0]`, or `w` for an object.
DCP_API std::string to_string(const MetadataIndex& index);

enum class MemoryFormat : std::uint8_t { kContiguous = 0, kChannelsLast = 1, kPreserve = 2 };

/// What PyTorch records of a tensor beside its size. Only `dtype` means something to a reader.
struct TensorProperties {
  c10::ScalarType dtype = c10::ScalarType::Float;
  /// What the stored dtype is if this LibTorch lacks it; `dtype` is then the unsigned integer of its width, and the
  /// elements are its bits.
  NewerDtype newer_dtype = NewerDtype::kNone;
  bool requires_grad = false;
  MemoryFormat memory_format = MemoryFormat::kContiguous;
  bool pin_memory = false;

  friend bool operator==(const TensorProperties&, const TensorProperties&) = default;
};

/// Python's name of the stored dtype.
DCP_API std::string dtype_name(const TensorProperties& properties);

/// The stored chunks of one tensor.
struct TensorStorageMetadata {
  TensorProperties properties;
  Sizes size;               ///< global shape [d0, ..., dn-1]
  std::vector<Box> chunks;  ///< in global coordinates; may be empty boxes
};

/// A stored object; PyTorch records nothing about it.
struct BytesStorageMetadata {};

using StorageMetadata = std::variant<TensorStorageMetadata, BytesStorageMetadata>;

/// Where an item's bytes lie.
struct StorageInfo {
  std::string relative_path;  ///< a plain file name within the checkpoint
  std::int64_t offset = 0;    ///< in bytes
  std::int64_t length = 0;    ///< in bytes, after transforms
  /// Transforms to undo, in reading order, such as "stream.zstd/1".
  std::vector<std::string> transform_descriptors;

  friend bool operator==(const StorageInfo&, const StorageInfo&) = default;
};

/// About the checkpoint as a whole.
struct StorageMeta {
  std::optional<std::string> checkpoint_id;
  std::optional<std::string> save_id;  ///< unique for each save
  std::optional<std::string> load_id;
};

/// All that a reader needs to find every element of a checkpoint.
///
/// A value: `finish` takes one and returns one.
struct Metadata {
  OrderedMap<std::string, StorageMetadata> state_dict_metadata;  ///< by flat key
  /// Flat key -> path in the nested state dict; nothing if saved without flattening.
  std::optional<OrderedMap<std::string, Path>> planner_data;
  OrderedMap<MetadataIndex, StorageInfo, MetadataIndexHash> storage_data;
  std::optional<StorageMeta> storage_meta;
  std::optional<std::string> version;  ///< "1.0.0"
};

/// The stored chunk that `index` names, looked for at its hint first; null for objects and for
/// what is not there.
///
/// Collective: no. Complexity: constant with a right hint, else linear in the tensor's chunks.
DCP_API const Box* find_chunk(const Metadata& metadata, const MetadataIndex& index);

}  // namespace dcp

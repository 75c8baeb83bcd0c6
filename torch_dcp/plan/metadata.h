#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "torch_dcp/base/ordered_map.h"
#include "torch_dcp/plan/chunk_list.h"
#include "torch_dcp/plan/storage_table.h"
#include "torch_dcp/plan/stored_item.h"
#include "torch_dcp/state_dict/path.h"
#include "torch_dcp/tensor/box.h"
#include "torch_dcp/tensor/dtype.h"

namespace dcp {

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
  Sizes size;        ///< global shape [d0, ..., dn-1]
  ChunkList chunks;  ///< in global coordinates; may be empty boxes
};

/// A stored object; PyTorch records nothing about it.
struct BytesStorageMetadata {};

using StorageMetadata = std::variant<TensorStorageMetadata, BytesStorageMetadata>;

/// About the checkpoint as a whole.
struct StorageMeta {
  std::optional<std::string> checkpoint_id;
  std::optional<std::string> save_id;  ///< unique for each save
  std::optional<std::string> load_id;
};

/// All that a reader needs to find every element of a checkpoint.
///
/// A value: `finish` takes one and returns one. Takes about 90 bytes for each stored chunk of two dimensions, and what
/// the keys and their paths take.
struct Metadata {
  OrderedMap<std::string, StorageMetadata> state_dict_metadata;  ///< by flat key
  /// Flat key -> path in the nested state dict; nothing if saved without flattening.
  std::optional<OrderedMap<std::string, Path>> planner_data;
  StorageTable storage_data;
  std::optional<StorageMeta> storage_meta;
  std::optional<std::string> version;  ///< "1.0.0"
};

/// The stored chunk that `index` names, looked for at its hint first; nothing for objects and for
/// what is not there.
///
/// Collective: no. Complexity: constant with a right hint, else linear in the tensor's chunks.
DCP_API std::optional<Box> find_chunk(const Metadata& metadata, const MetadataIndex& index);

}  // namespace dcp

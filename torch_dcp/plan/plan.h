#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "torch_dcp/plan/metadata.h"
#include "torch_dcp/plan/planner_paths.h"

namespace dcp {

enum class WriteItemType : std::uint8_t { kTensor, kShard, kByteIo };

/// One tensor chunk or object that a rank offers to write.
struct WriteItem {
  MetadataIndex index;
  Box chunk;   ///< tensors: what this rank holds, in global coordinates
  Sizes size;  ///< tensors: global shape
  TensorProperties properties;
  WriteItemType type = WriteItemType::kByteIo;  // Last: an item then takes four lines of a processor's cache.

  bool is_tensor() const { return type != WriteItemType::kByteIo; }
  /// Bytes of the *chunk* (D13); 0 for an object, whose size is not known before it is written.
  std::int64_t byte_size() const;
};

/// What one rank will write.
struct SavePlan {
  std::vector<WriteItem> items;
  /// Flat key -> path of all this rank's leaves; nothing without flattening, nor in plans that
  /// `create_global_plan` returns: its metadata has them.
  PlannerPaths planner_data;
  std::string storage_data;  ///< of the storage writer, opaque to planners
};

enum class ReadItemType : std::uint8_t { kTensor, kByteIo };

/// One overlap of a stored chunk with a destination, or one object.
struct ReadItem {
  ReadItemType type = ReadItemType::kByteIo;
  MetadataIndex dest_index;     ///< the destination's chunk
  Sizes dest_offsets;           ///< begin within the destination's chunk, [ndim]
  MetadataIndex storage_index;  ///< the stored chunk
  Sizes storage_offsets;        ///< begin within the stored chunk, [ndim]
  Sizes lengths;                ///< [ndim], in elements
};

/// What one rank will read.
struct LoadPlan {
  std::vector<ReadItem> items;
  std::string storage_data;  ///< of the storage reader, opaque to planners
};

/// Where a write item ended up.
struct WriteResult {
  MetadataIndex index;
  std::int64_t size_in_bytes = 0;  ///< of the item in storage
  StorageInfo storage;
  /// Of a tensor's elements: the CRC-32 of each block, as large as the storage writer makes them, for its `finish`; may
  /// be empty.
  std::vector<std::uint32_t> block_sums = {};
};

}  // namespace dcp

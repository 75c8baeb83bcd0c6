#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "torch_dcp/tensor/box.h"

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

/// Where an item's bytes lie.
struct StorageInfo {
  std::string relative_path;  ///< a plain file name within the checkpoint
  std::int64_t offset = 0;    ///< in bytes
  std::int64_t length = 0;    ///< in bytes, after transforms
  /// Transforms to undo, in reading order, such as "stream.zstd/1".
  std::vector<std::string> transform_descriptors;

  friend bool operator==(const StorageInfo&, const StorageInfo&) = default;
};

}  // namespace dcp

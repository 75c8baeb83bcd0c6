#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "torch_dcp/base/bytes.h"
#include "torch_dcp/base/export.h"
#include "torch_dcp/base/limits.h"
#include "torch_dcp/plan/metadata.h"

namespace dcp {

/// The CRC-32 of each block of large tensors' elements, as they are before transforms, so that a part can be checked
/// without the rest. Zip's, so that an item's sums combine to the one that its archive records.
struct BlockSums {
  /// More is refused when read: a block is held in memory.
  static constexpr std::int64_t kMaxBlockBytes = std::int64_t{64} << 20;

  std::int64_t block_bytes = 0;  ///< of every block but the last one of an item
  OrderedMap<MetadataIndex, std::vector<std::uint32_t>, MetadataIndexHash> items;
};

/// What this library knows of a checkpoint beyond PyTorch's `.metadata`. Python ignores the file; a
/// checkpoint without it, or with one of another save, is complete all the same.
struct SideFile {
  static constexpr std::int64_t kFormatVersion = 1;

  std::int64_t format_version = kFormatVersion;
  std::string save_id;  ///< that of the `.metadata` it belongs to
  /// Flat keys whose path has integer dict keys, with their typed paths (Python's planner data has only strings).
  OrderedMap<std::string, Path> typed_paths;
  BlockSums block_sums;  ///< of the items that have some
};

/// The id of the save that made the metadata; empty if it has none.
DCP_API std::string save_id_of(const Metadata& metadata);

/// The typed paths of `metadata` as a side file. Left out are those with lone surrogates in a key, which
/// JSON cannot hold: they are read as Python reads them.
DCP_API SideFile make_side_file(const Metadata& metadata);

/// Puts the side file's typed paths into the metadata's planner data, where both agree on the spelling.
/// Does nothing if the metadata is of another save.
DCP_API void apply_side_file(const SideFile& side_file, Metadata& metadata);

/// As apply_side_file, whatever save the metadata is of: such that rank metadata was merged into has none.
DCP_API void apply_typed_paths(const SideFile& side_file, Metadata& metadata);

/// Says in what the two contradict each other: another save, a path that the metadata lacks or spells otherwise, or
/// sums of a chunk that it lacks or that has another number of blocks.
/// Nothing if all of the side file holds for the metadata.
DCP_API std::optional<std::string> find_side_file_fault(const SideFile& side_file, const Metadata& metadata);

/// JSON, bounded in size and depth when read. Left out are sums of keys with lone surrogates.
DCP_API Bytes encode_side_file(const SideFile& side_file);

/// \throws dcp::Error kCorruptData; kUnsupported for a later format version.
DCP_API SideFile decode_side_file(ByteSpan bytes, const ParseLimits& limits = {});

}  // namespace dcp

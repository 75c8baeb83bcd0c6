#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "torch_dcp/base/bytes.h"
#include "torch_dcp/base/export.h"
#include "torch_dcp/base/limits.h"
#include "torch_dcp/plan/metadata.h"

namespace dcp {

/// What this library knows of a checkpoint beyond PyTorch's `.metadata`. Python ignores the file; a
/// checkpoint without it, or with one of another save, is complete all the same.
struct SideFile {
  static constexpr std::int64_t kFormatVersion = 1;

  std::int64_t format_version = kFormatVersion;
  std::string save_id;  ///< that of the `.metadata` it belongs to
  /// Flat keys whose path has integer dict keys, with their typed paths (Python's planner data has only strings).
  OrderedMap<std::string, Path> typed_paths;
};

/// The typed paths of `metadata` as a side file. Left out are those with lone surrogates in a key, which
/// JSON cannot hold: they are read as Python reads them.
DCP_API SideFile make_side_file(const Metadata& metadata);

/// Puts the side file's typed paths into the metadata's planner data, where both agree on the spelling.
/// Does nothing if the metadata is of another save.
DCP_API void apply_side_file(const SideFile& side_file, Metadata& metadata);

/// Says in what the two contradict each other: another save, or a path that the metadata lacks or spells otherwise.
/// Nothing if all of the side file holds for the metadata.
DCP_API std::optional<std::string> find_side_file_fault(const SideFile& side_file, const Metadata& metadata);

/// JSON, bounded in size and depth when read.
DCP_API Bytes encode_side_file(const SideFile& side_file);

/// \throws dcp::Error kCorruptData; kUnsupported for a later format version.
DCP_API SideFile decode_side_file(ByteSpan bytes, const ParseLimits& limits = {});

}  // namespace dcp

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "torch_dcp/base/bytes.h"
#include "torch_dcp/base/limits.h"
#include "torch_dcp/io/file_system.h"

namespace dcp {

/// The file `model-save-unfinished.safetensors`, which is in a folder while a save replaces what lies there. It is
/// named like a file of tensors and holds none, so that readers that know nothing of it fail. To this library's readers
/// it says which files are the checkpoint: those of its list, each under its temporary name or, if it has got it
/// already, under its own; and no other file of the folder.
///
/// A text of lines:
///
///     unfinished: a save into this folder has not come to its end
///     save ID
///     NAME                                 of each data file
///     the NUMBER files above are complete
///
/// The marker of an earlier version had the first line alone: there, no files make a checkpoint.
struct SafetensorsMarker {
  std::string save_id;
  std::vector<std::string> files;  ///< data files' own names
};

Bytes encode_safetensors_marker(const SafetensorsMarker& marker);

/// Nothing for a text that is not whole or not of this form, so also for names that lead out of the folder.
std::optional<SafetensorsMarker> decode_safetensors_marker(ByteSpan bytes);

/// What a look for a folder's marker can find.
enum class MarkerState : std::uint8_t {
  kNone,      ///< there is none
  kNoList,    ///< one that names no checkpoint
  kComplete,  ///< one whose files are a checkpoint
};

struct FoundMarker {
  MarkerState state = MarkerState::kNone;
  SafetensorsMarker marker = {};  ///< with kComplete
};

/// \throws dcp::Error kIo.
FoundMarker find_safetensors_marker(FileSystem& files, const std::string& directory, const ParseLimits& limits = {});

}  // namespace dcp

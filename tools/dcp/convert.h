#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "torch_dcp/storage/checkpoint_kind.h"

namespace dcp::tool {

struct ConvertOptions {
  std::optional<CheckpointKind> to = std::nullopt;  ///< by the destination's suffix if not given
  bool drop_objects = false;  ///< leaves out what the destination cannot hold; else that is an error
  bool overwrite = false;     ///< else a destination that is there is an error
  bool follow_links = false;  ///< of a DCP source
  std::size_t threads = 1;    ///< for the check of the source
  /// How much of a tensor is in memory at a time: to DCP, where each such part becomes a chunk, and to the others.
  std::int64_t max_chunk_bytes = std::int64_t{256} << 20;
  std::int64_t max_piece_bytes = std::int64_t{16} << 20;
  /// Bytes done, and of all tensors together: first of the check, then of the conversion. May be empty.
  std::function<void(std::int64_t done, std::int64_t total)> on_check = nullptr;
  std::function<void(std::int64_t done, std::int64_t total)> on_convert = nullptr;
};

struct ConvertReport {
  CheckpointKind from = CheckpointKind::kDcp;
  CheckpointKind to = CheckpointKind::kDcp;
  std::int64_t tensor_count = 0;
  std::int64_t object_count = 0;
  std::int64_t byte_count = 0;       ///< of tensors
  std::vector<std::string> dropped;  ///< keys, with the kind or Python's type of each
};

/// Kind that a destination's suffix tells: `.safetensors`; `.pt`, `.pth` and `.bin` are torch.save files; else DCP.
CheckpointKind kind_of_destination(const std::string& path);

/// Writes a checkpoint in another form (or the same). Every tensor's bits, dtype and sizes stay what they are.
///
/// The source is checked whole first (`verify`), so that nothing is made of a damaged one. The destination comes into
/// its place when it is complete: after an error it is what it was, and there is nothing new. For a folder of
/// safetensors this holds up to the commit point; an error from there on says that the new one is complete, or may be.
///
/// Names: to torch.save the nested state dict, as PyTorch's dcp_to_torch_save; from it flat keys and paths, as
/// torch_save_to_dcp; to safetensors flat keys; from them flat keys, each a path by itself.
///
/// Memory: the objects and the metadata; and of tensors, `max_chunk_bytes` to DCP, `max_piece_bytes` to the others.
/// Above that, one whole tensor from a torch.save file and from items that went through transforms, and one stored item
/// that is deflated, strided or of the other byte order.
///
/// \throws dcp::Error kAlreadyExists; kCorruptData with all faults of the source; kUnsupported naming every key that
/// the
///         destination cannot hold; kNotFound, kIo.
ConvertReport convert_checkpoint(const std::string& source, const std::string& destination,
                                 const ConvertOptions& options);

}  // namespace dcp::tool

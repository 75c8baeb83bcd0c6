#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "torch_dcp/base/export.h"
#include "torch_dcp/io/file_system.h"

namespace dcp {

/// The forms in which a state dict can lie on a disk.
enum class CheckpointKind : std::uint8_t {
  kDcp,          ///< a directory of PyTorch Distributed Checkpoint
  kSafetensors,  ///< a file `*.safetensors`, or a directory of them
  kTorchSave,    ///< a file of torch.save
};

/// "dcp", "safetensors" or "torch".
DCP_API const char* checkpoint_kind_name(CheckpointKind kind) noexcept;

/// Says which kind of checkpoint is at `path`, by the names in a directory, the suffix or the first bytes of a file;
/// nothing for a file that is none. A directory is one of DCP unless it has files of safetensors and no metadata of
/// DCP.
///
/// \throws dcp::Error kNotFound if there is nothing, kIo.
DCP_API std::optional<CheckpointKind> find_checkpoint_kind(const std::string& path, FileSystem& files);

}  // namespace dcp

#include "torch_dcp/storage/checkpoint_kind.h"

#include <algorithm>
#include <vector>

#include "torch_dcp/base/error.h"
#include "torch_dcp/format/torch_save_file.h"
#include "torch_dcp/storage/file_layout_internal.h"
#include "torch_dcp/storage/safetensors_names_internal.h"

namespace dcp {
namespace {

CheckpointKind kind_of_directory(const std::vector<std::string>& names) {
  const auto is_metadata = [](const std::string& name) {
    return name == file_layout::kMetadataName || file_layout::rank_of_metadata(name);
  };
  const auto is_safetensors = [](const std::string& name) {
    return safetensors_names::is_safetensors_file(name) || name == safetensors_names::kIndex;
  };
  if (std::any_of(names.begin(), names.end(), is_metadata)) return CheckpointKind::kDcp;
  return std::any_of(names.begin(), names.end(), is_safetensors) ? CheckpointKind::kSafetensors : CheckpointKind::kDcp;
}

}  // namespace

const char* checkpoint_kind_name(CheckpointKind kind) noexcept {
  switch (kind) {
    case CheckpointKind::kDcp:
      return "dcp";
    case CheckpointKind::kSafetensors:
      return "safetensors";
    case CheckpointKind::kTorchSave:
      return "torch";
  }
  return "unknown";
}

std::optional<CheckpointKind> find_checkpoint_kind(const std::string& path, FileSystem& files) {
  DCP_CHECK(!path.empty(), kInvalidArgument, "a checkpoint needs a path");
  const FileType type = files.file_type(path);
  DCP_CHECK(type != FileType::kNone, kNotFound, "incomplete checkpoint: ", path, " does not exist");
  if (type == FileType::kDirectory) return kind_of_directory(files.list_directory(path));
  DCP_CHECK(type == FileType::kFile, kNotFound, path, " is no file and no directory");
  if (safetensors_names::is_safetensors_file(path)) return CheckpointKind::kSafetensors;
  const bool is_torch_save = find_torch_save_form(*files.open_file(path)).has_value();
  return is_torch_save ? std::optional(CheckpointKind::kTorchSave) : std::nullopt;
}

}  // namespace dcp

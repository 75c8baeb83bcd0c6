#include "torch_dcp/storage/verify.h"

#include <optional>
#include <utility>

#include "torch_dcp/io/local_file_system.h"
#include "torch_dcp/storage/verify_internal.h"

namespace dcp {
namespace {

VerifyReport verify_kind(CheckpointKind kind, const std::string& path, const VerifyOptions& options,
                         std::shared_ptr<FileSystem> files) {
  switch (kind) {
    case CheckpointKind::kSafetensors:
      return verify_safetensors(path, options, std::move(files));
    case CheckpointKind::kTorchSave:
      return verify_torch_save(path, options, std::move(files));
    default:
      return verify_dcp(path, options, std::move(files));
  }
}

}  // namespace

VerifyReport verify(const std::string& path, const VerifyOptions& options) {
  std::shared_ptr<FileSystem> files = options.file_system ? options.file_system : local_file_system();
  const std::optional<CheckpointKind> kind = find_checkpoint_kind(path, *files);
  DCP_CHECK(kind, kNotFound, path, " is no checkpoint: neither a zip of torch.save nor a file of safetensors");
  VerifyReport report = verify_kind(*kind, path, options, std::move(files));
  report.kind = *kind;
  return report;
}

}  // namespace dcp

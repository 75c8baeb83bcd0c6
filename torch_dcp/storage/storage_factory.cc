#include "torch_dcp/storage/storage_factory.h"

#include <string_view>
#include <utility>

#include "torch_dcp/base/error.h"
#include "torch_dcp/io/local_file_system.h"
#include "torch_dcp/storage/checkpoint_kind.h"
#include "torch_dcp/storage/safetensors_reader.h"

namespace dcp {
namespace {

std::string directory_of(const std::string& checkpoint_id) {
  constexpr std::string_view kFileScheme = "file://";
  if (checkpoint_id.starts_with(kFileScheme)) return checkpoint_id.substr(kFileScheme.size());
  DCP_CHECK(checkpoint_id.find("://") == std::string::npos, kUnsupported, checkpoint_id,
            ": no storage for this scheme; give a storage writer or reader instead");
  return checkpoint_id;
}

/// Whether safetensors are what a path has. Where there is a `.metadata`, as mostly, no directory is listed; where
/// there is nothing, the reader will say so.
bool is_safetensors(FileSystem& files, const std::string& path) {
  return !path.empty() && files.file_type(join_path(path, ".metadata")) == FileType::kNone &&
         files.file_type(path) != FileType::kNone && find_checkpoint_kind(path, files) == CheckpointKind::kSafetensors;
}

}  // namespace

std::unique_ptr<StorageWriter> make_storage_writer(const std::string& checkpoint_id,
                                                   const FileSystemWriterOptions& options) {
  return std::make_unique<FileSystemWriter>(directory_of(checkpoint_id), options);
}

std::unique_ptr<StorageReader> make_storage_reader(const std::string& checkpoint_id,
                                                   const FileSystemReaderOptions& options) {
  std::string path = directory_of(checkpoint_id);
  const std::shared_ptr<FileSystem> files = options.file_system ? options.file_system : local_file_system();
  if (is_safetensors(*files, path)) {
    return std::make_unique<SafetensorsReader>(
        std::move(path), SafetensorsReaderOptions{options.thread_count, options.limits, options.file_system});
  }
  return std::make_unique<FileSystemReader>(std::move(path), options);
}

}  // namespace dcp

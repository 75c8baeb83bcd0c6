#include "torch_dcp/storage/storage_factory.h"

#include <string_view>

#include "torch_dcp/base/error.h"

namespace dcp {
namespace {

std::string directory_of(const std::string& checkpoint_id) {
  constexpr std::string_view kFileScheme = "file://";
  if (checkpoint_id.starts_with(kFileScheme)) return checkpoint_id.substr(kFileScheme.size());
  DCP_CHECK(checkpoint_id.find("://") == std::string::npos, kUnsupported, checkpoint_id,
            ": no storage for this scheme; give a storage writer or reader instead");
  return checkpoint_id;
}

}  // namespace

std::unique_ptr<StorageWriter> make_storage_writer(const std::string& checkpoint_id,
                                                   const FileSystemWriterOptions& options) {
  return std::make_unique<FileSystemWriter>(directory_of(checkpoint_id), options);
}

std::unique_ptr<StorageReader> make_storage_reader(const std::string& checkpoint_id,
                                                   const FileSystemReaderOptions& options) {
  return std::make_unique<FileSystemReader>(directory_of(checkpoint_id), options);
}

}  // namespace dcp

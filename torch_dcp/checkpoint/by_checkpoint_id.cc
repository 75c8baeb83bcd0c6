#include "torch_dcp/checkpoint/by_checkpoint_id.h"

#include <utility>

#include "torch_dcp/base/error.h"

namespace dcp {

Metadata save(const StateDict& state, const std::string& checkpoint_id, const SaveOptions& options,
              const FileSystemWriterOptions& storage) {
  return save(state, *make_storage_writer(checkpoint_id, storage), options);
}

LoadReport load(StateDict& state, const std::string& checkpoint_id, const LoadOptions& options,
                const FileSystemReaderOptions& storage) {
  return load(state, *make_storage_reader(checkpoint_id, storage), options);
}

StateDict load_keys(const std::string& checkpoint_id, std::set<std::string> keys,
                    const FileSystemReaderOptions& storage) {
  return load_keys(*make_storage_reader(checkpoint_id, storage), std::move(keys));
}

Metadata read_metadata(const std::string& checkpoint_id, const FileSystemReaderOptions& storage) {
  std::optional<Metadata> metadata = make_storage_reader(checkpoint_id, storage)->read_metadata();
  DCP_CHECK(metadata, kUnsupported, checkpoint_id, ": saved without collectives, so each rank has metadata of its own");
  return *std::move(metadata);
}

}  // namespace dcp

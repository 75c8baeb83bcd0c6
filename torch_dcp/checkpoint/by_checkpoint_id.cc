#include "torch_dcp/checkpoint/by_checkpoint_id.h"

#include <memory>
#include <utility>

#include "torch_dcp/base/error.h"
#include "torch_dcp/checkpoint/open_internal.h"

namespace dcp {

Metadata save(const StateDict& state, const std::string& checkpoint_id, const SaveOptions& options,
              const FileSystemWriterOptions& storage) {
  std::unique_ptr<StorageWriter> writer;
  const auto open = [&]() -> StorageWriter& { return *(writer = make_storage_writer(checkpoint_id, storage)); };
  return internal::save(state, open, options);
}

LoadReport load(StateDict& state, const std::string& checkpoint_id, const LoadOptions& options,
                const FileSystemReaderOptions& storage) {
  std::unique_ptr<StorageReader> reader;
  const auto open = [&]() -> StorageReader& { return *(reader = make_storage_reader(checkpoint_id, storage)); };
  return internal::load(state, open, options);
}

StateDict load_keys(const std::string& checkpoint_id, std::set<std::string> keys,
                    const FileSystemReaderOptions& storage) {
  return load_keys(*make_storage_reader(checkpoint_id, storage), std::move(keys));
}

Metadata read_metadata(const std::string& checkpoint_id, const FileSystemReaderOptions& storage) {
  const std::unique_ptr<StorageReader> reader = make_storage_reader(checkpoint_id, storage);
  std::optional<Metadata> metadata = reader->read_metadata();
  if (!metadata) metadata = reader->read_merged_metadata();
  DCP_CHECK(metadata, kUnsupported, checkpoint_id, ": saved without collectives, so each rank has metadata of its own");
  return *std::move(metadata);
}

}  // namespace dcp

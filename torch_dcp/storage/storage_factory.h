#pragma once

#include <memory>
#include <string>

#include "torch_dcp/storage/filesystem_reader.h"
#include "torch_dcp/storage/filesystem_writer.h"

namespace dcp {

/// Picks the storage for a checkpoint id. An id without a scheme, or with `file://`, is a directory.
///
/// Written is always a DCP checkpoint; for safetensors give a `SafetensorsWriter` to `save`. Read is what is there: a
/// DCP checkpoint where there is a `.metadata` (or ranks have theirs), else safetensors where there are any, also as
/// one file; of the options these take threads, limits and file system.
///
/// \throws dcp::Error kUnsupported for another scheme, kInvalidArgument for an empty id.
DCP_API std::unique_ptr<StorageWriter> make_storage_writer(const std::string& checkpoint_id,
                                                           const FileSystemWriterOptions& options = {});
DCP_API std::unique_ptr<StorageReader> make_storage_reader(const std::string& checkpoint_id,
                                                           const FileSystemReaderOptions& options = {});

}  // namespace dcp

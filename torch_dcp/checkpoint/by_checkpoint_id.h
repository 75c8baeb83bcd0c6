#pragma once

#include <set>
#include <string>

#include "torch_dcp/checkpoint/load.h"
#include "torch_dcp/checkpoint/save.h"
#include "torch_dcp/storage/storage_factory.h"

namespace dcp {

/// Saves to the directory `checkpoint_id`. \see save(const StateDict&, StorageWriter&, const SaveOptions&).
DCP_API Metadata save(const StateDict& state, const std::string& checkpoint_id, const SaveOptions& options = {},
                      const FileSystemWriterOptions& storage = {});

/// Loads from the directory `checkpoint_id`. \see load(StateDict&, StorageReader&, const LoadOptions&).
DCP_API LoadReport load(StateDict& state, const std::string& checkpoint_id, const LoadOptions& options = {},
                        const FileSystemReaderOptions& storage = {});

/// Rebuilds a checkpoint's nested state dict. \see load_keys(StorageReader&, std::set<std::string>).
DCP_API StateDict load_keys(const std::string& checkpoint_id, std::set<std::string> keys = {},
                            const FileSystemReaderOptions& storage = {});

/// What a checkpoint holds: names, sizes, dtypes and places. Opens no data file.
///
/// \throws dcp::Error kNotFound, kCorruptData, kIo; kUnsupported if it was saved without collectives.
/// Collective: no.
DCP_API Metadata read_metadata(const std::string& checkpoint_id, const FileSystemReaderOptions& storage = {});

}  // namespace dcp

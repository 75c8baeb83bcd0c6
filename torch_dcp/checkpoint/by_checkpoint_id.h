#pragma once

#include <set>
#include <string>

#include "torch_dcp/checkpoint/load.h"
#include "torch_dcp/checkpoint/save.h"
#include "torch_dcp/storage/storage_factory.h"

namespace dcp {

/// Saves to the directory `checkpoint_id`: as save(const StateDict&, StorageWriter&, const SaveOptions&) does with the
/// storage that the id names.
///
/// \throws dcp::CheckpointError, alike on every rank; also for a wrong id or option.
/// Collective: yes, all ranks of the group (but with `use_collectives` off).
/// Source: torch/distributed/checkpoint/state_dict_saver.py, save (2.14.1).
DCP_API Metadata save(const StateDict& state, const std::string& checkpoint_id, const SaveOptions& options = {},
                      const FileSystemWriterOptions& storage = {});

/// Loads from the directory `checkpoint_id`: as load(StateDict&, StorageReader&, const LoadOptions&) does with the
/// storage that the id names.
///
/// \throws dcp::CheckpointError, alike on every rank; also for a wrong id or option.
/// Collective: yes, all ranks of the group (but with `use_collectives` off).
/// Source: torch/distributed/checkpoint/state_dict_loader.py, load (2.14.1).
DCP_API LoadReport load(StateDict& state, const std::string& checkpoint_id, const LoadOptions& options = {},
                        const FileSystemReaderOptions& storage = {});

/// Rebuilds a checkpoint's nested state dict: as load_keys(StorageReader&, std::set<std::string>) does.
///
/// \throws dcp::CheckpointError; dcp::Error for a wrong id. Collective: no; this process reads alone.
/// Source: torch/distributed/checkpoint/state_dict_loader.py, _load_state_dict_from_keys (2.14.1).
DCP_API StateDict load_keys(const std::string& checkpoint_id, std::set<std::string> keys = {},
                            const FileSystemReaderOptions& storage = {});

/// What a checkpoint holds: names, sizes, dtypes and places; of one that was saved without collectives, of all ranks
/// together. Opens no data file.
///
/// \throws dcp::Error kNotFound, kCorruptData, kIo.
/// Collective: no.
DCP_API Metadata read_metadata(const std::string& checkpoint_id, const FileSystemReaderOptions& storage = {});

}  // namespace dcp

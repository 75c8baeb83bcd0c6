#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "torch_dcp/base/export.h"
#include "torch_dcp/base/limits.h"
#include "torch_dcp/io/file_system.h"
#include "torch_dcp/storage/safetensors_writer.h"

namespace dcp {

struct ConsolidateOptions {
  /// As in SafetensorsWriterOptions. Keys that are not stored do no harm.
  FqnToIndex fqn_to_index_mapping = {};
  /// Files written at once; where there are fewer, several threads read for each.
  std::size_t thread_count = 1;
  /// Memory: each thread takes twice this, and 4 MiB, whatever the tensors' sizes; the headers of all shards come on
  /// top.
  std::int64_t buffer_bytes = std::int64_t{16} << 20;
  bool overwrite = true;   ///< off: a checkpoint in the output folder is kAlreadyExists, also one that comes meanwhile
  bool sync_files = true;  ///< off: nothing is synced; a power cut may lose the output
  ParseLimits limits = {};
  std::shared_ptr<FileSystem> file_system = nullptr;  ///< the local one if null
  /// Of the save whose shards are meant: those of another one are kIo, and the output carries it too. Empty: whatever
  /// shards are there, and a new id.
  std::string save_id = {};
};

/// Puts the shards of a folder together into files of whole tensors with an index, moving ranges of bytes: elements are
/// the same bits, whatever their dtype, and no tensor need fit into memory. The files carry an id and their number, as
/// those of a save do.
///
/// \param input   Any folder that `SafetensorsReader` reads, such as `sharded` of a save with `enable_consolidation`.
/// \param output  Its checkpoint is replaced as `SafetensorsWriter` does; may be the input.
/// \throws dcp::Error naming all keys: kCorruptData for parts that overlap or do not cover a tensor, and for files that
///         are not those of one save; kKey for tensors that the mapping lacks; kAlreadyExists, kNotFound, kIo. The
///         output is what it was, or the error says that the new one is complete for this library's readers, or may be,
///         or that another save has taken over.
///
/// Collective: no; this process works alone.
/// Source: torch/distributed/checkpoint/_consolidate_hf_safetensors.py (2.14.1), whose integer, bool and 0-dim tensors
/// go wrong; interop FORMAT.md 6.2.
DCP_API void consolidate_safetensors(const std::string& input, const std::string& output,
                                     const ConsolidateOptions& options = {});

}  // namespace dcp

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
  bool overwrite = true;   ///< off: a checkpoint in the output folder is kAlreadyExists
  bool sync_files = true;  ///< off: nothing is synced; a power cut may lose the output
  ParseLimits limits = {};
  std::shared_ptr<FileSystem> file_system = nullptr;  ///< the local one if null
};

/// Puts the shards of a folder together into files of whole tensors with an index, moving ranges of bytes: elements are
/// the same bits, whatever their dtype, and no tensor need fit into memory.
///
/// \param input   Any folder that `SafetensorsReader` reads, such as `sharded` of a save with `enable_consolidation`.
/// \param output  Its checkpoint is replaced as `SafetensorsWriter` does; may be the input.
/// \throws dcp::Error naming all keys: kCorruptData for parts that overlap or do not cover a tensor; kKey for
///         tensors that the mapping lacks; kAlreadyExists, kNotFound, kIo. Before anything of the output is replaced.
///
/// Collective: no; this process works alone.
/// Source: torch/distributed/checkpoint/_consolidate_hf_safetensors.py (2.14.1), whose integer, bool and 0-dim tensors
/// go wrong; interop FORMAT.md 6.2.
DCP_API void consolidate_safetensors(const std::string& input, const std::string& output,
                                     const ConsolidateOptions& options = {});

}  // namespace dcp

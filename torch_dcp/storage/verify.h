#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "torch_dcp/base/error.h"
#include "torch_dcp/base/limits.h"
#include "torch_dcp/io/file_system.h"
#include "torch_dcp/storage/checkpoint_kind.h"

namespace dcp {

struct VerifyOptions {
  std::size_t thread_count = 1;  ///< items checked at once
  /// Called as bytes have been checked, by one thread at a time: bytes done, and bytes of all items. What it throws
  /// ends the check and is thrown on.
  std::function<void(std::int64_t done, std::int64_t total)> on_progress = nullptr;
  bool follow_links = false;  ///< as in FileSystemReaderOptions
  ParseLimits limits = {};
  std::shared_ptr<FileSystem> file_system = nullptr;  ///< the local one if null
};

/// One thing that is wrong with a checkpoint.
struct VerifyFault {
  std::string file;  ///< its name within the checkpoint; empty if the fault is of no file
  std::string key;   ///< flat key and, of a chunk, its place (`w at [2, 0]`); empty if the fault is of a whole file
  ErrorKind kind = ErrorKind::kCorruptData;
  std::string cause;

  friend bool operator==(const VerifyFault&, const VerifyFault&) = default;
};

/// An object that a load keeps, and a save writes again, without understanding it.
struct OpaqueObject {
  std::string key;
  std::string type_name;  ///< Python's, such as "collections.deque"

  friend bool operator==(const OpaqueObject&, const OpaqueObject&) = default;
};

/// What a check saw.
struct VerifyReport {
  CheckpointKind kind = CheckpointKind::kDcp;
  std::vector<VerifyFault> faults;           ///< of the metadata first, then of items by file and position
  std::vector<std::string> strays;           ///< names in the directory that nothing refers to, sorted; no faults
  std::vector<OpaqueObject> opaque_objects;  ///< by file and position; no faults
  /// Saved without collectives: why the ranks' parts do not make one checkpoint for any number of ranks. No fault: each
  /// rank may load its own.
  std::string not_united;
  std::int64_t file_count = 0;  ///< files that the metadata names, itself and a side file among them
  std::int64_t tensor_count = 0;
  std::int64_t chunk_count = 0;
  std::int64_t object_count = 0;
  std::int64_t byte_count = 0;  ///< of all items

  bool is_sound() const { return faults.empty(); }
};

/// Reads a whole checkpoint and checks all that can be checked without a model: that the metadata can be read; that the
/// chunks of each tensor lie within it, do not overlap and hold all of it (saved without collectives: each rank's
/// metadata for itself, which need not hold all); that every chunk and object is stored somewhere, in a way that can be
/// read; that every data file is there with all its bytes; the CRC-32 of every member of every item; that tensors have
/// the dtype and sizes that the metadata says and lie in their storage; that objects can be read; that the side file
/// fits the metadata. Changes nothing.
///
/// Memory: the metadata, and for each thread 1 MiB, or one object (its bytes and its value), or one item that went
/// through transforms.
///
/// Of safetensors all headers are checked, whose numbers cover their files to the last byte, that the parts of each
/// tensor make it whole, and, by what this library's files say, that all files of a save and none of another are there.
/// PyTorch's files say neither that nor how large a tensor of several shards is: without the last of them a smaller
/// tensor is taken for the whole. There are no checksums of the elements. A folder in which a save was interrupted
/// after its commit point is sound: the marker is one of its files, and old files and an old index are strays. Of a
/// torch.save file the CRC-32 of every member, its pickle, that all storages are there that this names, and that
/// tensors lie in them.
///
/// \param path  Directory of a DCP checkpoint; file or directory of safetensors; file of torch.save.
/// \throws dcp::Error kNotFound if `path` is none of these, kIo if the system refuses to look (naming file and key);
///         never for what is wrong with the checkpoint. A directory without metadata is a fault of kind kNotFound.
/// Collective: no. Thread safety: any number of calls at once.
DCP_API VerifyReport verify(const std::string& path, const VerifyOptions& options = {});

}  // namespace dcp

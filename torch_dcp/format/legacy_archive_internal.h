#pragma once

#include <cstdint>

#include "torch_dcp/base/limits.h"
#include "torch_dcp/format/torch_archive_internal.h"
#include "torch_dcp/io/file_system.h"

// The form that torch.save had before PyTorch 1.6, and still has on request: pickles one after another, then storages.
// FORMAT.md has the picture.

namespace dcp::legacy {

inline constexpr std::int64_t kProtocolVersion = 1001;

/// Whether the bytes begin as this form does.
bool is_before_zip(const RandomAccessFile& item);

/// Opens an archive of this form. The parts are read once; of the storages only their lengths.
///
/// Storages are little-endian whatever the file says of the machine that wrote it, and nothing records a CRC-32. Bytes
/// behind the last storage are left alone, as `torch.load` does.
///
/// \throws dcp::Error kCorruptData, kUnsupported (a kind of storage whose element size is not known: nothing behind it
///         could be found).
SavedArchive open_archive(const RandomAccessFile& item, std::int64_t max_pickle_bytes, const ParseLimits& limits);

/// The pickles before that of the value: magic number, version, the machine.
Bytes write_prefix();
/// The pickle behind it: the keys of the storages ("0", "1", ...) in their order in the file.
Bytes write_keys(std::int64_t storage_count);
/// What stands before each storage: its count of elements.
Bytes write_count(std::int64_t element_count);

}  // namespace dcp::legacy

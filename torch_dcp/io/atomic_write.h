#pragma once

#include <string_view>

#include "torch_dcp/base/bytes.h"
#include "torch_dcp/base/export.h"
#include "torch_dcp/io/file_system.h"

namespace dcp {

/// Writes a small file so that a crash at any moment leaves the old file, or none, or
/// the new one whole. In this order:
///
///  1. create `directory/name.tmp` (one left by a crash is truncated) and append `bytes`;
///  2. sync the file: otherwise the rename might reach the medium before the bytes;
///  3. close it, which may report an error that was held back;
///  4. rename it to `directory/name`: from here on readers see the new file;
///  5. sync the directory: from here on a crash leaves the new file.
///
/// One writer per name at a time. If a step up to the rename fails, `name` is as it
/// was and the temporary file is removed if the system lets it. If step 5 fails, the
/// new file is in place, but whether a crash would keep it is unknown.
///
/// \param sync  Without it steps 2 and 5 are left out: whole for readers, but not
///              for what a power cut leaves.
/// \throws dcp::Error  as `files` does.
DCP_API void atomic_write(FileSystem& files, std::string_view directory, std::string_view name, ByteSpan bytes,
                          bool sync = true);

}  // namespace dcp

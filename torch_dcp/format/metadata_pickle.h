#pragma once

#include "torch_dcp/base/bytes.h"
#include "torch_dcp/base/export.h"
#include "torch_dcp/base/limits.h"
#include "torch_dcp/plan/metadata.h"

namespace dcp {

/// Writes `.metadata`: protocol 4, only the globals that PyTorch itself writes, the checkpoint id as
/// a plain string.
///
/// Integer dict keys in paths are written as strings, as Python has them.
/// Source: interop FORMAT.md 2.
DCP_API Bytes encode_metadata(const Metadata& metadata);

/// Reads `.metadata` of any PyTorch since 2.0, pickled by any Python since 3.8. Only the classes listed in
/// FORMAT.md are recognised; every number is checked; nothing is executed.
///
/// The structure is checked (types, key uniqueness, non-negative sizes, chunks of the tensor's ndim,
/// plain file names); whether chunks fill the tensors is for `plan/validate.h`, whether files are
/// there for the storage reader.
///
/// Fields that this library does not know are ignored if they hold nothing but plain values. Refused, though
/// PyTorch takes them: bytes after the pickle, an item stored twice, a bool or a list for sizes, a path that is
/// malformed or too long a list, and any file name that is not a plain one (a subfolder too).
///
/// Takes no more memory than about 32 times the bytes and 16 MiB, whatever in them is shared.
///
/// \throws dcp::Error kCorruptData or kUnsupported, naming the key and field, or the byte offset.
DCP_API Metadata decode_metadata(ByteSpan bytes, const ParseLimits& limits = {});

}  // namespace dcp

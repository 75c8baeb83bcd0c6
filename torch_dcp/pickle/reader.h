#pragma once

#include "torch_dcp/base/bytes.h"
#include "torch_dcp/base/export.h"
#include "torch_dcp/base/limits.h"
#include "torch_dcp/pickle/value.h"

namespace dcp::pickle {

/// Parses one pickle of protocol 2 to 5 that begins at the first byte, into inert values.
///
/// Nothing is imported, called or executed: a global is a pair of strings, a call is
/// recorded. The accepted opcodes are those that `torch.save` and `torch.distributed.checkpoint`
/// write with any Python since 3.6; all other opcodes are refused by name.
///
/// Values are not copied when the pickle refers to them again, and there is no recursion, so
/// shared and cyclic values take no more memory and stack than others. Memory per byte of
/// input: about 12 bytes for metadata, under 100 for a pickle made to take much.
/// `bytes` may go when this returns.
///
/// \param consumed  If not null, receives the number of bytes up to and including STOP;
///                  if null, bytes after STOP are an error.
/// \throws dcp::Error kCorruptData with the byte offset for malformed input and for what is
///         beyond `limits`, kUnsupported for an opcode or a protocol outside the list. Before
///         anything is allocated, each size is checked against `limits` and the bytes that are left.
///
/// Collective: no. Thread safety: pure.
/// Source: Python's pickletools documentation of opcodes; interop FORMAT.md 2.1 and 3.6.
DCP_API Pickle parse(ByteSpan bytes, const ParseLimits& limits = {}, std::size_t* consumed = nullptr);

}  // namespace dcp::pickle

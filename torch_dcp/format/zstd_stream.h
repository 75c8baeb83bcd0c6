#pragma once

#include <memory>

#include "torch_dcp/io/stream_transform.h"

namespace dcp {

/// "stream.zstd/1": the stream is one zstd frame, as PyTorch's ZStandard extension writes it (no content size, no
/// checksum, no dictionary). Streams hold back about a megabyte and the frame's window.
///
/// \param level           What is written is compressed with; a zstd level, -7 to 22.
/// \param max_window_log  A frame whose window has more than 2^max_window_log bytes is not decoded, nor written.
/// \throws dcp::Error kInvalidArgument for a level or window that zstd does not have.
/// Source: torch/distributed/checkpoint/_extension.py, ZStandard (2.14.1); interop FORMAT.md 3.7.
std::shared_ptr<const StreamTransform> make_zstd_transform(int level, int max_window_log);

}  // namespace dcp

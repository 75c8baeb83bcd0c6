#pragma once

#include <memory>
#include <vector>

#include "torch_dcp/base/export.h"
#include "torch_dcp/io/stream_transform.h"

namespace dcp {

using StreamTransforms = std::vector<std::shared_ptr<const StreamTransform>>;

/// PyTorch's ZStandard extension, "stream.zstd/1". Readers know it without being told; this one is for writers, and for
/// readers of frames with large windows.
///
/// \param level           From -7, fast, to 22, small.
/// \param max_window_log  A frame whose window has more than 2^max_window_log bytes is refused when read; each stream
///                        takes that much memory at most, and about a megabyte. 23, 8 MiB, does for the levels up
///                        to 19; what is written with higher ones is held to it.
/// \throws dcp::Error kInvalidArgument for a level or window that zstd does not have.
/// Source: torch/distributed/checkpoint/_extension.py, ZStandard (2.14.1).
DCP_API std::shared_ptr<const StreamTransform> zstd_transform(int level = 3, int max_window_log = 23);

}  // namespace dcp

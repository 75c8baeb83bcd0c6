#include "torch_dcp/storage/stream_transforms.h"

#include "torch_dcp/format/zstd_stream.h"

namespace dcp {

std::shared_ptr<const StreamTransform> zstd_transform(int level, int max_window_log) {
  return make_zstd_transform(level, max_window_log);
}

}  // namespace dcp

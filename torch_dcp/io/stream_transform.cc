#include "torch_dcp/io/stream_transform.h"

namespace dcp {

ByteSource::~ByteSource() = default;
ByteSink::~ByteSink() = default;
StreamTransform::~StreamTransform() = default;

}  // namespace dcp

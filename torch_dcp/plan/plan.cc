#include "torch_dcp/plan/plan.h"

#include "torch_dcp/base/checked_math.h"
#include "torch_dcp/base/error.h"
#include "torch_dcp/tensor/dtype.h"

namespace dcp {

std::int64_t WriteItem::byte_size() const {
  if (!is_tensor()) return 0;
  const auto numel = checked_numel(chunk.sizes);
  const auto bytes = numel ? checked_mul(*numel, element_bytes(properties.dtype)) : std::nullopt;
  DCP_CHECK(bytes, kInvalidArgument, "key '", index.fqn, "': chunk ", to_string(chunk), " of ", size.size(),
            "-dimensional tensor has no size in bytes that fits 64 bits");
  return *bytes;
}

}  // namespace dcp

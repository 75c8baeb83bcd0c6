#pragma once

#include <cstdint>
#include <vector>

#include "torch_dcp/base/export.h"
#include "torch_dcp/tensor/box.h"

namespace dcp {

/// Cuts a tensor into boxes of at most `max_bytes` (of one element at least) that follow each other in row-major order.
/// One box for a tensor that is small enough, or empty.
DCP_API std::vector<Box> cut_into_pieces(const Sizes& sizes, std::int64_t element_bytes, std::int64_t max_bytes);

}  // namespace dcp

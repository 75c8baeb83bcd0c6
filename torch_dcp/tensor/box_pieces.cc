#include "torch_dcp/tensor/box_pieces.h"

#include <algorithm>

namespace dcp {
namespace {

void cut(const Box& box, std::int64_t element_bytes, std::int64_t max_bytes, std::vector<Box>& pieces) {
  const std::int64_t bytes = box.numel() * element_bytes;
  std::size_t dim = 0;
  while (dim < box.ndim() && box.sizes[dim] <= 1) ++dim;
  if (bytes <= max_bytes || dim == box.ndim()) {
    pieces.push_back(box);
    return;
  }
  const std::int64_t row_bytes = bytes / box.sizes[dim];
  const std::int64_t step = std::max<std::int64_t>(1, max_bytes / row_bytes);
  for (std::int64_t row = 0; row < box.sizes[dim]; row += step) {
    Box part = box;
    part.offsets[dim] += row;
    part.sizes[dim] = std::min(step, box.sizes[dim] - row);
    cut(part, element_bytes, max_bytes, pieces);
  }
}

}  // namespace

std::vector<Box> cut_into_pieces(const Sizes& sizes, std::int64_t element_bytes, std::int64_t max_bytes) {
  std::vector<Box> pieces;
  cut(whole_box(sizes), element_bytes, max_bytes, pieces);
  return pieces;
}

}  // namespace dcp

#pragma once

#include <ATen/core/Tensor.h>

#include "torch_dcp/tensor/box.h"

namespace dcp {

/// The part of a tensor at `offsets` with `sizes`, both [view.dim()]; a view.
inline at::Tensor narrow_to(at::Tensor view, const Sizes& offsets, const Sizes& sizes) {
  for (std::size_t dim = 0; dim < sizes.size(); ++dim) {
    if (sizes[dim] == view.sizes()[dim]) continue;
    view = view.narrow(static_cast<std::int64_t>(dim), offsets[dim], sizes[dim]);
  }
  return view;
}

}  // namespace dcp

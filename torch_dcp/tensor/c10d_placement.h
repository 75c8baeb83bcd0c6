#pragma once

// Newer LibTorch has placements of its own in C++; older ones (2.6) have them in Python only.
#if __has_include(<torch/csrc/distributed/Placement.h>)
#define DCP_HAS_C10D_PLACEMENT 1
#else
#define DCP_HAS_C10D_PLACEMENT 0
#endif

#if DCP_HAS_C10D_PLACEMENT

#include <memory>

#include "torch_dcp/tensor/placement.h"

namespace torch::distributed {
class Placement;
}

namespace dcp {

/// LibTorch's placement of the same meaning.
DCP_API std::shared_ptr<const torch::distributed::Placement> to_c10d_placement(const Placement& placement);

/// The reverse.
///
/// \throws dcp::Error kUnsupported for a kind of placement that this library does not know.
DCP_API Placement from_c10d_placement(const torch::distributed::Placement& placement);

}  // namespace dcp

#endif

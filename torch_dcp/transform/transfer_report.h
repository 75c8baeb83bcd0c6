#pragma once

#include <string>
#include <vector>

#include "torch_dcp/base/export.h"

namespace dcp {

/// What `broadcast_state` and `distribute_state` left undone on this rank. Keys are flat, in order.
struct DCP_API TransferReport {
  std::vector<std::string> dropped;    ///< in the full state, but unknown here: their values went nowhere
  std::vector<std::string> removed;    ///< here, but not in the full state: removed, since `strict` was asked for
  std::vector<std::string> untouched;  ///< the same without `strict`: they have what they had

  friend bool operator==(const TransferReport&, const TransferReport&) = default;
};

}  // namespace dcp

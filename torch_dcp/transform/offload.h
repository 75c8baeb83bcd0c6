#pragma once

#include <vector>

#include "torch_dcp/state_dict/value.h"

namespace dcp {

struct OffloadOptions {
  /// Ranks that get the result; all if empty. Others get an empty dict, or None for a value that is no dict.
  std::vector<int> ranks = {};
  int my_rank = 0;  ///< compared with `ranks`
  /// Copies from devices may still run on return, as `Tensor::to` says: synchronize before the elements are read.
  bool non_blocking = false;
};

/// The state with every tensor on the CPU.
///
/// Tensors that are there already are returned as they are: they alias those of `state`. One that is there twice is
/// copied once. DTensors and ShardedTensors keep mesh, placements, global sizes and offsets; only their local parts
/// move. Strides are kept as `Tensor::to` keeps them. A Stateful becomes the offloaded form of its state.
///
/// \throws dcp::Error kUnsupported that names every tensor on the meta device, which has no elements to move;
///         kInvalidArgument for a negative rank, and as `clone`.
/// Collective: no, which is why the rank is an option.
DCP_API Dict offload(const Dict& state, const OffloadOptions& options = {});

/// The same for any value.
DCP_API Value offload_value(const Value& value, const OffloadOptions& options = {});

}  // namespace dcp

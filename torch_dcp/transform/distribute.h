#pragma once

#include <c10/core/Device.h>

#include <optional>

#include "torch_dcp/state_dict/value.h"
#include "torch_dcp/transform/transfer_report.h"

namespace dcp {

struct DistributeOptions {
  bool strict = false;  ///< remove from `local` what the full state lacks
  /// All tensors that the full state has end on the CPU: one that lies elsewhere is replaced by a new one.
  bool cpu_offload = false;
  /// Where tensors get memory that have none yet; the CPU if not given.
  std::optional<c10::Device> device = std::nullopt;
};

/// Gives `local` the values of a full state that every rank has: as `broadcast_state`, which see, without sending
/// anything. Each rank cuts out its own parts of DTensors, however uneven or strided, and ShardedTensors.
///
/// A target that gets new memory is replaced when all elements are there. New tensors never alias those of `full`.
/// Sources that lie in the memory of a target are read before it is written.
///
/// \throws dcp::Error that names everything which does not fit with its flat key, before anything is changed: kKey,
///         kType, kShape, kUnsupported.
/// Collective: no.
DCP_API TransferReport distribute_state(const Dict& full, Dict& local, const DistributeOptions& options = {});

}  // namespace dcp

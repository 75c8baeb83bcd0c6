#pragma once

#include "torch_dcp/comm/communicator.h"
#include "torch_dcp/state_dict/value.h"

namespace dcp {

/// Gives every rank what the coordinator's full state is like: the same structure and plain values, and in place of
/// each tensor one of its sizes and dtype on the meta device. Elements then follow by `broadcast_state`, into
/// destinations that fit.
///
/// \param full  Read on the coordinator alone; others may pass an empty one.
/// \throws dcp::CheckpointError alike on every rank, with flat keys: kType for DTensors and ShardedTensors,
/// kUnsupported for tensors
///         without elements of their own and quantized ones.
/// Collective: all ranks of the communicator, same order.
DCP_API Dict broadcast_outline(const Dict& full, Communicator& comm);

}  // namespace dcp

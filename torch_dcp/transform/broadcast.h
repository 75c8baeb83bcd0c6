#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>

#include "torch_dcp/comm/communicator.h"
#include "torch_dcp/state_dict/value.h"
#include "torch_dcp/transform/transfer_report.h"

namespace dcp {

using BroadcastReport = TransferReport;

struct BroadcastOptions {
  /// Remove from `local` what the full state lacks. The same on every rank.
  bool strict = false;
  /// All tensors that the full state has end on the CPU: one that lies elsewhere is replaced by a new one.
  bool cpu_offload = false;
  /// Where tensors get memory that have none yet; the CPU if not given.
  std::optional<c10::Device> device = std::nullopt;
  /// The most bytes that travel in one step, which is also the most extra memory that a receiver needs; small tensors
  /// share a step, large ones come in pieces. The coordinator needs twice as much. The same on every rank.
  std::int64_t bucket_bytes = std::int64_t{64} << 20;
};

/// Gives every rank's `local` the values of the full state that the communicator's coordinator has.
///
/// `full` is read on the coordinator alone; others may pass an empty one. Elements are written where `local` has them:
/// into plain tensors, and of a DTensor or ShardedTensor the part that this rank holds. A tensor that is undefined or
/// on the meta device is replaced by a new one. Values that are no tensors are replaced, once all tensors have arrived.
/// Dicts, lists and tuples are walked; a Stateful in `full` stands for its state.
///
/// Keys of dicts that `local` lacks are reported and dropped; those it has beside the full state's are removed
/// (`strict`) or left alone, and reported. Everything else must fit: kinds of containers, lengths of lists and tuples,
/// tensors where tensors are, shapes and dtypes.
///
/// On the coordinator `full` may share memory with `local`: tensors whose elements would be overwritten before they
/// have been read are copied first. A target that gets new memory is replaced when all its elements are there, a tensor
/// that is there twice by one new tensor in both places.
///
/// \throws dcp::CheckpointError alike on every rank. What does not fit is found on all ranks, and named with its flat
///         key, before any element moves: kKey, kType, kShape; kUnsupported for tensors without elements of their own
///         and DTensors with a Partial placement; kInvalidArgument for options that differ. If a later step fails, the
///         error says how many tensors had their new values by then.
/// Collective: all ranks of the communicator, same order.
DCP_API BroadcastReport broadcast_state(const Dict& full, Dict& local, Communicator& comm,
                                        const BroadcastOptions& options = {});

}  // namespace dcp

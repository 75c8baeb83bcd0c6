#pragma once

#include <cstdint>
#include <vector>

#include "torch_dcp/comm/communicator.h"
#include "torch_dcp/state_dict/value.h"

namespace dcp {

struct GatherOptions {
  /// Ranks of the communicator that get the result; all if empty. The same on every rank.
  std::vector<int> ranks = {};
  /// All tensors of the result lie on the CPU; those that are there already alias those of the state.
  bool cpu_offload = false;
  /// The most bytes of elements that travel in one step; small tensors share a step, large ones come in pieces. The
  /// same on every rank.
  std::int64_t bucket_bytes = std::int64_t{64} << 20;
};

/// The state with a whole plain tensor in place of every DTensor and ShardedTensor, at any depth.
///
/// Wholes are new tensors, detached, on the device of this rank's local part (the CPU if it has none) or on the CPU.
/// Parts may be uneven, strided or empty, a rank may hold several or none, or lie outside of the mesh: it gets the
/// whole too. Where several ranks hold a part the lowest one's bits count, except that a tensor which every rank holds
/// whole is copied on each and does not travel. `Partial` placements (sum, avg, max, min, product) are reduced in the
/// order of ranks, so that the result has the same bits in every run. A Stateful becomes its state; other values stay
/// as they are. What is there twice, with the same tensors for parts on every rank that has some, travels once and is
/// one new tensor in both places.
///
/// Every rank takes part, with the same keys of the same kinds; DTensors and ShardedTensors must agree in shape, dtype
/// and layout. Ranks that `options.ranks` leaves out get an empty dict.
///
/// Extra memory beside the wholes: a bucket on each rank, and two more on the coordinator; never a second whole.
///
/// \throws dcp::CheckpointError alike on every rank. Before any element moves all disagreements are found and named
///         with key and ranks: kKey, kType, kShape, kInvalidArgument (layouts, overlaps, holes, options), kUnsupported
///         (sparse, nested and meta tensors; other reductions, and those that the dtype does not have; quantizers for
///         each channel or that differ).
/// Collective: all ranks of the communicator, same order.
DCP_API Dict gather(const Dict& state, Communicator& comm, const GatherOptions& options = {});

/// The same for any value: ranks that are left out get None unless it is a dict.
DCP_API Value gather_value(const Value& value, Communicator& comm, const GatherOptions& options = {});

}  // namespace dcp

#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "torch_dcp/base/limits.h"
#include "torch_dcp/comm/group_ref.h"
#include "torch_dcp/comm/peer_link.h"
#include "torch_dcp/state_dict/value.h"

namespace dcp {

struct DCP_API TransportOptions {
  TransportOptions();

  /// Bytes of one message at most; the sender's count. Three are on their way at a time.
  std::int64_t piece_bytes = std::int64_t{16} << 20;
  /// Whether it is an error if a tensor of a given state cannot be filled in place, or is not sent. Else it is
  /// replaced.
  bool strict_in_place = false;
  /// Where tensors go that have no place in the given state.
  c10::Device device = c10::kCPU;
  /// Bounds on what a receiver accepts; `max_values` is 16 million here.
  ParseLimits limits;
  /// Bytes of memory that a receiver allocates for a state.
  std::int64_t max_state_bytes = std::int64_t{1} << 40;
  /// Tags from here to 4 more on are the transport's, where the link has other uses too.
  std::uint32_t first_tag = 16;
};

/// What went over the link so far, both ways.
struct TransportCounts {
  std::uint64_t messages_sent = 0;
  std::uint64_t bytes_sent = 0;
  std::uint64_t messages_received = 0;
  std::uint64_t bytes_received = 0;
};

/// Sends state dicts from rank to rank, without storage.
///
/// What arrives is what was sent to the last bit: structure and order, kinds of values, dtypes, strides, storage
/// offsets, lazy conjugates, quantizers, and whether leaves require gradients. Tensors that share a storage share one
/// again; of a storage the bytes from the first to the last that a tensor reaches are sent, once. A DTensor or
/// ShardedTensor is that of the sender: its part, and its place in the mesh. A Stateful travels as its state.
///
/// In place: a tensor of the given state keeps its memory if the one that is sent to its place has the same dtype,
/// sizes and strides, and if memory that both states share is shared alike. A given DTensor then keeps its mesh, and a
/// given Stateful gets its state by `load_state_dict`. Bytes go straight into memory that tensors cover wholly, and
/// else through a storage of the sent one's size. Everything else in the given state becomes as sent.
///
/// A receiver says for which step it wants the state. It refuses another, a head that is none, and (`strict_in_place`)
/// tensors that do not agree; the sender is told and throws the same. The given state is unchanged then. Checked before
/// the first byte of a tensor: all sizes, and that there is memory. Each storage's bytes carry a CRC-32.
///
/// Memory beside the states: three pieces per receiver, where they are packed or not on the CPU, and the head. Messages
/// to a receiver: 3, and one for each piece: small storages (up to 64 KiB) packed together, others cut by themselves.
/// From it: 3 answers.
///
/// Thread safety: full; between two ranks one state at a time in each direction, others wait.
class DCP_API ProcessGroupTransport {
 public:
  /// Collective: all ranks of the group, same order.
  static std::shared_ptr<ProcessGroupTransport> create(const GroupRef& group, const TransportOptions& options = {},
                                                       const PeerLinkOptions& link_options = {});
  /// Over a link that is there.
  explicit ProcessGroupTransport(std::shared_ptr<PeerLink> link, const TransportOptions& options = {});
  ~ProcessGroupTransport();
  ProcessGroupTransport(const ProcessGroupTransport&) = delete;
  ProcessGroupTransport& operator=(const ProcessGroupTransport&) = delete;

  const std::shared_ptr<PeerLink>& link() const;

  /// Sends to each of `ranks`, which call `receive`; returns when all have it. Tensors must not change meanwhile.
  /// \throws dcp::Error what a receiver refused with, naming it (the other ranks get the state nevertheless);
  ///         kUnsupported, naming the keys, for what cannot be sent (the receivers throw it too); kInvalidArgument;
  ///         kComm and kDeadline of a link that is broken, naming key, rank and cause.
  void send(const Dict& state, std::int64_t step, const std::vector<int>& ranks);
  void send(const Dict& state, std::int64_t step, int rank);

  /// \throws dcp::Error kState if another step's state is sent, naming both; kCorruptData for a damaged head, or bytes
  ///         with another CRC-32, naming a key; as `send`.
  Dict receive(std::int64_t step, int from);
  /// In place. If it throws after bytes have come (kComm, kDeadline, kCorruptData), tensors in `state` may have some of
  /// them; the error says so.
  void receive_into(Dict& state, std::int64_t step, int from);

  /// Sends to one rank while receiving from another, or the same one: ranks in a ring call it together.
  Dict exchange(const Dict& state, std::int64_t step, int to, int from);
  /// \param into  Filled in place; shares no memory with `state`.
  void exchange_into(const Dict& state, Dict& into, std::int64_t step, int to, int from);

  TransportCounts counts() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dcp

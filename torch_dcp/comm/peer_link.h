#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "torch_dcp/base/bytes.h"
#include "torch_dcp/base/export.h"
#include "torch_dcp/comm/group_factory.h"

namespace c10d {
class ProcessGroup;
class Store;
}  // namespace c10d

namespace dcp {

/// How a link works. The same on every rank, but for `store`.
struct DCP_API PeerLinkOptions {
  PeerLinkOptions();
  PeerLinkOptions(const PeerLinkOptions&);
  PeerLinkOptions& operator=(const PeerLinkOptions&);
  PeerLinkOptions(PeerLinkOptions&&) noexcept;
  PeerLinkOptions& operator=(PeerLinkOptions&&) noexcept;
  ~PeerLinkOptions();

  /// How long one wait for a peer may take: for its part of making the link, for one message, for one answer.
  std::chrono::milliseconds deadline = std::chrono::minutes(1);
  /// Separates links over one store; links of one name are told apart by the order in which they are made.
  std::string name = "peers";
  /// A store that the group's ranks share; that of the group if null.
  c10::intrusive_ptr<c10d::Store> store;
  /// Makes groups of Gloo's kind: with send, recv and recvAnysource from several threads.
  GroupFactory group_factory = gloo_group_factory();
};

class LinkCore;

/// Messages between any two ranks, over a group of its own.
///
/// The caller's group is asked for rank, size and store and never waited on. Messages between two ranks under one tag
/// arrive in their order. A receive states exactly the size that is sent: a larger message ends the receiver's process
/// (Gloo's way), so where sizes vary a head of fixed size goes before.
///
/// The first failure (a peer that is gone, a deadline, `break_off`) breaks the link on all ranks within milliseconds,
/// also on those that wait for nothing: all calls throw that error, with the reason in the words of the rank that met
/// it, and only a new link helps. A rank that destroys its link has *left*: that breaks nothing, only transfers with
/// that rank fail (kComm). What was sent right before leaving may be lost; a conversation ends with an answer.
///
/// Thread safety: full; two threads receive under different tags. Nothing here hangs.
class DCP_API PeerLink {
 public:
  /// \throws dcp::Error kInvalidArgument without a store; kDeadline or kComm naming the ranks if they do not come.
  /// Collective: all ranks of the group, same order.
  static std::shared_ptr<PeerLink> create(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                                          const PeerLinkOptions& options = {});
  ~PeerLink();
  PeerLink(const PeerLink&) = delete;
  PeerLink& operator=(const PeerLink&) = delete;

  int rank() const;
  int size() const;
  bool is_broken() const;
  /// Empty as long as the link works.
  std::string broken_reason() const;
  /// \throws dcp::Error as a transfer would, "`doing`: reason", if the link is broken.
  void throw_if_broken(const std::string& doing) const;
  std::chrono::milliseconds deadline() const;

  /// A message on its way. Destroyed without `wait` it goes on by itself, for as long as the deadline says: then the
  /// link breaks, as for a wait. Its memory must stay valid as long as `keep_alive` keeps it. So an answer may be sent
  /// without waiting for a slow client.
  class DCP_API Transfer {
   public:
    Transfer(Transfer&&) noexcept;
    Transfer& operator=(Transfer&&) noexcept;
    ~Transfer();
    /// Returns when the bytes have been sent, or have arrived.
    /// Once that failed the memory is free. Costs no thread: the wait lies in the caller's.
    /// \param give_up  Throws to end the wait, asked every few milliseconds; may be empty. The link is broken then.
    /// \throws dcp::Error kDeadline or kComm, naming the peer and what was waited for.
    void wait(const std::function<void()>& give_up = {});

   private:
    friend class PeerLink;
    struct State;
    explicit Transfer(std::unique_ptr<State> state);
    std::unique_ptr<State> state_;
  };

  /// \param tag         0 up to 2^30.
  /// \param what        For errors: "the head of a request".
  /// \param keep_alive  Owns the memory, for a transfer that is left behind.
  /// \throws dcp::Error kInvalidArgument for this rank itself or one that is not in the group, and empty `bytes`.
  Transfer send(int rank, std::uint32_t tag, ByteSpan bytes, std::shared_ptr<const void> keep_alive, std::string what);
  Transfer receive(int rank, std::uint32_t tag, MutableByteSpan bytes, std::shared_ptr<const void> keep_alive,
                   std::string what);

  /// Ends every wait here, and within milliseconds at the peers. \param reason  All ranks' calls say it, with kComm.
  void break_off(const std::string& reason);

  /// Calls `handle(rank, bytes)` for each message of `byte_count` bytes that any peer sends under `tag`, one after
  /// another on a thread of the link's own, until the link is broken or destroyed. What `handle` throws breaks the
  /// link, with its kind. `handle` may use the link, but not destroy it. Once for a link.
  void serve(std::uint32_t tag, std::size_t byte_count, std::function<void(int rank, const Bytes& bytes)> handle);
  /// Ends serving and waits for `handle` to return. Serving cannot begin again.
  void stop_serving();

 private:
  explicit PeerLink(std::shared_ptr<LinkCore> core);
  Transfer start(bool sends, int rank, std::uint32_t tag, MutableByteSpan bytes, std::shared_ptr<const void> keep_alive,
                 const std::string& what);

  std::shared_ptr<LinkCore> core_;
};

}  // namespace dcp

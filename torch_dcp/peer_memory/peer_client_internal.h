#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "torch_dcp/base/bytes.h"
#include "torch_dcp/comm/peer_link.h"
#include "torch_dcp/peer_memory/peer_protocol_internal.h"

namespace dcp::peer {

/// Asks other ranks' services. Thread safety: full.
class PeerClient {
 public:
  explicit PeerClient(std::shared_ptr<PeerLink> link) : link_(std::move(link)) {}

  /// The file's size; nothing if that rank has no such file.
  std::optional<std::uint64_t> size_of(int rank, std::uint64_t generation, const std::string& name);

  /// \throws dcp::Error what went wrong there or on the way, naming the rank.
  void read(int rank, std::uint64_t generation, const std::string& name, std::uint64_t offset, MutableByteSpan out);

  const std::shared_ptr<PeerLink>& link() const { return link_; }
  std::uint32_t next_call() { return next_call_.fetch_add(1, std::memory_order_relaxed) % kCalls; }

 private:
  Answer ask(int rank, const Request& request, MutableByteSpan bytes);

  std::shared_ptr<PeerLink> link_;
  std::atomic<std::uint32_t> next_call_{0};
};

/// One file on its way to several ranks' memories. Destroyed unsealed it is taken back.
class PeerPut {
 public:
  PeerPut(PeerClient& client, const std::vector<int>& ranks, std::uint64_t generation, std::string name);
  ~PeerPut();
  PeerPut(const PeerPut&) = delete;
  PeerPut& operator=(const PeerPut&) = delete;

  /// Sends the next bytes, without waiting for them unless several pieces are on their way already.
  ///
  /// \param piece       1 to `kPieceBytes` bytes, which must not change any more.
  /// \param keep_alive  Owns them.
  void send(ByteSpan piece, const std::shared_ptr<const void>& keep_alive);

  /// Returns when all ranks have the file.
  /// \throws dcp::Error naming the rank that has not, and why.
  void seal(const std::string& note);

 private:
  /// A rank, and what is on its way to it.
  struct Target {
    Target(int to, std::uint32_t number) : rank(to), call(number) {}
    Target(Target&&) = default;

    int rank;
    std::uint32_t call;
    std::deque<PeerLink::Transfer> transfers;
  };

  void send_head(Target& target, Verb verb, std::uint64_t byte_count, const std::string& note = {});
  std::string what() const { return "'" + name_ + "' of generation " + std::to_string(generation_); }

  PeerClient& client_;
  std::uint64_t generation_;
  std::string name_;
  std::vector<Target> targets_;
  bool is_over_ = false;
};

}  // namespace dcp::peer

#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "torch_dcp/base/byte_codec.h"
#include "torch_dcp/io/shared_memory.h"
#include "torch_dcp/memory/memory_client.h"
#include "torch_dcp/memory/stretches_internal.h"
#include "torch_dcp/memory/unix_socket_internal.h"
#include "torch_dcp/memory/vault_protocol_internal.h"

namespace dcp {

/// A client's end: requests and their answers, and the server's blocks in this process's memory. Thread safety: full.
///
/// Stays open, even when it is broken, as long as somebody holds it: only then does the server give the memory of this
/// client's files to others.
class VaultConnection {
 public:
  /// \throws dcp::Error See `open_memory_vault`.
  VaultConnection(const std::string& socket, const MemoryClientOptions& options);
  VaultConnection(const VaultConnection&) = delete;
  VaultConnection& operator=(const VaultConnection&) = delete;

  /// The server's, the same for all of its clients.
  const std::string& vault_id() const { return vault_id_; }

  /// Asks, and returns what came behind the answer's head.
  ///
  /// \param doing  What it is for, for errors.
  /// \throws dcp::Error what the server answers; kDeadline; kComm
  Bytes ask(ByteWriter request, const std::string& doing);
  /// Says what needs no answer; if that fails the connection is broken, which the next call tells.
  void tell(ByteWriter request) noexcept;

  /// Where pieces are in this process's memory. \throws dcp::Error kCorruptData if they are not in the blocks.
  std::vector<MutableByteSpan> locate(const std::vector<vault_protocol::PiecePlace>& pieces);

 private:
  using TimePoint = std::chrono::steady_clock::time_point;

  void connect(TimePoint until);
  void hello(const std::string& job, TimePoint until);
  Bytes exchange(const Bytes* request, TimePoint until);
  void send(const Bytes& request, TimePoint until);
  void receive(MutableByteSpan into, TimePoint until);
  void map_blocks(const std::vector<std::uint64_t>& byte_counts);
  template <typename Call>
  auto guarded(const std::string& doing, TimePoint until, const Call& call);

  const std::string socket_path_;
  const std::chrono::milliseconds deadline_;
  std::timed_mutex mutex_;
  Descriptor socket_;
  std::string vault_id_;
  std::string broken_;                   // why, if it is
  std::vector<Descriptor> descriptors_;  // that came and are not mapped yet
  std::vector<SharedMemory> blocks_;
};

}  // namespace dcp

#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "torch_dcp/comm/peer_link.h"
#include "torch_dcp/memory/memory_vault.h"
#include "torch_dcp/peer_memory/peer_protocol_internal.h"

namespace dcp::peer {

/// Serves a vault to the other ranks of a link, on the link's own thread.
///
/// What goes wrong with a request is its answer; what goes wrong with a message breaks the link. Files that have not
/// come whole when the link ends are gone.
class PeerService {
 public:
  PeerService(std::shared_ptr<MemoryVault> vault, std::shared_ptr<PeerLink> link);
  ~PeerService();
  PeerService(const PeerService&) = delete;
  PeerService& operator=(const PeerService&) = delete;

 private:
  /// A file on its way here.
  struct Put {
    std::shared_ptr<VaultWriter> writer;
    std::uint32_t crc = 0;  ///< of what has come
    Answer answer;          ///< the error of the first part that failed
  };
  using PutKey = std::pair<int, std::uint32_t>;  // rank and call

  void handle(int rank, const Request& request);
  void begin_put(int rank, const Request& request);
  void take_piece(int rank, const Request& request);
  void seal_put(int rank, const Request& request);
  void read(int rank, const Request& request);
  void answer(int rank, const Request& request, const Answer& answer, Bytes bytes = {});
  Put& put(int rank, const Request& request);

  std::shared_ptr<MemoryVault> vault_;
  std::shared_ptr<PeerLink> link_;
  std::map<PutKey, Put> puts_;  // of the serving thread
};

}  // namespace dcp::peer

#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "torch_dcp/base/bytes.h"
#include "torch_dcp/memory/vault_files_internal.h"
#include "torch_dcp/memory/vault_protocol_internal.h"

namespace dcp {

/// What is sent back for a request.
struct VaultAnswer {
  Bytes bytes;                   ///< of the frame, its length included; empty if there is nothing to say
  std::vector<int> descriptors;  ///< travel with the first byte; belong to the arena
  bool is_last = false;          ///< the connection ends after it
};

/// One client of a server: what it asks, and the files that it has open. With this object they are released, and what
/// it did not seal is gone.
///
/// Nothing that a client says makes it take more than `kHandles` entries and the budget's memory.
class VaultSession {
 public:
  VaultSession(std::shared_ptr<VaultFiles> files, std::string vault_id);

  /// The first thing that a client hears.
  static VaultAnswer greeting();
  /// The first and last thing that a client hears which is not served.
  static VaultAnswer refusal(ErrorKind kind, const std::string& message);

  /// \param request  What came in one frame, whatever that is. A request that is none, or not this version's, is
  ///                 answered by an error and ends the connection.
  VaultAnswer answer(ByteSpan request);

 private:
  struct Reply;
  Reply run(ByteSpan request);
  void hello(ByteReader& reader, Reply& reply);
  void create(ByteReader& reader, Reply& reply);
  void grow(ByteReader& reader, Reply& reply);
  void seal(ByteReader& reader);
  void open(ByteReader& reader, Reply& reply);
  void drop_file(ByteReader& reader);
  void use(ByteReader& reader, Reply& reply);
  FileDraft& draft(std::uint64_t handle);
  std::uint64_t next_handle();
  void add_pieces(const std::vector<MemoryArena::Piece>& pieces, std::size_t first, Reply& reply);

  const std::shared_ptr<VaultFiles> files_;
  const std::string vault_id_;
  bool has_said_hello_ = false;
  std::uint32_t known_blocks_ = 0;  // whose descriptors the client has
  std::uint64_t last_handle_ = 0;
  std::map<std::uint64_t, std::unique_ptr<FileDraft>> drafts_;
  std::map<std::uint64_t, std::shared_ptr<const PieceList>> readers_;
};

}  // namespace dcp

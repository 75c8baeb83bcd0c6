#pragma once

#include <string>
#include <vector>

namespace dcp::peer {

/// Where a rank's memory is.
struct MemberPlace {
  std::string vault;  ///< `MemoryVault::id`
  std::string host;
};

/// Chooses which ranks' memories hold copies of each rank's files.
///
/// The same on every rank that asks with the same places. Copies of a rank lie in as many other vaults, none of them on
/// its own host if there are others, on different hosts as far as there are, and each rank holds about as many copies
/// as another.
///
/// \returns By rank, the ranks that hold its copies, `copies` each.
/// \throws dcp::Error kInvalidArgument if there are not that many other vaults.
/// Complexity: quadratic in the ranks.
std::vector<std::vector<int>> place_copies(const std::vector<MemberPlace>& places, int copies);

}  // namespace dcp::peer

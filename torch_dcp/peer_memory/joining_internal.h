#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "torch_dcp/base/byte_codec.h"
#include "torch_dcp/base/bytes.h"
#include "torch_dcp/memory/memory_vault.h"
#include "torch_dcp/peer_memory/peer_store_internal.h"

// What ranks that meet make of what their memories hold. The same on every rank that asks with the same inventories.

namespace dcp::peer {

/// What a rank brings to a meeting.
struct Inventory {
  std::string vault = {};
  std::string host = {};
  std::string job = {};
  std::vector<VaultGeneration> generations = {};  ///< intact files alone
  std::vector<std::string> damaged = {};          ///< what was dropped, in words
};

void encode(ByteWriter& out, const Inventory& inventory);
void decode(ByteReader& in, Inventory& inventory);

/// Drops the files of `vault` whose bytes are not those that were sealed. Reads everything.
Inventory take_inventory(MemoryVault& vault, std::string host);

/// Files of one save, wherever they are held.
struct Candidate {
  std::uint64_t number = 0;
  std::int64_t step = -1;
  std::string save_id = {};
  HeldFiles files = {};
};

/// The saves of which anything is held, the newest first. Never a mixture of two: saves that failed may have left files
/// under the number that a later save took.
std::vector<Candidate> find_candidates(const std::vector<Inventory>& inventories);

/// The files that a checkpoint's metadata names, and how many bytes of each there must be.
using NamedFiles = std::map<std::string, std::uint64_t>;
NamedFiles files_named_by(ByteSpan metadata);
/// Those that are not held whole, by name.
std::vector<std::string> missing_in(const HeldFiles& held, const NamedFiles& named);

/// A file that is to come into a rank's memory.
struct Refill {
  std::string name;
  int to = 0;
  std::vector<int> from = {};
};

/// What is missing for every rank to have its part and the copies that it is to hold. Parts of ranks that there are no
/// longer fall to others. `candidate.files` has the holders afterwards; \returns what it takes.
std::vector<Refill> plan_refill(Candidate& candidate, const std::vector<Inventory>& inventories,
                                const std::vector<std::vector<int>>& copies, int coordinator);

/// Forgets what is not in `candidate` (everything, if null), and its files that `rank` is not to hold.
void drop_others(MemoryVault& vault, const Candidate* candidate);
void drop_surplus(MemoryVault& vault, const Candidate& candidate, int rank);

}  // namespace dcp::peer

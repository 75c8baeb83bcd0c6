#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

#include "torch_dcp/base/error.h"
#include "torch_dcp/comm/codec.h"
#include "torch_dcp/format/metadata_pickle.h"
#include "torch_dcp/peer_memory/file_owner_internal.h"
#include "torch_dcp/peer_memory/joining_internal.h"

namespace dcp::peer {
namespace {

bool is_of(const VaultFile& file, const Candidate& candidate) {
  return from_note(file.note).save_id == candidate.save_id;
}

/// Ranks whose vault is that of one of `ranks`: they see the same files.
std::vector<int> with_shared(const std::vector<int>& ranks, const std::vector<Inventory>& inventories) {
  std::vector<int> all;
  for (std::size_t rank = 0; rank < inventories.size(); ++rank) {
    const bool sees = std::any_of(ranks.begin(), ranks.end(), [&](int other) {
      return inventories[static_cast<std::size_t>(other)].vault == inventories[rank].vault;
    });
    if (sees) all.push_back(static_cast<int>(rank));
  }
  return all;
}

}  // namespace

void encode(ByteWriter& out, const Inventory& inventory) {
  out.text(inventory.vault);
  out.text(inventory.host);
  out.text(inventory.job);
  out.u64(inventory.generations.size());
  for (const VaultGeneration& generation : inventory.generations) {
    out.u64(generation.number);
    out.u64(generation.files.size());
    for (const VaultFile& file : generation.files) {
      out.text(file.name);
      out.u64(file.size);
      out.text(file.note);
    }
  }
  encode(out, inventory.damaged);
}

void decode(ByteReader& in, Inventory& inventory) {
  inventory.vault = in.text();
  inventory.host = in.text();
  inventory.job = in.text();
  inventory.generations.clear();
  for (std::uint64_t left = in.count(); left > 0; --left) {
    VaultGeneration& generation = inventory.generations.emplace_back();
    generation.number = in.u64();
    for (std::uint64_t files = in.count(); files > 0; --files) {
      VaultFile& file = generation.files.emplace_back();
      file.name = in.text();
      file.size = in.u64();
      file.note = in.text();
    }
  }
  decode(in, inventory.damaged);
}

Inventory take_inventory(MemoryVault& vault, std::string host) {
  Inventory inventory;
  inventory.vault = vault.id();
  inventory.host = std::move(host);
  inventory.job = vault.job();
  for (VaultGeneration& generation : vault.list()) {
    const auto is_damaged = [&](const VaultFile& file) {
      if (is_intact(vault, generation.number, file)) return false;
      vault.drop(generation.number, file.name);
      inventory.damaged.push_back(c10::str("'", file.name, "' of generation ", generation.number, " in memory ",
                                           vault.id(), ": its bytes are not those that were saved"));
      return true;
    };
    std::vector<VaultFile> intact;
    for (VaultFile& file : generation.files) {
      if (!is_damaged(file)) intact.push_back(std::move(file));
    }
    generation.files = std::move(intact);
    inventory.generations.push_back(std::move(generation));
  }
  return inventory;
}

std::vector<Candidate> find_candidates(const std::vector<Inventory>& inventories) {
  std::map<std::tuple<std::uint64_t, std::int64_t, std::string>, Candidate> candidates;
  for (std::size_t rank = 0; rank < inventories.size(); ++rank) {
    for (const VaultGeneration& generation : inventories[rank].generations) {
      for (const VaultFile& file : generation.files) {
        const FileNote note = from_note(file.note);
        Candidate& candidate = candidates[{generation.number, note.step, note.save_id}];
        candidate.number = generation.number;
        candidate.step = note.step;
        candidate.save_id = note.save_id;
        HeldFile& held = candidate.files[file.name];
        DCP_CHECK(held.holders.empty() || (held.size == file.size && held.note == file.note), kCorruptData, "'",
                  file.name, "' of generation ", generation.number, " differs between ranks ", held.holders.front(),
                  " and ", rank);
        held.size = file.size;
        held.note = file.note;
        held.holders.push_back(static_cast<int>(rank));
      }
    }
  }
  std::vector<Candidate> newest_first;
  for (auto at = candidates.rbegin(); at != candidates.rend(); ++at) newest_first.push_back(std::move(at->second));
  return newest_first;
}

NamedFiles files_named_by(ByteSpan metadata) {
  NamedFiles named;
  for (const auto& [index, info] : decode_metadata(metadata).storage_data) {
    std::uint64_t& end = named[info.relative_path];
    end = std::max(end, static_cast<std::uint64_t>(info.offset + info.length));
  }
  return named;
}

std::vector<std::string> missing_in(const HeldFiles& held, const NamedFiles& named) {
  std::vector<std::string> missing;
  for (const auto& [name, end] : named) {
    const auto found = held.find(name);
    if (found == held.end() || found->second.size < end) missing.push_back(name);
  }
  return missing;
}

std::vector<Refill> plan_refill(Candidate& candidate, const std::vector<Inventory>& inventories,
                                const std::vector<std::vector<int>>& copies, int coordinator) {
  std::vector<Refill> refills;
  for (auto& [name, file] : candidate.files) {
    const int owner = owner_of(name).value_or(coordinator) % static_cast<int>(inventories.size());
    std::vector<int> wanted = copies[static_cast<std::size_t>(owner)];
    wanted.insert(wanted.begin(), owner);
    for (const int rank : wanted) {
      if (std::find(file.holders.begin(), file.holders.end(), rank) == file.holders.end()) {
        refills.push_back({name, rank, file.holders});
      }
    }
    file.holders = with_shared(wanted, inventories);
  }
  return refills;
}

void drop_others(MemoryVault& vault, const Candidate* candidate) {
  for (const VaultGeneration& generation : vault.list()) {
    if (candidate == nullptr || generation.number != candidate->number) {
      vault.drop(generation.number);
      continue;
    }
    for (const VaultFile& file : generation.files) {
      if (!is_of(file, *candidate)) vault.drop(generation.number, file.name);
    }
  }
}

void drop_surplus(MemoryVault& vault, const Candidate& candidate, int rank) {
  for (const auto& [name, file] : candidate.files) {
    if (std::find(file.holders.begin(), file.holders.end(), rank) == file.holders.end()) {
      vault.drop(candidate.number, name);
    }
  }
}

}  // namespace dcp::peer

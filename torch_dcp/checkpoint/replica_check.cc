#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "torch_dcp/base/fault_list.h"
#include "torch_dcp/checkpoint/replica_check_internal.h"
#include "torch_dcp/checkpoint/value_digest_internal.h"
#include "torch_dcp/comm/rank_step.h"
#include "torch_dcp/plan/wire.h"

namespace dcp {
namespace {

/// One chunk or object, and who has it.
struct Replica {
  MetadataIndex index;
  Box chunk;
  std::vector<int> ranks;
  std::map<std::uint64_t, std::vector<int>> ranks_by_digest;
};

/// What the coordinator knows of all ranks.
class ReplicaTable {
 public:
  /// Returns for each rank which of its items are to be digested: those that another rank has too.
  std::vector<std::vector<std::uint64_t>> collect(const std::vector<SavePlan>& plans) {
    std::unordered_map<MetadataIndex, std::size_t, MetadataIndexHash> numbers;
    std::vector<std::vector<std::size_t>> of_items(plans.size());
    for (std::size_t rank = 0; rank < plans.size(); ++rank) {
      for (const WriteItem& item : plans[rank].items) {
        of_items[rank].push_back(kNone);
        if (item.is_tensor() && item.chunk.empty()) continue;
        const auto [place, is_new] = numbers.try_emplace(item.index, replicas_.size());
        if (is_new) replicas_.push_back({item.index, item.chunk, {}, {}});
        Replica& replica = replicas_[place->second];
        // Of other sizes at the same offset: planning refuses that.
        if (replica.chunk != item.chunk) continue;
        if (!replica.ranks.empty() && replica.ranks.back() == static_cast<int>(rank)) continue;
        replica.ranks.push_back(static_cast<int>(rank));
        of_items[rank].back() = place->second;
      }
    }
    std::vector<std::vector<std::uint64_t>> wanted(plans.size());
    asked_.resize(plans.size());
    for (std::size_t rank = 0; rank < plans.size(); ++rank) {
      for (std::size_t i = 0; i < of_items[rank].size(); ++i) {
        const std::size_t number = of_items[rank][i];
        if (number == kNone || replicas_[number].ranks.size() < 2) continue;
        wanted[rank].push_back(i);
        asked_[rank].push_back(number);
      }
    }
    return wanted;
  }

  /// \param digests  Of each rank's items in the order asked for.
  void compare(const std::vector<std::vector<std::uint64_t>>& digests) {
    for (std::size_t rank = 0; rank < digests.size(); ++rank) {
      DCP_CHECK(digests[rank].size() == asked_[rank].size(), kInternal, "rank ", rank, " sent ", digests[rank].size(),
                " digests instead of ", asked_[rank].size());
      for (std::size_t i = 0; i < digests[rank].size(); ++i) {
        replicas_[asked_[rank][i]].ranks_by_digest[digests[rank][i]].push_back(static_cast<int>(rank));
      }
    }
    FaultList faults;
    for (const Replica& replica : replicas_) {
      if (replica.ranks_by_digest.size() < 2) continue;
      faults.add(ErrorKind::kInvalidArgument, to_string(replica.index), describe(replica));
    }
    faults.throw_if_any("values that several ranks have differ", DCP_WHERE);
  }

 private:
  static constexpr std::size_t kNone = SIZE_MAX;

  /// Spells `0, 2-5`.
  static std::string spell(const std::vector<int>& ranks) {
    std::string text;
    for (std::size_t begin = 0, end = 0; begin < ranks.size(); begin = end) {
      while (end < ranks.size() && ranks[end] == ranks[begin] + static_cast<int>(end - begin)) ++end;
      text += (text.empty() ? "" : ", ") + std::to_string(ranks[begin]);
      if (end - begin > 1) text += "-" + std::to_string(ranks[end - 1]);
    }
    return text;
  }

  static std::string describe(const Replica& replica) {
    std::vector<std::pair<std::vector<int>, std::uint64_t>> groups;
    for (const auto& [digest, ranks] : replica.ranks_by_digest) groups.emplace_back(ranks, digest);
    std::sort(groups.begin(), groups.end());
    std::string text;
    for (const auto& [ranks, digest] : groups) {
      char digits[17];
      std::snprintf(digits, sizeof(digits), "%016llx", static_cast<unsigned long long>(digest));
      text += (text.empty() ? "" : "; ") + std::string(ranks.size() == 1 ? "rank " : "ranks ") + spell(ranks) +
              (ranks.size() == 1 ? " has " : " have ") + digits;
    }
    return text;
  }

  std::vector<Replica> replicas_;
  std::vector<std::vector<std::size_t>> asked_;  ///< numbers of replicas, by rank
};

}  // namespace

void check_replicas(Communicator& comm, const std::function<const SavePlan&()>& make_plan, const SavePlanner& planner) {
  ReplicaTable table;  // coordinator only
  const SavePlan* plan = nullptr;
  const std::vector<std::uint64_t> wanted = reduce_scatter_step(
      comm, "list replicas",
      [&] {
        plan = &make_plan();
        SavePlan items;
        items.items = plan->items;
        return items;
      },
      [&](std::vector<SavePlan> plans) { return table.collect(plans); });
  reduce_step(
      comm, "compare replicas",
      [&] {
        std::vector<std::uint64_t> digests;
        for (const std::uint64_t number : wanted) {
          comm.throw_if_cancelled();
          const WriteItem& item = plan->items.at(number);
          digests.push_back(item.is_tensor() ? digest_of(planner.resolve_tensor(item))
                                             : digest_of(planner.resolve_object(item)));
        }
        return digests;
      },
      [&](const std::vector<std::vector<std::uint64_t>>& digests) {
        table.compare(digests);
        return true;
      });
}

}  // namespace dcp

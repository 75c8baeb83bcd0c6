#include <algorithm>
#include <optional>
#include <set>
#include <tuple>

#include "torch_dcp/base/error.h"
#include "torch_dcp/peer_memory/placement_internal.h"

namespace dcp::peer {
namespace {

/// What makes a rank worse as a holder, the weightiest first.
using Cost = std::tuple<bool, bool, std::size_t, std::size_t>;

class Placing {
 public:
  Placing(const std::vector<MemberPlace>& places, std::size_t copies)
      : places_(places), copies_(copies), held_(places.size(), 0) {}

  std::vector<int> holders_of(std::size_t owner) {
    std::set<std::string> vaults = {places_[owner].vault};
    std::set<std::string> hosts = {places_[owner].host};
    std::vector<int> holders;
    while (holders.size() < copies_) {
      const std::optional<std::size_t> best = find_best(owner, vaults, hosts);
      DCP_CHECK(best, kInvalidArgument, copies_, " copies of rank ", owner,
                "'s items need as many memories beside its own; there are ", holders.size());
      holders.push_back(static_cast<int>(*best));
      ++held_[*best];
      vaults.insert(places_[*best].vault);
      hosts.insert(places_[*best].host);
    }
    return holders;
  }

 private:
  std::optional<std::size_t> find_best(std::size_t owner, const std::set<std::string>& vaults,
                                       const std::set<std::string>& hosts) const {
    std::optional<std::size_t> best;
    Cost best_cost;
    for (std::size_t distance = 1; distance < places_.size(); ++distance) {
      const std::size_t rank = (owner + distance) % places_.size();
      if (vaults.contains(places_[rank].vault)) continue;
      const Cost cost = {places_[rank].host == places_[owner].host, hosts.contains(places_[rank].host), held_[rank],
                         distance};
      if (best && best_cost <= cost) continue;
      best = rank;
      best_cost = cost;
    }
    return best;
  }

  const std::vector<MemberPlace>& places_;
  std::size_t copies_;
  std::vector<std::size_t> held_;  // copies, by rank
};

}  // namespace

std::vector<std::vector<int>> place_copies(const std::vector<MemberPlace>& places, int copies) {
  DCP_CHECK(copies >= 0, kInvalidArgument, copies, " copies");
  Placing placing(places, static_cast<std::size_t>(copies));
  std::vector<std::vector<int>> holders;
  for (std::size_t rank = 0; rank < places.size(); ++rank) holders.push_back(placing.holders_of(rank));
  return holders;
}

}  // namespace dcp::peer

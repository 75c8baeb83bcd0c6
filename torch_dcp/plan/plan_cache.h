#pragma once

#include <cstddef>
#include <memory>

#include "torch_dcp/base/export.h"

namespace dcp {

struct SavePlanExchangeState;

/// Remembers the plans of a save for the next one: a rank whose plan is the same sends and receives a few bytes, and
/// the coordinator plans anew only if a rank's has changed. The plans themselves are compared, not digests of them.
///
/// Each rank has one of its own and gives it to every save (`SaveOptions::plan_cache`). Whatever changes - keys,
/// shapes, chunks, dtypes, strides, device kinds, placements, options, the planner's class, ranks, coordinator - is
/// exchanged anew. So it is after a save that failed, and where a rank has lost its cache (a process that was started
/// again): all ranks agree on what is known by a number that names the exchange.
///
/// Ranks that have none take part too, and send their plans each time; one on the coordinator is what spares it
/// planning and the others sending.
///
/// Keeps this rank's local and final plan, on the coordinator those of all ranks and the metadata: about half a KiB an
/// item, on the coordinator for the items of all ranks.
///
/// Thread safety: one save at a time.
class DCP_API SavePlanCache {
 public:
  /// What the last exchange of plans took on this rank.
  struct Use {
    bool sent_plan = false;      ///< the rank's plan, since it is new or was asked for
    bool received_plan = false;  ///< its part of the global plan, since it is new
    bool planned_anew = false;   ///< coordinator: a global plan was made
    std::size_t sent_bytes = 0;  ///< by this rank; in a world of one what it would send
    std::size_t received_bytes = 0;
  };

  SavePlanCache();
  ~SavePlanCache();
  SavePlanCache(const SavePlanCache&) = delete;
  SavePlanCache& operator=(const SavePlanCache&) = delete;

  const Use& last_use() const { return use_; }

  /// Forgets everything and frees its memory; the next save exchanges all plans.
  void clear();

 private:
  friend class SavePlanExchange;

  std::unique_ptr<SavePlanExchangeState> state_;  ///< null while nothing is remembered
  Use use_;
};

}  // namespace dcp

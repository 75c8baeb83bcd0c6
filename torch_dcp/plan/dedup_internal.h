#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "torch_dcp/plan/plan.h"

namespace dcp {

struct DedupedPlans {
  std::vector<SavePlan> plans;
  /// Of the plans' items, in order of ranks: the number of each one's key, which were counted as they appeared in all
  /// that was offered.
  std::vector<std::uint32_t> key_numbers;
  std::size_t key_count = 0;
};

/// `dedup_save_plans`, for who needs to know which items have the same key: to find out is a good part of planning.
DedupedPlans dedup_and_number(std::vector<SavePlan> plans, bool to_lowest_rank, std::int64_t split_bytes);

}  // namespace dcp

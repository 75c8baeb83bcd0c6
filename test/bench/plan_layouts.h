#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "test/bench/settings.h"
#include "torch_dcp/plan/metadata.h"
#include "torch_dcp/plan/plan.h"

// What ranks of large jobs would offer to save, without the ranks.

namespace dcp::bench {

struct PlanLayout {
  std::string name;
  std::int64_t items_per_rank;
  std::function<SavePlan(std::int64_t rank, std::int64_t ranks)> make_plan;
};

/// Rows of many tensors, and some that all ranks have.
PlanLayout sharded_layout(const Settings& settings);

/// One flat tensor for each layer and two moments of it, cut by the chunk rule: the last ranks have less, or nothing.
PlanLayout flat_layout();

/// Tensors that one rank alone has, some that are cut over the 8 ranks of a node and repeated on each node, and some
/// that all ranks have.
PlanLayout expert_layout();

/// Says where each chunk of planned metadata is stored, as a writer with one file for each rank would.
void add_storage(Metadata& metadata, std::int64_t files);

}  // namespace dcp::bench

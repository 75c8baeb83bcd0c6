#pragma once

#include "torch_dcp/plan/planner.h"
#include "torch_dcp/state_dict/flatten.h"

namespace dcp {

struct SavePlannerOptions {
  FlattenRule flatten = FlattenRule::kCurrent;
  /// A replicated item is written by its lowest holder instead of the one with the fewest bytes.
  bool dedup_save_to_lowest_rank = false;
};

/// Flattens the state dict, offers every local chunk, keeps one writer per chunk, balanced
/// by the chunks' bytes, and validates the result. Override one step to change it.
class DCP_API DefaultSavePlanner : public SavePlanner {
 public:
  explicit DefaultSavePlanner(SavePlannerOptions options = {});
  ~DefaultSavePlanner() override;

  /// The planner refers to what is in `state`, which the caller keeps as it is until the save ends.
  void set_up(const StateDict& state, const SavePlannerContext& context) override;
  void set_up(StateDict&& state, const SavePlannerContext& context) = delete;
  SavePlan create_local_plan() override;
  std::pair<std::vector<SavePlan>, Metadata> create_global_plan(std::vector<SavePlan> all_plans) override;
  SavePlan finish_plan(SavePlan plan) override;
  at::Tensor resolve_tensor(const WriteItem& item) const override;
  const Value& resolve_object(const WriteItem& item) const override;

 protected:
  const LeafPlaces& leaves() const { return leaves_; }
  const SavePlannerContext& context() const { return context_; }

 private:
  SavePlannerOptions options_;
  SavePlannerContext context_;
  LeafPlaces leaves_;
  /// Chunk views by item, made in create_local_plan.
  OrderedMap<MetadataIndex, at::Tensor, MetadataIndexHash> views_;
};

}  // namespace dcp

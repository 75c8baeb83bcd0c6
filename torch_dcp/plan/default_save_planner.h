#pragma once

#include <cstdint>
#include <optional>

#include "torch_dcp/plan/planner.h"
#include "torch_dcp/state_dict/flatten.h"

namespace dcp {

struct SavePlannerOptions {
  FlattenRule flatten = FlattenRule::kCurrent;
  /// A replicated item is written by its lowest holder instead of the one with the fewest bytes.
  bool dedup_save_to_lowest_rank = false;
  /// A tensor chunk of more bytes that several ranks hold alike (a replicated tensor, a shard of a replicated group) is
  /// cut into blocks of rows, and its holders write one each, such that all ranks write equally much; 0: every chunk
  /// has one writer. Where the holders' values differ, the stored tensor is put together from several of them. Only the
  /// coordinator's number counts. Safetensors in one file take whole tensors, and refuse pieces.
  std::int64_t split_replicated_bytes = 0;
};

/// Flattens the state dict, offers every local chunk, keeps one writer per chunk, balanced
/// by the chunks' bytes, and validates the result. Override one step to change it.
///
/// With a plan cache (`SaveOptions::plan_cache`) a derived class plans anew each time, unless it overrides
/// `fingerprint` and so says what its global plan depends on.
class DCP_API DefaultSavePlanner : public SavePlanner {
 public:
  /// \throws dcp::Error kInvalidArgument for a negative `split_replicated_bytes`, and for one together with
  ///         `dedup_save_to_lowest_rank`: what one rank writes is not shared.
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
  /// `default_fingerprint`; of a derived class nothing, since nobody knows what its steps depend on.
  std::optional<Bytes> fingerprint() const override;

 protected:
  const LeafPlaces& leaves() const { return leaves_; }
  const SavePlannerContext& context() const { return context_; }
  /// The class, the options, and strides, device kinds and placements of all tensors: what this class depends on, for a
  /// derived one to add to.
  Bytes default_fingerprint() const;

 private:
  SavePlannerOptions options_;
  SavePlannerContext context_;
  LeafPlaces leaves_;
  /// Chunk views by item, made in create_local_plan.
  OrderedMap<MetadataIndex, at::Tensor, MetadataIndexHash> views_;
};

}  // namespace dcp

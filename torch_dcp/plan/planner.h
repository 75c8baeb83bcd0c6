#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "torch_dcp/base/bytes.h"
#include "torch_dcp/plan/metadata.h"
#include "torch_dcp/plan/plan.h"
#include "torch_dcp/state_dict/load_report.h"
#include "torch_dcp/state_dict/value.h"

namespace dcp {

/// What a planner is told when a save begins. A struct, so that a new field breaks no planner.
struct SavePlannerContext {
  std::optional<StorageMeta> storage_meta;
  int rank = 0;
  int world_size = 1;
  bool is_coordinator = true;
  bool use_collectives = true;
};

/// Decides which rank writes which part of a state dict. Holds no file and talks to nobody.
///
/// Calling order, each once per save:
///   every rank    set_up, create_local_plan
///   coordinator   create_global_plan (all ranks' local plans, in rank order)
///   every rank    finish_plan (its part), then resolve_tensor / resolve_object for each item,
///                 from several threads at once
///
/// With `SaveOptions::plan_cache` create_global_plan is left out where an earlier one's result still holds; with
/// `SaveOptions::check_replicas` resolve_tensor and resolve_object are also asked for items of the local plan, after
/// create_local_plan.
///
/// One planner serves one save at a time; after an error `set_up` starts anew.
class DCP_API SavePlanner {
 public:
  virtual ~SavePlanner();

  /// \param state  Without Stateful values; must stay alive and unchanged until the save ends.
  virtual void set_up(const StateDict& state, const SavePlannerContext& context) = 0;

  /// Offers everything this rank holds, also what other ranks hold alike.
  virtual SavePlan create_local_plan() = 0;

  /// Drops copies, checks that chunks fill their tensors, and makes the metadata.
  ///
  /// \returns One plan per rank, in the same order, and metadata without storage data.
  virtual std::pair<std::vector<SavePlan>, Metadata> create_global_plan(std::vector<SavePlan> all_plans) = 0;

  virtual SavePlan finish_plan(SavePlan plan) = 0;

  /// The elements of a tensor item: shape of its chunk, any strides, an alias of the live tensor.
  virtual at::Tensor resolve_tensor(const WriteItem& item) const = 0;

  /// The value of an object item.
  virtual const Value& resolve_object(const WriteItem& item) const = 0;

  /// All but the local plans that the global plan depends on, such as options, as bytes to be compared; asked for after
  /// create_local_plan. A global plan is used again while these and the local plans of all ranks are the same ones.
  /// Nothing: it never is.
  virtual std::optional<Bytes> fingerprint() const { return std::nullopt; }
};

struct LoadPlannerContext {
  int rank = 0;
  int world_size = 1;
  bool is_coordinator = true;
  bool use_collectives = true;
};

/// Decides what a rank reads into its state dict. Holds no file and talks to nobody.
///
/// Calling order, each once per load:
///   every rank    set_up, create_local_plan
///   coordinator   create_global_plan
///   every rank    finish_plan, then for each item resolve_tensor and commit_tensor, or
///                 load_object, from several threads at once
///
/// A load that finds the checkpoint replaced begins anew with set_up, once, after it may have called load_object
/// already: set_up forgets what was before. Several tensors may be resolved before the first of them is committed.
///
/// Everything that can be checked from metadata is checked in create_local_plan, before any
/// destination is touched.
class DCP_API LoadPlanner {
 public:
  virtual ~LoadPlanner();

  /// \param state     The destinations; must stay alive until the load ends, and nothing else may add or remove
  /// entries.
  /// \param metadata  Must stay alive too.
  virtual void set_up(StateDict& state, const Metadata& metadata, const LoadPlannerContext& context) = 0;

  virtual LoadPlan create_local_plan() = 0;
  virtual std::vector<LoadPlan> create_global_plan(std::vector<LoadPlan> all_plans) = 0;
  virtual LoadPlan finish_plan(LoadPlan plan) = 0;

  /// The region of the live destination that the item fills: shape `item.lengths`.
  virtual at::Tensor resolve_tensor(const ReadItem& item) = 0;

  /// Called when the tensor of `resolve_tensor` has been filled.
  virtual void commit_tensor(const ReadItem& item, const at::Tensor& tensor) = 0;

  /// Hands over an object; kept until `commit_objects`.
  virtual void load_object(const ReadItem& item, Value value) = 0;

  /// Puts all objects into the state dict; called once, when everything has been read.
  virtual void commit_objects() = 0;

  /// What was missing, unexpected and converted; complete after create_local_plan.
  virtual LoadReport report() const { return {}; }
};

}  // namespace dcp

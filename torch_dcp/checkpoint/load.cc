#include "torch_dcp/checkpoint/load.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "torch_dcp/base/error.h"
#include "torch_dcp/checkpoint/group_internal.h"
#include "torch_dcp/checkpoint/open_internal.h"
#include "torch_dcp/checkpoint/stateful_internal.h"
#include "torch_dcp/comm/rank_step.h"
#include "torch_dcp/plan/default_load_planner.h"
#include "torch_dcp/plan/merge_metadata.h"
#include "torch_dcp/plan/wire.h"
#include "torch_dcp/storage/storage_reader.h"

namespace dcp {
namespace {

/// Copies of the destinations, to be put back if the load does not reach its end.
class Rollback {
 public:
  Rollback(const LoadPlan& plan, LoadPlanner& planner, const StateDict& state) : state_(state) {
    for (const ReadItem& item : plan.items) {
      if (item.type != ReadItemType::kTensor) continue;
      const at::Tensor live = planner.resolve_tensor(item);
      copies_.emplace_back(live, live.clone());
    }
  }

  void restore(StateDict& state) const {
    for (const auto& [live, copy] : copies_) live.copy_(copy);
    state = state_;
  }

 private:
  StateDict state_;  // with the live tensors
  std::vector<std::pair<at::Tensor, at::Tensor>> copies_;
};

/// One load, from the first step to the last.
class LoadRun {
 public:
  LoadRun(StateDict& state, const std::function<StorageReader&()>& open_reader, LoadPlanner& planner,
          bool is_planner_ours, Communicator& comm, bool use_collectives, int rank, internal::StatefulRule rule)
      : state_(state),
        open_reader_(open_reader),
        planner_(planner),
        is_planner_ours_(is_planner_ours),
        comm_(comm),
        use_collectives_(use_collectives),
        rank_(rank),
        rule_(rule) {}

  LoadReport run(bool wants_rollback) {
    // Beside a save that replaces the checkpoint. Nothing has been changed yet, so that all can begin anew.
    if (!plan_and_check(/*is_last_try=*/false)) plan_and_check(/*is_last_try=*/true);
    std::optional<Rollback> rollback;
    if (wants_rollback) status_step(comm_, "copy", [&] { rollback.emplace(plan_, planner_, state_); });
    try {
      status_step(comm_, "read", [this] { reader().read_data(plan_, planner_); });
    } catch (Error& error) {
      // The failing ranks have listed theirs; the same words everywhere.
      undo(rollback, error,
           "tensors of ranks that are not listed may have been changed; values that are no tensors have not",
           "all destinations have been put back");
      throw;
    }
    try {
      status_step(comm_, "apply", [this] {
        planner_.commit_objects();
        if (replaced_) restore_stateful(state_, *std::move(replaced_), planner_.report().skipped);
      });
    } catch (Error& error) {
      undo(rollback, error,
           "all tensors have been loaded; plain values and Stateful objects have on ranks that are not listed, and on "
           "those that are some may have",
           "all destinations have been put back, but for what Stateful objects have taken over");
      throw;
    }
    return planner_.report();
  }

 private:
  using FoundMetadata = std::pair<std::optional<Metadata>, bool>;

  /// Everything before the first change.
  ///
  /// \returns Alike on every rank, off if the checkpoint was replaced meanwhile; throws then at the last try.
  bool plan_and_check(bool is_last_try) {
    replaced_.reset();
    // One rank decides which kind of checkpoint it is, so that all go the same way.
    std::tie(metadata_, is_merged_) = broadcast_step(comm_, "metadata", [&] {
      try {
        return find_metadata();
      } catch (const Error&) {
        if (!reader_ || reader_->is_still_there()) throw;
        return find_metadata();
      }
    });
    plan();
    const auto check = [&]() -> std::uint8_t {
      plan_ = planner_.finish_plan(std::move(plan_));
      try {
        reader().check(plan_, planner_);
      } catch (const Error& error) {
        if (is_last_try || error.kind() != ErrorKind::kState || reader().is_still_there()) throw;
        return 0;
      }
      return 1;
    };
    // What all ranks have opened is of one checkpoint if that is still there afterwards.
    const auto decide = [&](const std::vector<std::uint8_t>& was_there) -> std::uint8_t {
      if (std::count(was_there.begin(), was_there.end(), 0) == 0 && reader().is_still_there()) return 1;
      DCP_CHECK(!is_last_try, kState, reader().place(),
                ": the checkpoint was replaced or removed while it was being read, and so was the one after it: load "
                "again when it is not being saved");
      return 0;
    };
    return reduce_step(comm_, "check", check, decide) != 0;
  }

  FoundMetadata find_metadata() {
    std::optional<Metadata> metadata = reader().read_metadata();
    const bool is_of_ranks = !metadata;
    if (is_of_ranks && use_collectives_) metadata = reader().read_merged_metadata();
    return {std::move(metadata), is_of_ranks};
  }

  /// Puts the destinations back, if there are copies, and adds to the error what is true now.
  void undo(const std::optional<Rollback>& rollback, Error& error, const char* changed, const char* put_back) {
    if (!rollback) {
      error.add_context(changed);
      return;
    }
    try {
      rollback->restore(state_);
      error.add_context(put_back);
    } catch (...) {
      // The group's error goes on, with what this rank has to say.
      error.add_context(
          c10::str(changed, "; this rank could not put its destinations back: ", current_failure(0).message));
    }
  }

  StorageReader& reader() {
    if (!reader_) reader_ = &open_reader_();
    return *reader_;
  }

  void plan() {
    plan_ = reduce_scatter_step(
        comm_, "plan",
        [this] {
          try {
            return plan_locally();
          } catch (c10::Error& error) {
            // Planners know nothing of storage.
            if (const std::string place = reader().place(); !place.empty()) error.add_context("in " + place);
            throw;
          }
        },
        [this](std::vector<LoadPlan> plans) {
          const std::size_t rank_count = plans.size();
          plans = reader().prepare_global_plan(planner_.create_global_plan(std::move(plans)));
          DCP_CHECK(plans.size() == rank_count, kInternal, "the global plan has ", plans.size(), " parts for ",
                    rank_count, " ranks");
          return plans;
        });
  }

  /// What this rank saved; read again if it has just been replaced.
  Metadata read_rank_metadata() {
    try {
      return reader().read_rank_metadata(rank_);
    } catch (const Error&) {
      if (reader().is_still_there()) throw;
      return reader().read_rank_metadata(rank_);
    }
  }

  /// Nothing if fewer ranks have saved than load.
  std::optional<Metadata> read_own_metadata() {
    try {
      return read_rank_metadata();
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kNotFound) throw;
      return std::nullopt;
    }
  }

  LoadPlan plan_locally() {
    if (rule_ == internal::StatefulRule::kRefuse) refuse_all_stateful(state_);
    if (!metadata_) {
      metadata_ = read_rank_metadata();
    } else if (is_merged_) {
      if (const std::optional<Metadata> own = read_own_metadata()) prefer_rank_metadata(*metadata_, *own);
    }
    // A copy of the dict touches every tensor's handle, which costs as much as planning it. Planners from elsewhere may
    // change their dict at once, and get one.
    if (has_stateful(state_) || !is_planner_ours_) {
      replaced_ = replace_stateful(state_);
    } else {
      refuse_nested_stateful(state_);
    }
    LoadPlannerContext context;
    context.rank = rank_;
    context.world_size = comm_.size();
    context.is_coordinator = comm_.is_coordinator();
    context.use_collectives = use_collectives_;
    planner_.set_up(replaced_ ? *replaced_ : state_, *metadata_, context);
    StorageReaderContext storage_context;
    storage_context.rank = context.rank;
    storage_context.world_size = context.world_size;
    storage_context.is_coordinator = context.is_coordinator;
    storage_context.use_collectives = use_collectives_;
    storage_context.throw_if_cancelled = [this] { comm_.throw_if_cancelled(); };
    reader().set_up(*metadata_, storage_context);
    return reader().prepare_local_plan(planner_.create_local_plan());
  }

  StateDict& state_;
  const std::function<StorageReader&()>& open_reader_;
  StorageReader* reader_ = nullptr;  // once it has been opened
  LoadPlanner& planner_;
  bool is_planner_ours_;
  Communicator& comm_;
  bool use_collectives_;
  int rank_;
  internal::StatefulRule rule_;
  std::optional<Metadata> metadata_;
  bool is_merged_ = false;             // from what ranks saved without collectives
  std::optional<StateDict> replaced_;  // `state_` with the states of its Stateful values; tensors are the live ones
  LoadPlan plan_;
};

}  // namespace

namespace internal {

LoadReport load(StateDict& state, const std::function<StorageReader&()>& open_reader, const LoadOptions& options,
                StatefulRule rule) {
  const StepGroup group(options.process_group, options.communicator, options.communicator_options,
                        options.use_collectives);
  std::shared_ptr<LoadPlanner> planner = options.planner;
  if (!planner) {
    LoadPlannerOptions planner_options;
    planner_options.partial = options.partial;
    planner_options.dtype_policy = options.dtype_policy;
    planner_options.missing_dtypes_as_bits = options.missing_dtypes_as_bits;
    planner = std::make_shared<DefaultLoadPlanner>(planner_options);
  }
  return group.with_rank([&] {
    return LoadRun(state, open_reader, *planner, !options.planner, group.communicator(), options.use_collectives,
                   group.rank(), rule)
        .run(options.rollback);
  });
}

}  // namespace internal

LoadReport load(StateDict& state, StorageReader& reader, const LoadOptions& options) {
  return internal::load(state, [&]() -> StorageReader& { return reader; }, options);
}

StateDict load_keys(StorageReader& reader, std::set<std::string> keys) {
  LoadOptions options;
  options.planner = std::make_shared<RebuildLoadPlanner>(std::move(keys));
  StateDict state;
  load(state, reader, options);
  return state;
}

}  // namespace dcp

#include "torch_dcp/checkpoint/save.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "torch_dcp/base/error.h"
#include "torch_dcp/checkpoint/group_internal.h"
#include "torch_dcp/checkpoint/open_internal.h"
#include "torch_dcp/checkpoint/stateful_internal.h"
#include "torch_dcp/comm/rank_step.h"
#include "torch_dcp/plan/default_save_planner.h"
#include "torch_dcp/plan/wire.h"
#include "torch_dcp/storage/storage_writer.h"

namespace dcp {
namespace {

/// One save, from the first step to the last.
class SaveRun {
 public:
  SaveRun(const StateDict& state, const std::function<StorageWriter&()>& open_writer, SavePlanner& planner,
          Communicator& comm, bool use_collectives, int rank)
      : state_(state), open_writer_(open_writer), planner_(planner), comm_(comm) {
    planner_context_.rank = rank;
    planner_context_.world_size = comm.size();
    planner_context_.is_coordinator = comm.is_coordinator();
    planner_context_.use_collectives = use_collectives;
  }

  Metadata run() {
    try {
      plan();
      write();
    } catch (const CheckpointError& error) {
      // Where it is sure that no coordinator goes on to commit, nothing of this save may stay. Before `set_up` the
      // writer still has the files of its last save in mind.
      if (is_writer_set_up_ && is_known_before_commit(error)) writer_->abort();
      throw;
    }
    Metadata committed =
        broadcast_step(comm_, "commit", [this] { return writer_->finish(*std::move(metadata_), results_); });
    writer_->committed();
    return committed;
  }

 private:
  /// A lost peer or an expired deadline says nothing about what the coordinator did; its own verdict does.
  static bool is_known_before_commit(const CheckpointError& error) {
    return std::none_of(error.failures().begin(), error.failures().end(), [](const RankFailure& failure) {
      return failure.kind == ErrorKind::kComm || failure.kind == ErrorKind::kDeadline;
    });
  }

  void plan() {
    plan_ = reduce_scatter_step(
        comm_, "plan", [this] { return plan_locally(); },
        [this](std::vector<SavePlan> plans) { return plan_globally(std::move(plans)); });
  }

  SavePlan plan_locally() {
    // A copy of the dict touches every tensor's handle, which costs as much as planning it.
    if (has_stateful(state_)) {
      replaced_ = replace_stateful(state_);
    } else {
      refuse_nested_stateful(state_);
    }
    StorageWriterContext context;
    context.rank = planner_context_.rank;
    context.world_size = planner_context_.world_size;
    context.is_coordinator = planner_context_.is_coordinator;
    context.use_collectives = planner_context_.use_collectives;
    context.throw_if_cancelled = [this] { comm_.throw_if_cancelled(); };
    writer_ = &open_writer_();
    writer_->set_up(context);
    is_writer_set_up_ = true;
    planner_context_.storage_meta = writer_->storage_meta();
    planner_.set_up(replaced_ ? *replaced_ : state_, planner_context_);
    return writer_->prepare_local_plan(planner_.create_local_plan());
  }

  std::vector<SavePlan> plan_globally(std::vector<SavePlan> plans) {
    const std::size_t rank_count = plans.size();
    auto [global_plans, metadata] = planner_.create_global_plan(std::move(plans));
    metadata_ = std::move(metadata);
    global_plans = writer_->prepare_global_plan(std::move(global_plans));
    DCP_CHECK(global_plans.size() == rank_count, kInternal, "the global plan has ", global_plans.size(), " parts for ",
              rank_count, " ranks");
    return global_plans;
  }

  void write() {
    reduce_step(
        comm_, "write",
        [this] {
          plan_ = planner_.finish_plan(std::move(plan_));
          std::vector<WriteResult> results = writer_->write_data(plan_, planner_);
          DCP_CHECK(results.size() == plan_.items.size(), kInternal, "the storage writer gave ", results.size(),
                    " results for ", plan_.items.size(), " items");
          return results;
        },
        [this](std::vector<std::vector<WriteResult>> results) {
          results_ = std::move(results);
          return true;
        });
  }

  const StateDict& state_;
  const std::function<StorageWriter&()>& open_writer_;
  StorageWriter* writer_ = nullptr;
  SavePlanner& planner_;
  Communicator& comm_;
  SavePlannerContext planner_context_;
  bool is_writer_set_up_ = false;
  std::optional<StateDict> replaced_;  // `state_` with the states of its Stateful values, if it has any
  SavePlan plan_;
  std::optional<Metadata> metadata_;               // coordinator only
  std::vector<std::vector<WriteResult>> results_;  // coordinator only
};

}  // namespace

namespace internal {

Metadata save(const StateDict& state, const std::function<StorageWriter&()>& open_writer, const SaveOptions& options) {
  const StepGroup group(options.process_group, options.communicator, options.communicator_options,
                        options.use_collectives);
  const std::shared_ptr<SavePlanner> planner =
      options.planner ? options.planner : std::make_shared<DefaultSavePlanner>();
  return group.with_rank([&] {
    return SaveRun(state, open_writer, *planner, group.communicator(), options.use_collectives, group.rank()).run();
  });
}

}  // namespace internal

Metadata save(const StateDict& state, StorageWriter& writer, const SaveOptions& options) {
  return internal::save(state, [&]() -> StorageWriter& { return writer; }, options);
}

}  // namespace dcp

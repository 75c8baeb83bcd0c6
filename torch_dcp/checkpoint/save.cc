#include "torch_dcp/checkpoint/save.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "torch_dcp/base/error.h"
#include "torch_dcp/checkpoint/group_internal.h"
#include "torch_dcp/checkpoint/open_internal.h"
#include "torch_dcp/checkpoint/replica_check_internal.h"
#include "torch_dcp/checkpoint/stateful_internal.h"
#include "torch_dcp/comm/rank_step.h"
#include "torch_dcp/plan/default_save_planner.h"
#include "torch_dcp/plan/plan_exchange.h"
#include "torch_dcp/plan/wire.h"
#include "torch_dcp/storage/storage_writer.h"

namespace dcp {
namespace {

/// One save, from the first step to the last.
class SaveRun {
 public:
  SaveRun(const StateDict& state, const std::function<StorageWriter&()>& open_writer, SavePlanner& planner,
          Communicator& comm, const SaveOptions& options, int rank, internal::StatefulRule rule)
      : state_(state),
        open_writer_(open_writer),
        planner_(planner),
        comm_(comm),
        must_check_replicas_(options.check_replicas),
        rule_(rule),
        has_plan_cache_(options.plan_cache != nullptr),
        exchange_(options.plan_cache.get()) {
    planner_context_.rank = rank;
    planner_context_.world_size = comm.size();
    planner_context_.is_coordinator = comm.is_coordinator();
    planner_context_.use_collectives = options.use_collectives;
  }

  Metadata run() {
    try {
      plan();
      write();
    } catch (const CheckpointError& error) {
      // Where it is sure that no coordinator goes on to commit, nothing of this save may stay: not where this rank
      // could not learn what all have decided. Before `set_up` the writer still has the files of its last save in mind.
      if (is_writer_set_up_ && is_decided(error)) writer_->abort();
      throw;
    }
    Metadata committed = commit();
    writer_->committed();
    exchange_.keep();
    return committed;
  }

 private:
  Metadata commit() {
    try {
      return broadcast_step(comm_, "commit", [this] { return writer_->finish(*std::move(metadata_), results_); });
    } catch (CheckpointError& error) {
      const bool is_unknown = !has_verdict(error);
      if (!is_unknown && !may_have_committed()) {
        writer_->abort();
      } else {
        error.add_context(c10::str(is_unknown ? "outcome unknown: " : "",
                                   "it may have been committed; is_complete() and the metadata's save id tell"));
      }
      throw;
    }
  }

  /// What the coordinator's writer says after a commit that failed on all ranks.
  bool may_have_committed() {
    try {
      return broadcast_step(comm_, "clear", [this] { return writer_->may_have_committed(); });
    } catch (const CheckpointError&) {
      // Nobody can say. What was written stays for the next save to remove, and the commit's error goes on.
      return true;
    }
  }

  /// Every rank has thrown this, the coordinator too.
  static bool is_decided(const CheckpointError& error) {
    return std::none_of(error.failures().begin(), error.failures().end(),
                        [](const RankFailure& failure) { return failure.rank < 0; });
  }

  /// A lost peer or an expired deadline says nothing about what the coordinator did; its own verdict does.
  static bool has_verdict(const CheckpointError& error) {
    return std::none_of(error.failures().begin(), error.failures().end(), [](const RankFailure& failure) {
      return failure.kind == ErrorKind::kComm || failure.kind == ErrorKind::kDeadline;
    });
  }

  void plan() {
    if (must_check_replicas_ && comm_.size() > 1) {
      check_replicas(comm_, [this]() -> const SavePlan& { return local_plan(); }, planner_);
    }
    // Ranks with a plan cache and ranks without one take part in the same step. Alone nothing is sent, and there may be
    // nothing to remember.
    if (comm_.size() > 1 || has_plan_cache_) {
      exchange_plans();
    } else {
      plan_alone();
    }
  }

  void plan_alone() {
    plan_ = reduce_scatter_step(
        comm_, "plan", [this] { return std::move(local_plan()); },
        [this](std::vector<SavePlan> plans) {
          auto [global_plans, metadata] = planner_.create_global_plan(std::move(plans));
          metadata_ = std::move(metadata);
          return prepare_storage(std::move(global_plans));
        });
  }

  void exchange_plans() {
    const auto exchange = [this](const std::function<SavePlanOffer()>& offer) {
      return exchange_.accept(reduce_scatter_step(
          comm_, "plan", offer, [this](std::vector<SavePlanOffer> offers) { return answer(std::move(offers)); }));
    };
    std::optional<SavePlan> plan = exchange([this] {
      SavePlan local = std::move(local_plan());
      const std::optional<Bytes> fingerprint = has_plan_cache_ ? planner_.fingerprint() : std::nullopt;
      return exchange_.offer(std::move(local), fingerprint, planner_context_, comm_.coordinator());
    });
    if (!plan) plan = exchange([this] { return exchange_.offer_all(); });
    DCP_CHECK(plan, kInternal, "the coordinator did not plan though it was sent all plans");
    plan_ = *std::move(plan);
  }

  std::vector<SavePlanAnswer> answer(std::vector<SavePlanOffer> offers) {
    bool is_of_this_save = false;
    std::vector<SavePlanAnswer> answers = exchange_.answer(
        std::move(offers),
        [&](std::vector<SavePlan> plans) {
          is_of_this_save = true;
          return planner_.create_global_plan(std::move(plans));
        },
        [this](std::vector<SavePlan> plans) { return prepare_storage(std::move(plans)); });
    metadata_ = exchange_.take_metadata();
    if (!is_of_this_save && metadata_->storage_meta) metadata_->storage_meta = planner_context_.storage_meta;
    return answers;
  }

  /// Made on the first call.
  SavePlan& local_plan() {
    if (!local_plan_) local_plan_ = plan_locally();
    return *local_plan_;
  }

  SavePlan plan_locally() {
    if (rule_ == internal::StatefulRule::kRefuse) refuse_all_stateful(state_);
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

  std::vector<SavePlan> prepare_storage(std::vector<SavePlan> plans) {
    plans = writer_->prepare_global_plan(std::move(plans));
    DCP_CHECK(plans.size() == static_cast<std::size_t>(comm_.size()), kInternal, "the global plan has ", plans.size(),
              " parts for ", comm_.size(), " ranks");
    return plans;
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
  bool must_check_replicas_;
  internal::StatefulRule rule_;
  bool has_plan_cache_;
  SavePlanExchange exchange_;
  std::optional<SavePlan> local_plan_;
  std::optional<StateDict> replaced_;  // `state_` with the states of its Stateful values, if it has any
  SavePlan plan_;
  std::optional<Metadata> metadata_;               // coordinator only
  std::vector<std::vector<WriteResult>> results_;  // coordinator only
};

}  // namespace

namespace internal {

Metadata save(const StateDict& state, const std::function<StorageWriter&()>& open_writer, const SaveOptions& options,
              StatefulRule rule) {
  const StepGroup group(options.process_group, options.communicator, options.communicator_options,
                        options.use_collectives);
  const std::shared_ptr<SavePlanner> planner =
      options.planner ? options.planner : std::make_shared<DefaultSavePlanner>();
  return group.with_rank(
      [&] { return SaveRun(state, open_writer, *planner, group.communicator(), options, group.rank(), rule).run(); });
}

}  // namespace internal

Metadata save(const StateDict& state, StorageWriter& writer, const SaveOptions& options) {
  return internal::save(state, [&]() -> StorageWriter& { return writer; }, options);
}

}  // namespace dcp

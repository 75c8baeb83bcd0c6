#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "torch_dcp/base/bytes.h"
#include "torch_dcp/base/error.h"
#include "torch_dcp/plan/default_load_planner.h"
#include "torch_dcp/plan/default_save_planner.h"
#include "torch_dcp/state_dict/value.h"
#include "torch_dcp/storage/storage_reader.h"
#include "torch_dcp/storage/storage_writer.h"

/// Saves and loads of several ranks in one process, step by step, with nothing between the ranks but what
/// StorageWriter and StorageReader promise.
namespace dcp::test {

/// A place for one checkpoint, empty when it is made. Ranks use it from a thread each at once.
struct StoragePlace {
  std::string name;  ///< what messages call it
  std::function<std::unique_ptr<StorageWriter>(int rank, int world_size)> make_writer;
  std::function<std::unique_ptr<StorageReader>(int rank, int world_size)> make_reader;
  /// All that lies there, by name, with what saves have left over.
  std::function<std::map<std::string, Bytes>()> contents;
  /// Whether a whole checkpoint is there; empty if the storage has no such question.
  std::function<bool()> is_complete = {};
  /// Takes away what holds the item; empty if that cannot be done.
  std::function<void(const StorageInfo&)> lose = {};
  /// Flips a bit in the middle of the item; empty if the storage would not notice.
  std::function<void(const StorageInfo&)> damage = {};
};

/// Calls `call` for each rank on a thread of its own. \throws what the lowest rank threw, after all have ended.
inline void on_every_rank(int world_size, const std::function<void(int)>& call) {
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(world_size));
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < world_size; ++rank) {
      threads.emplace_back([&, rank] {
        try {
          call(rank);
        } catch (...) {
          errors[static_cast<std::size_t>(rank)] = std::current_exception();
        }
      });
    }
  }
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

/// What a rank has beside its writer or reader.
struct StepOptions {
  bool use_collectives = true;
  /// Called where the storage should ask whether it has to stop.
  std::function<void()> throw_if_cancelled = {};
};

/// A planner one of whose tensors cannot be had.
class FailingSavePlanner final : public DefaultSavePlanner {
 public:
  at::Tensor resolve_tensor(const WriteItem& item) const override {
    DCP_CHECK(item.index.fqn != failing_key, kIo, "the tensor is gone");
    return DefaultSavePlanner::resolve_tensor(item);
  }
  std::string failing_key;
};

/// The ranks of one place that save.
class SavingRanks {
 public:
  SavingRanks(const StoragePlace& place, int world_size) : world_size_(world_size), ranks_(as_size(world_size)) {
    on_every_rank(world_size, [&](int rank) { at(rank).writer = place.make_writer(rank, world_size); });
  }

  /// \param states  One for each rank; kept until the next save.
  void plan(std::vector<StateDict> states, const StepOptions& options = {}) {
    use_collectives_ = options.use_collectives;
    metadata_.assign(ranks_.size(), {});
    on_every_rank(world_size_, [&](int rank) {
      Rank& own = at(rank);
      own.state = std::move(states[as_size(rank)]);
      own.results.clear();
      const bool is_coordinator = rank == 0 || !options.use_collectives;
      own.writer->set_up({rank, world_size_, is_coordinator, options.use_collectives, options.throw_if_cancelled});
      own.planner.set_up(own.state,
                         {own.writer->storage_meta(), rank, world_size_, is_coordinator, options.use_collectives});
      own.plan = own.writer->prepare_local_plan(own.planner.create_local_plan());
    });
    if (use_collectives_) {
      std::vector<SavePlan> plans;
      for (Rank& rank : ranks_) plans.push_back(std::move(rank.plan));
      auto [global_plans, metadata] = at(0).planner.create_global_plan(std::move(plans));
      metadata_[0] = std::move(metadata);
      global_plans = at(0).writer->prepare_global_plan(std::move(global_plans));
      DCP_CHECK(global_plans.size() == ranks_.size(), kInternal, "the global plan has ", global_plans.size(), " parts");
      for (std::size_t rank = 0; rank < ranks_.size(); ++rank) ranks_[rank].plan = std::move(global_plans[rank]);
    } else {
      on_every_rank(world_size_, [&](int rank) {
        std::vector<SavePlan> plans;
        plans.push_back(std::move(at(rank).plan));
        auto [own_plans, metadata] = at(rank).planner.create_global_plan(std::move(plans));
        metadata_[as_size(rank)] = std::move(metadata);
        at(rank).plan = std::move(at(rank).writer->prepare_global_plan(std::move(own_plans)).at(0));
      });
    }
  }

  void write() {
    on_every_rank(world_size_, [&](int rank) {
      Rank& own = at(rank);
      own.plan = own.planner.finish_plan(std::move(own.plan));
      own.results = own.writer->write_data(own.plan, own.planner);
    });
  }

  /// \returns The coordinator's metadata; without collectives that of rank 0.
  Metadata finish() { return finish(results()); }

  /// With other results than the writers gave.
  Metadata finish(const std::vector<std::vector<WriteResult>>& results) {
    if (use_collectives_) return at(0).writer->finish(metadata_[0], results);
    std::vector<Metadata> finished(ranks_.size());
    on_every_rank(world_size_, [&](int rank) {
      finished[as_size(rank)] = at(rank).writer->finish(metadata_[as_size(rank)], {results[as_size(rank)]});
    });
    return finished[0];
  }

  void committed() {
    on_every_rank(world_size_, [&](int rank) { at(rank).writer->committed(); });
  }
  void abort() {
    on_every_rank(world_size_, [&](int rank) { at(rank).writer->abort(); });
  }

  Metadata save(std::vector<StateDict> states, const StepOptions& options = {}) {
    plan(std::move(states), options);
    write();
    Metadata metadata = finish();
    committed();
    return metadata;
  }

  StorageWriter& writer(int rank) { return *at(rank).writer; }
  const SavePlan& plan_of(int rank) { return at(rank).plan; }
  /// The next save cannot have this tensor, on any rank; empty: all can be had.
  void fail_at(const std::string& key) {
    for (Rank& rank : ranks_) rank.planner.failing_key = key;
  }
  std::vector<std::vector<WriteResult>> results() const {
    std::vector<std::vector<WriteResult>> all;
    for (const Rank& rank : ranks_) all.push_back(rank.results);
    return all;
  }

 private:
  struct Rank {
    std::unique_ptr<StorageWriter> writer;
    FailingSavePlanner planner;
    StateDict state;
    SavePlan plan;
    std::vector<WriteResult> results;
  };

  static std::size_t as_size(int rank) { return static_cast<std::size_t>(rank); }
  Rank& at(int rank) { return ranks_[as_size(rank)]; }

  int world_size_;
  bool use_collectives_ = true;
  std::vector<Rank> ranks_;
  std::vector<Metadata> metadata_;  // by rank; with collectives that of the coordinator alone
};

/// The ranks of one place that load.
class LoadingRanks {
 public:
  LoadingRanks(const StoragePlace& place, int world_size) : world_size_(world_size), ranks_(as_size(world_size)) {
    on_every_rank(world_size, [&](int rank) { at(rank).reader = place.make_reader(rank, world_size); });
  }

  /// What the coordinator finds.
  std::optional<Metadata> read_metadata() {
    std::optional<Metadata> metadata = at(0).reader->read_metadata();
    return metadata ? std::move(metadata) : at(0).reader->read_merged_metadata();
  }

  /// Plans a load of `states`, one for each rank, by default planners.
  void plan(std::vector<StateDict> states, const StepOptions& options = {}) {
    std::vector<std::unique_ptr<LoadPlanner>> planners;
    for (int rank = 0; rank < world_size_; ++rank) planners.push_back(std::make_unique<DefaultLoadPlanner>());
    plan_with(std::move(planners), std::move(states), options);
  }

  void plan_with(std::vector<std::unique_ptr<LoadPlanner>> planners, std::vector<StateDict> states,
                 const StepOptions& options = {}) {
    std::optional<Metadata> metadata = read_metadata();
    DCP_CHECK(metadata, kInternal, "a reader found a checkpoint without metadata for any rank");
    metadata_ = *std::move(metadata);
    on_every_rank(world_size_, [&](int rank) {
      Rank& own = at(rank);
      own.state = std::move(states[as_size(rank)]);
      own.planner = std::move(planners[as_size(rank)]);
      own.planner->set_up(own.state, metadata_, {rank, world_size_, rank == 0, true});
      own.reader->set_up(metadata_, {rank, world_size_, rank == 0, true, options.throw_if_cancelled});
      own.plan = own.reader->prepare_local_plan(own.planner->create_local_plan());
    });
    std::vector<LoadPlan> plans;
    for (Rank& rank : ranks_) plans.push_back(std::move(rank.plan));
    plans = at(0).reader->prepare_global_plan(at(0).planner->create_global_plan(std::move(plans)));
    DCP_CHECK(plans.size() == ranks_.size(), kInternal, "the global plan has ", plans.size(), " parts");
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) ranks_[rank].plan = std::move(plans[rank]);
  }

  void check() {
    on_every_rank(world_size_, [&](int rank) {
      Rank& own = at(rank);
      own.plan = own.planner->finish_plan(std::move(own.plan));
      own.reader->check(own.plan, *own.planner);
    });
    DCP_CHECK(at(0).reader->is_still_there(), kState, at(0).reader->place(), " was replaced: load again");
  }

  void read() {
    on_every_rank(world_size_, [&](int rank) { at(rank).reader->read_data(at(rank).plan, *at(rank).planner); });
  }

  /// \returns What has been loaded, by rank.
  std::vector<StateDict> apply() {
    on_every_rank(world_size_, [&](int rank) { at(rank).planner->commit_objects(); });
    return states();
  }

  std::vector<StateDict> load(std::vector<StateDict> states, const StepOptions& options = {}) {
    plan(std::move(states), options);
    check();
    read();
    return apply();
  }

  std::vector<StateDict> states() const {
    std::vector<StateDict> states;
    for (const Rank& rank : ranks_) states.push_back(rank.state);
    return states;
  }

  const Metadata& metadata() const { return metadata_; }
  StorageReader& reader(int rank) { return *at(rank).reader; }

 private:
  struct Rank {
    std::unique_ptr<StorageReader> reader;
    std::unique_ptr<LoadPlanner> planner;
    StateDict state;
    LoadPlan plan;
  };

  static std::size_t as_size(int rank) { return static_cast<std::size_t>(rank); }
  Rank& at(int rank) { return ranks_[as_size(rank)]; }

  int world_size_;
  std::vector<Rank> ranks_;
  Metadata metadata_;
};

}  // namespace dcp::test

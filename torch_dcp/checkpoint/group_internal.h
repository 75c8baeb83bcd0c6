#pragma once

#include <algorithm>
#include <chrono>
#include <iterator>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "torch_dcp/base/error.h"
#include "torch_dcp/comm/communicator.h"
#include "torch_dcp/comm/group_ref.h"

namespace dcp {

/// The ranks that a save or load goes over: the given communicator, one made for the given group, or this
/// process alone.
class StepGroup {
 public:
  StepGroup(const GroupRef& group, std::shared_ptr<Communicator> communicator, const CommunicatorOptions& options,
            bool use_collectives)
      : communicator_(std::move(communicator)), rank_(communicator_ ? communicator_->rank() : group.rank()) {
    if (!use_collectives) {
      communicator_ = std::make_shared<Communicator>(Communicator::single());
    } else if (!communicator_) {
      check_steps(options.deadlines);
      communicator_ = std::make_shared<Communicator>(group ? Communicator::create(group.get(), with_clear(options))
                                                           : Communicator::single());
    }
  }

  Communicator& communicator() const { return *communicator_; }
  int rank() const { return rank_; }

  /// Runs `call`; a rank that works alone gets its failures under its own number.
  template <typename Call>
  auto with_rank(const Call& call) const {
    try {
      return call();
    } catch (const CheckpointError& error) {
      if (communicator_->size() > 1 || rank_ == 0) throw;
      std::vector<RankFailure> failures = error.failures();
      for (RankFailure& failure : failures) failure.rank = rank_;
      CheckpointError renumbered(error.step(), std::move(failures), error.where());
      for (const std::string& context : error.context()) renumbered.add_context(context);
      throw renumbered;
    }
  }

 private:
  static constexpr std::chrono::seconds kClear{30};

  /// After a failed commit all wait in "clear" before they tell of it, and its safe answer needs nobody.
  static CommunicatorOptions with_clear(CommunicatorOptions options) {
    options.deadlines.by_step.try_emplace("clear", std::min<std::chrono::milliseconds>(options.deadline, kClear));
    return options;
  }

  /// A deadline of a step that no save or load has would never run out.
  static void check_steps(const DeadlineOptions& deadlines) {
    constexpr std::string_view kSteps[] = {"list replicas", "compare replicas", "plan",  "write", "commit",
                                           "clear",         "metadata",         "check", "copy",  "read",
                                           "apply"};
    for (const auto& [step, deadline] : deadlines.by_step) {
      DCP_CHECK(std::find(std::begin(kSteps), std::end(kSteps), step) != std::end(kSteps), kInvalidArgument,
                "a deadline is set for '", step, "', which is no step of a save or load");
    }
  }

  std::shared_ptr<Communicator> communicator_;
  int rank_ = 0;  ///< also without collectives the one within the group
};

/// Sets who saves or loads, by the parameters of PyTorch's older calls.
///
/// \throws dcp::Error kInvalidArgument for another coordinator than rank 0 without a group.
template <typename Options>
void set_group(Options& options, const GroupRef& group, int coordinator_rank, bool no_dist) {
  if (no_dist) return;
  DCP_CHECK(group || coordinator_rank == 0, kInvalidArgument, "coordinator rank ", coordinator_rank,
            ", but no process group: this process alone is rank 0");
  options.process_group = group;
  options.communicator_options.coordinator = coordinator_rank;
}

}  // namespace dcp

#pragma once

#include <memory>
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
      communicator_ =
          std::make_shared<Communicator>(group ? Communicator::create(group.get(), options) : Communicator::single());
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
  std::shared_ptr<Communicator> communicator_;
  int rank_ = 0;  ///< also without collectives the one within the group
};

}  // namespace dcp

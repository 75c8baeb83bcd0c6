#pragma once

#include <c10/util/intrusive_ptr.h>

#include <functional>
#include <memory>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "torch_dcp/comm/communicator.h"

namespace dcp::bench {

/// Ranks of a job as threads of this process, which talk over Gloo on the loopback address.
class RankThreads {
 public:
  explicit RankThreads(int count);

  int count() const { return static_cast<int>(groups_.size()); }
  /// Runs `work` for each rank, and returns the seconds from when all had begun until all had ended.
  /// Throws what the lowest rank that failed threw.
  double run(const std::function<void(int rank)>& work) const;

  const c10::intrusive_ptr<c10d::ProcessGroup>& group(int rank) const { return groups_.at(rank); }
  CommunicatorOptions communicator_options() const;
  /// Collective: all ranks.
  std::shared_ptr<Communicator> communicator(int rank) const;

 private:
  c10::intrusive_ptr<c10d::Store> store_;
  std::vector<c10::intrusive_ptr<c10d::ProcessGroup>> groups_;
};

}  // namespace dcp::bench

#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <memory>
#include <string>

#include "torch_dcp/comm/communicator.h"
#include "torch_dcp/comm/group_ref.h"
#include "torch_dcp/examples/launch_environment.h"

namespace dcp::examples {

/// The ranks that train together: a Gloo group for the training, and beside it a communicator for checkpoints.
class RankGroup {
 public:
  /// \param timeout  How long a rank waits for the others, to meet and in each exchange.
  /// Collective: yes, all ranks of the job. A job of one talks to nobody.
  RankGroup(const LaunchEnvironment& environment, std::chrono::milliseconds timeout);
  ~RankGroup();
  RankGroup(const RankGroup&) = delete;
  RankGroup& operator=(const RankGroup&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  bool is_first() const { return rank_ == 0; }
  const std::shared_ptr<Communicator>& communicator() const { return communicator_; }

  /// For what makes communicators of its own: the ranks' group, none in a job of one, and its store and deadline.
  const GroupRef& process_group() const { return group_; }
  const CommunicatorOptions& communicator_options() const { return options_; }

  /// Brings each rank's tensor to all: [size, *mine.sizes()] in rank order.
  /// \param mine  Contiguous; of the same shape and dtype on every rank.
  /// Collective: yes, all ranks, same order.
  at::Tensor all_gather(const at::Tensor& mine) const;

  /// The first rank's text, on every rank. Collective: yes, all ranks, same order.
  std::string tell_all(const std::string& from_first) const;

  /// Ends the exchange: after it no rank needs another any more, nor the store that rank 0 hosts.
  /// Collective: yes, all ranks.
  void leave();

 private:
  int rank_;
  int size_;
  GroupRef group_;  ///< none in a job of one
  CommunicatorOptions options_;
  std::shared_ptr<Communicator> communicator_;
};

}  // namespace dcp::examples

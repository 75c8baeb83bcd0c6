#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "torch_dcp/examples/rank_group.h"
#include "torch_dcp/fwd.h"
#include "torch_dcp/model_state/fqn.h"
#include "torch_dcp/model_state/optimizer_state_dict.h"

namespace torch::optim {
class AdamW;
}

namespace dcp::examples {

/// AdamW whose moments are spread over the ranks (ZeRO stage 1).
///
/// Every rank has the whole parameters. It steps its rows of each, as Shard(0) of a DTensor cuts them, and then all
/// ranks exchange the rows. A rank without rows of a parameter steps an empty tensor.
///
/// LibTorch's AdamW works element by element, so the result does not depend on the cut.
class ShardedAdamW {
 public:
  /// \param parameters  With one dimension at least; alike on every rank.
  ShardedAdamW(const std::vector<ModuleTensor>& parameters, const RankGroup& group, double learning_rate);
  ~ShardedAdamW();
  ShardedAdamW(const ShardedAdamW&) = delete;
  ShardedAdamW& operator=(const ShardedAdamW&) = delete;

  /// \param gradient  Of all parameters one after the other, float [elements]; alike on every rank.
  /// Collective: yes, all ranks.
  void step(const at::Tensor& gradient);

  /// Moments as DTensors, which alias the optimizer's own.
  Dict state() const;
  void restore(const Dict& state);

 private:
  void share_rows();

  const RankGroup& group_;
  std::vector<at::Tensor> whole_;          ///< detached; they share the parameters' memory
  std::vector<OptimizerParameter> parts_;  ///< this rank's rows of each
  std::unique_ptr<torch::optim::AdamW> optimizer_;
};

}  // namespace dcp::examples

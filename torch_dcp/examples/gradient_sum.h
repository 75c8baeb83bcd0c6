#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "torch_dcp/examples/rank_group.h"
#include "torch_dcp/tensor/layout.h"

namespace dcp::examples {

/// Adds up what the sequences of a batch contribute, to the same bits for every number of ranks.
///
/// A sum of floating-point numbers depends on its order. So no rank adds what it has: all contributions go to all
/// ranks, and each rank adds them in the order of the sequences.
class GradientSum {
 public:
  /// \param sequences  In the whole batch; spread over the ranks in chunks, the last ones short or empty.
  /// \param elements   Of one contribution.
  GradientSum(const RankGroup& group, std::int64_t sequences, std::int64_t elements);

  /// The sequences of this rank.
  IndexRun mine() const { return mine_; }

  /// Where the contribution of sequence `mine().offset + i` goes: float [elements].
  at::Tensor slot(std::int64_t i) { return slots_.select(0, i); }

  /// The contributions of all sequences in their order, float [sequences, elements].
  /// Collective: yes, all ranks.
  at::Tensor gather() const;

  /// The mean over `contributions`, float [elements].
  static at::Tensor mean(const at::Tensor& contributions);

 private:
  const RankGroup& group_;
  std::int64_t sequences_;
  IndexRun mine_;
  at::Tensor slots_;  ///< float [slots of the first rank, which has most; elements]
};

}  // namespace dcp::examples

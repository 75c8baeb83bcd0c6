#include "torch_dcp/examples/gradient_sum.h"

#include <ATen/ops/zeros.h>

namespace dcp::examples {

GradientSum::GradientSum(const RankGroup& group, std::int64_t sequences, std::int64_t elements)
    : group_(group),
      sequences_(sequences),
      mine_(chunk_of(sequences, group.size(), group.rank())),
      slots_(at::zeros({chunk_of(sequences, group.size(), 0).length, elements}, at::kFloat)) {}

at::Tensor GradientSum::gather() const {
  // All chunks but the last that has anything are full, so the unused slots are all behind the last sequence.
  return group_.all_gather(slots_).flatten(0, 1).narrow(0, 0, sequences_);
}

at::Tensor GradientSum::mean(const at::Tensor& contributions) {
  at::Tensor sum = contributions[0].clone();
  for (std::int64_t i = 1; i < contributions.size(0); ++i) sum.add_(contributions[i]);
  return sum.div_(static_cast<double>(contributions.size(0)));
}

}  // namespace dcp::examples

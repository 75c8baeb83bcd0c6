#include "torch_dcp/examples/sharded_adamw.h"

#include <ATen/ops/zeros.h>
#include <torch/optim/adamw.h>

#include "torch_dcp/tensor/device_mesh.h"
#include "torch_dcp/tensor/layout.h"
#include "torch_dcp/tensor/placement.h"

namespace dcp::examples {
namespace {

/// The rows of `whole` that `rank` steps: a view.
at::Tensor rows_of(const at::Tensor& whole, const RankGroup& group, int rank) {
  const IndexRun rows = chunk_of(whole.size(0), group.size(), rank);
  return whole.narrow(0, rows.offset, rows.length);
}

}  // namespace

ShardedAdamW::ShardedAdamW(const std::vector<ModuleTensor>& parameters, const RankGroup& group, double learning_rate)
    : group_(group) {
  const auto mesh = DeviceMesh::make({group.size()}, group.rank());
  std::vector<at::Tensor> leaves;
  for (const ModuleTensor& parameter : parameters) {
    whole_.push_back(parameter.tensor.detach());
    const at::Tensor leaf = rows_of(whole_.back(), group, group.rank()).requires_grad_();
    const at::IntArrayRef sizes = parameter.tensor.sizes();
    parts_.push_back(
        {parameter.fqn, leaf, DTensorLayout{mesh, {Placement::shard(0)}, Sizes(sizes.begin(), sizes.end())}});
    leaves.push_back(leaf);
  }
  optimizer_ = std::make_unique<torch::optim::AdamW>(leaves, torch::optim::AdamWOptions(learning_rate));
}

ShardedAdamW::~ShardedAdamW() = default;

void ShardedAdamW::step(const at::Tensor& gradient) {
  std::int64_t offset = 0;
  for (std::size_t i = 0; i < whole_.size(); ++i) {
    const at::Tensor mine = gradient.narrow(0, offset, whole_[i].numel()).view_as(whole_[i]);
    parts_[i].tensor.mutable_grad() = rows_of(mine, group_, group_.rank());
    offset += whole_[i].numel();
  }
  optimizer_->step();
  share_rows();
}

void ShardedAdamW::share_rows() {
  std::int64_t most = 0;  // elements of the first rank, whose chunk of each parameter is the longest
  for (const at::Tensor& whole : whole_) most += rows_of(whole, group_, 0).numel();
  at::Tensor mine = at::zeros({most}, at::kFloat);
  std::int64_t offset = 0;
  for (const OptimizerParameter& part : parts_) {
    mine.narrow(0, offset, part.tensor.numel()).copy_(part.tensor.detach().flatten());
    offset += part.tensor.numel();
  }
  const at::Tensor all = group_.all_gather(mine);
  for (int rank = 0; rank < group_.size(); ++rank) {
    offset = 0;
    for (const at::Tensor& whole : whole_) {
      const at::Tensor rows = rows_of(whole, group_, rank);
      rows.copy_(all[rank].narrow(0, offset, rows.numel()).view_as(rows));
      offset += rows.numel();
    }
  }
}

Dict ShardedAdamW::state() const { return get_optimizer_state_dict(parts_, *optimizer_); }

void ShardedAdamW::restore(const Dict& state) { set_optimizer_state_dict(parts_, *optimizer_, state); }

}  // namespace dcp::examples

#include "torch_dcp/tensor/sharded_tensor.h"

#include <algorithm>
#include <numeric>

#include "torch_dcp/base/error.h"
#include "torch_dcp/tensor/dtype.h"

namespace dcp {
namespace {

Box checked_box(const Shard& shard, std::size_t index, const Sizes& global_sizes, at::ScalarType dtype) {
  DCP_CHECK(shard.tensor.defined(), kInvalidArgument, "shard ", index, " of a ShardedTensor is undefined");
  DCP_CHECK(shard.tensor.scalar_type() == dtype, kType, "shard ", index, " of a ShardedTensor of dtype ",
            dtype_name(dtype), " has dtype ", dtype_name(shard.tensor.scalar_type()));
  const Sizes sizes(shard.tensor.sizes());
  DCP_CHECK(sizes.size() == global_sizes.size() && shard.offsets.size() == global_sizes.size(), kShape, "shard ", index,
            " of a ShardedTensor of sizes ", to_string(global_sizes), " has offsets ", to_string(shard.offsets),
            " and sizes ", to_string(sizes));
  Box box = make_box(shard.offsets, sizes);
  DCP_CHECK(whole_box(global_sizes).contains(box), kShape, "shard ", index, " at ", to_string(box),
            " leaves a ShardedTensor of sizes ", to_string(global_sizes));
  return box;
}

/// Sorted by their offset in the first dimension, only neighbours need a closer look.
void check_no_overlap(const std::vector<Box>& boxes) {
  std::vector<std::size_t> order(boxes.size());
  std::iota(order.begin(), order.end(), 0);
  const auto begin = [&](std::size_t i) { return boxes[i].ndim() == 0 ? 0 : boxes[i].offsets[0]; };
  const auto end = [&](std::size_t i) { return boxes[i].ndim() == 0 ? 1 : begin(i) + boxes[i].sizes[0]; };
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return begin(a) < begin(b); });
  for (std::size_t i = 0; i < order.size(); ++i) {
    for (std::size_t j = i + 1; j < order.size() && begin(order[j]) < end(order[i]); ++j) {
      const auto both = intersect(boxes[order[i]], boxes[order[j]]);
      DCP_CHECK(!both, kInvalidArgument, "shards ", order[i], " and ", order[j], " of a ShardedTensor overlap at ",
                to_string(*both));
    }
  }
}

}  // namespace

ShardedTensor::ShardedTensor(Sizes global_sizes, at::ScalarType dtype, std::vector<Shard> local_shards) {
  make_box(Sizes(global_sizes.size(), 0), global_sizes);  // Throws if a size is out of range.
  std::vector<Box> boxes;
  for (std::size_t i = 0; i < local_shards.size(); ++i) {
    boxes.push_back(checked_box(local_shards[i], i, global_sizes, dtype));
  }
  check_no_overlap(boxes);
  parts_ = std::make_shared<const Parts>(Parts{std::move(global_sizes), dtype, std::move(local_shards)});
}

}  // namespace dcp

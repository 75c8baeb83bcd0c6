#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "torch_dcp/tensor/box.h"

namespace dcp {

/// One part of a ShardedTensor that this rank holds.
struct Shard {
  at::Tensor tensor;
  Sizes offsets;  ///< [ndim], where the part lies in the whole
};

/// A tensor cut by hand into boxes of any sizes, of which this rank holds some or none.
///
/// A handle: copies share the shards' memory.
class DCP_API ShardedTensor {
 public:
  /// \param global_sizes  Shape of the whole.
  /// \param local_shards  May be empty; must lie inside the whole and not overlap.
  /// \param dtype         Needed since a rank may hold no shard; all shards must have it.
  /// \throws dcp::Error kShape if a shard leaves the whole or has another ndim, kType for another
  ///         dtype, kInvalidArgument for an undefined shard, overlaps and negative numbers.
  ShardedTensor(Sizes global_sizes, at::ScalarType dtype, std::vector<Shard> local_shards);

  const Sizes& global_sizes() const { return parts_->global_sizes; }
  at::ScalarType dtype() const { return parts_->dtype; }
  /// In the order in which they were given.
  const std::vector<Shard>& local_shards() const { return parts_->local_shards; }

 private:
  /// Shared by copies, which makes them cheap.
  struct Parts {
    Sizes global_sizes;
    at::ScalarType dtype;
    std::vector<Shard> local_shards;
  };

  std::shared_ptr<const Parts> parts_;
};

}  // namespace dcp

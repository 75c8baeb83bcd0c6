#pragma once

#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

#include "torch_dcp/state_dict/value.h"

namespace dcp {

/// The tensors that a value is made of on this rank: itself, a DTensor's local part, a ShardedTensor's shards; none
/// for other values.
inline std::vector<at::Tensor> local_parts(const Value& value) {
  if (value.is_tensor()) return {value.as_tensor()};
  if (value.kind() == ValueKind::kDTensor) return {value.as_dtensor().local()};
  std::vector<at::Tensor> parts;
  if (value.kind() == ValueKind::kShardedTensor) {
    for (const Shard& shard : value.as_sharded_tensor().local_shards()) parts.push_back(shard.tensor);
  }
  return parts;
}

/// A value of the same kind and layout, of which `replace(part)` gives each part; other values as they are.
template <typename Replace>
Value with_local_parts(const Value& value, const Replace& replace) {
  if (value.is_tensor()) return Value(at::Tensor(replace(value.as_tensor())));
  if (value.kind() == ValueKind::kDTensor) {
    const DTensor& tensor = value.as_dtensor();
    return DTensor(replace(tensor.local()), tensor.mesh_ptr(), tensor.placements(), tensor.global_sizes());
  }
  if (value.kind() != ValueKind::kShardedTensor) return value;
  const ShardedTensor& tensor = value.as_sharded_tensor();
  std::vector<Shard> shards;
  for (const Shard& shard : tensor.local_shards()) shards.push_back({replace(shard.tensor), shard.offsets});
  return ShardedTensor(tensor.global_sizes(), tensor.dtype(), std::move(shards));
}

}  // namespace dcp

#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "torch_dcp/base/byte_codec.h"
#include "torch_dcp/base/fault_list.h"
#include "torch_dcp/state_dict/value.h"
#include "torch_dcp/transform/similar.h"
#include "torch_dcp/transform/tensor_elements_internal.h"

namespace dcp {

/// A value of which tensors are only described: what ranks are told before elements move.
struct Skeleton {
  ValueKind kind = ValueKind::kNone;
  TensorInfo tensor;                         ///< kTensor
  std::optional<TensorQuantizer> quantizer;  ///< kTensor
  Value plain;                               ///< neither a tensor nor a container
  std::vector<Key> keys;                     ///< of a dict
  std::vector<Skeleton> children;            ///< of a container: for each key, or each position
};

void encode(ByteWriter& out, const Skeleton& skeleton);
/// \throws dcp::Error kCorruptData.
void decode(ByteReader& in, Skeleton& skeleton);

/// A full state: its skeleton, and its tensors in the order of the walk.
struct FullState {
  Skeleton skeleton;
  std::vector<at::Tensor> tensors;
};

/// \throws dcp::Error that names every value that is no part of a full state: kType for DTensors and ShardedTensors,
///         kUnsupported for tensors without elements of their own; as `replace_all_stateful`.
FullState take_full_state(const Dict& full, const char* what);

}  // namespace dcp

#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "torch_dcp/base/fault_list.h"
#include "torch_dcp/state_dict/value.h"

namespace dcp {

/// Two tensors at the same place: plain ones, local parts of DTensors, or shards. Defined, not nested; their sizes and
/// dtypes may still differ.
struct TensorPair {
  std::string key;  ///< flat
  at::Tensor source;
  at::Tensor target;
};

/// Two values at the same place that are neither tensors nor containers.
struct PlainPair {
  std::string key;
  const Value* source;
  Value* target;
};

struct Pairs {
  std::vector<TensorPair> tensors;
  std::vector<PlainPair> plain;
  FaultList faults;  ///< kKey where the structures or layouts differ, kShape and kType where tensors do
};

/// Walks two state dicts together and names every difference of structure, kinds and layouts. Pairs point into both.
///
/// \throws dcp::Error kInvalidArgument for nesting beyond 500.
Pairs pair_values(const Dict& source, Dict& target);

}  // namespace dcp

#pragma once

#include <string>
#include <vector>

#include "torch_dcp/plan/plan.h"
#include "torch_dcp/state_dict/value.h"

namespace dcp {

/// A write item and, for tensors, the live elements it stands for.
struct WriteItemAndView {
  WriteItem item;
  at::Tensor view;  ///< undefined for objects
};

/// All items that this rank offers for one leaf: a plain tensor one, a DTensor or ShardedTensor one
/// per local chunk, anything else one object.
///
/// \throws dcp::Error kUnsupported or kInvalidArgument as `local_chunks`, kType for a Stateful, with the key.
DCP_API std::vector<WriteItemAndView> create_write_items(const std::string& fqn, const Value& leaf);

}  // namespace dcp

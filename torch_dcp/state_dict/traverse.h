#pragma once

#include <cstdint>
#include <functional>

#include "torch_dcp/state_dict/path.h"
#include "torch_dcp/state_dict/value.h"

namespace dcp {

/// Which nested containers are opened, and which are one leaf.
enum class FlattenRule : std::uint8_t {
  kCurrent,   ///< mappings are always opened
  kUpTo2_3,   ///< as PyTorch up to 2.3 did: a mapping without tensors in it is one leaf
  kTopLevel,  ///< `flatten_state_dict=False`: each top-level value is a leaf
};

/// Calls `visit` for every leaf, in order, with its path. The path is valid during the call.
///
/// Containers are opened by Python's rule: a Dict always (an empty one is a leaf `{}`, which
/// Python's own flattening would lose); a List only if it holds a tensor, a Dict or a List that
/// is opened; a Tuple never. Everything else is a leaf.
///
/// \throws dcp::Error kInvalidArgument for nesting beyond 500; what `visit` throws.
/// Collective: no.
/// Source: torch/distributed/checkpoint/_traverse.py (2.14.1).
DCP_API void visit_leaves(const Dict& state, const std::function<void(const Path&, const Value&)>& visit,
                          FlattenRule rule = FlattenRule::kCurrent);

}  // namespace dcp

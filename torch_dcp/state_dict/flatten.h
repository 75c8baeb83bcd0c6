#pragma once

#include <string>

#include "torch_dcp/base/ordered_map.h"
#include "torch_dcp/state_dict/path.h"
#include "torch_dcp/state_dict/traverse.h"
#include "torch_dcp/state_dict/value.h"

namespace dcp {

/// A leaf where it stands in its state dict.
struct LeafPlace {
  Path path;
  const Value* value = nullptr;  ///< in the state dict
};

/// Flat key -> leaf, in the order of traversal. Valid until the state dict's structure changes.
using LeafPlaces = OrderedMap<std::string, LeafPlace>;

/// One leaf of a flattened state dict.
struct FlatLeaf {
  Path path;
  Value value;  ///< tensors alias those of the state dict
};

/// Flat key -> leaf, in the order of traversal.
using FlatStateDict = OrderedMap<std::string, FlatLeaf>;

/// Opens nested containers by the rule of `visit_leaves`, and names the leaves.
///
/// Stateful values are leaves here; replace them by their state dicts before.
///
/// \throws dcp::Error kKey if several leaves get the same flat key, naming every such key and all of
///         its paths; kInvalidArgument for nesting beyond 500.
/// Collective: no.
/// Source: torch/distributed/checkpoint/_nested_dict.py, _traverse.py (2.14.1).
DCP_API FlatStateDict flatten_state_dict(const Dict& state, FlattenRule rule = FlattenRule::kCurrent);

/// The same without a copy of the leaves: a copied handle of a tensor costs a cache miss, which is what planning many
/// small tensors consists of. Throws and collective: as flatten_state_dict.
DCP_API LeafPlaces find_leaves(const Dict& state, FlattenRule rule = FlattenRule::kCurrent);

/// The reverse: rebuilds the nested dict from the leaves' paths.
///
/// Integer keys come back as such if their paths have them so; types of containers that flattening
/// opened are those that the paths tell.
///
/// \throws dcp::Error kType or kCorruptData as `set_element` does, naming the flat key; kKey if a
///         leaf would replace another value.
DCP_API Dict unflatten_state_dict(const FlatStateDict& flat);

}  // namespace dcp

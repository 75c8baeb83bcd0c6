#pragma once

#include <string>
#include <vector>

#include "torch_dcp/state_dict/dtype_policy.h"
#include "torch_dcp/state_dict/load_report.h"
#include "torch_dcp/state_dict/value.h"

namespace dcp {

struct FillOptions {
  /// Values must be of the same kind, and lists and tuples of the same length. Without it the source's value takes the
  /// place of one that is not, also of a tensor where the source has none. Two tensors must fit either way.
  bool strict = true;
  DtypePolicy dtype_policy = DtypePolicy::kLossless;
};

/// What was done to a state dict. Keys are flat; each value is in one of the lists but the last, a container in one if
/// it was added, replaced, removed or left as a whole.
struct DCP_API FillReport {
  std::vector<std::string> copied = {};     ///< tensors that kept their identity and got elements
  std::vector<std::string> assigned = {};   ///< plain values that got one of the same kind
  std::vector<std::string> loaded = {};     ///< Stateful objects that were given their state
  std::vector<std::string> replaced = {};   ///< values that now are of another kind or length, by a deep copy
  std::vector<std::string> added = {};      ///< new keys, by a deep copy
  std::vector<std::string> untouched = {};  ///< keys that the source lacks: they have what they had
  std::vector<std::string> removed = {};    ///< keys that the snapshot lacks (`restore_in_place`)
  std::vector<DtypeConversion> converted = {};

  friend bool operator==(const FillReport&, const FillReport&) = default;
};

/// Fills a nested state dict from another one of which the structure is about the same, such as what was rebuilt from
/// a checkpoint.
///
/// Tensors stay what they are and get the source's elements, on their device. Plain tensors have the same sizes;
/// DTensors and ShardedTensors the same global sizes: where the other one is laid out otherwise, or is a whole tensor,
/// this rank's part is cut out of what this rank has; no elements are sent. Dicts are descended, keys that `live` lacks
/// are added behind its own, and those that the source lacks stay. Lists and tuples are filled element by element.
/// A Stateful, at any depth, is given a dict (that of a Stateful in `source`); a None or undefined tensor takes
/// anything. New values share no memory with the source; what is one tensor or storage in several of them stays one.
/// Of live tensors that overlap without being the same elements (views) the last one's values count.
///
/// Objects are given their states first, in the sorted order of their paths, since they alone can still fail: the error
/// then names those that have their state already, and nothing else has changed. Autograd sees none of it.
///
/// \throws dcp::Error that names every fault with its flat key, before anything is changed: kType for another kind or
///         dtype, kShape for other sizes, kKey for another length, a layout that cannot be cut here, or values that
///         differ for one tensor under two keys, kUnsupported for tensors whose elements cannot be copied; its kind is
///         that of the first fault. What an object throws.
/// Collective: no.
DCP_API FillReport fill_in_place(Dict& live, const Dict& source, const FillOptions& options = {});

/// Makes a state dict what it was when `snapshot = clone(live)` was made: keys that came since are removed and the
/// others have their old order, tensors that are still there get their old elements, and everything else becomes a copy
/// of the old value. So does a tensor that has come to share memory with an earlier one that had other values: the
/// first keeps the memory, the others are `replaced`.
///
/// Objects are given their states last, and all of them, also if some fail.
///
/// \throws dcp::Error as above, before anything is changed, for a null Stateful and too deep nesting; what objects
///         throw, when all is done that could be, naming all of them.
/// Collective: no.
DCP_API FillReport restore_in_place(Dict& live, const Dict& snapshot);

}  // namespace dcp

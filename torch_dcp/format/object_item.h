#pragma once

#include <string>

#include "torch_dcp/base/bytes.h"
#include "torch_dcp/base/limits.h"
#include "torch_dcp/state_dict/value.h"

namespace dcp {

/// Writes an object as an item: what `torch.save(object)` gives. An Opaque is returned as it was stored.
///
/// Tuples and lists may hold tensors (`at::Tensor` only), each with a storage of its own.
///
/// \throws dcp::Error kUnsupported, naming the place inside, for what cannot lie in an object: a
///         DTensor, ShardedTensor or Stateful, an Opaque inside a container.
/// Collective: no. Thread safety: pure.
/// Source: interop FORMAT.md 4.
DCP_API Bytes encode_object_item(const Value& value);

/// Reads an object item. None, bool, 64-bit int, float, str, bytes, list, tuple, dict (str and int keys;
/// OrderedDict too) and tensors in them become values; if anything else is inside, the whole item
/// is an Opaque. A shared subtree is copied, with bounds on the total; nothing is executed.
///
/// \throws dcp::Error kCorruptData, kUnsupported for a damaged item.
DCP_API Value decode_object_item(Bytes item, const ParseLimits& limits = {});

}  // namespace dcp

#pragma once

#include "torch_dcp/state_dict/value.h"

namespace dcp {

/// A copy of `value` in which each Stateful, at any depth, is replaced by its state.
///
/// Each object is asked once, on this thread, in the sorted order of paths, so that ranks agree on the order of what
/// their objects may do together.
///
/// \throws dcp::Error kInvalidArgument for a null pointer, and for an object whose state holds the object itself,
///         naming the path; what an object throws, with its path.
Value replace_all_stateful(const Value& value);

}  // namespace dcp

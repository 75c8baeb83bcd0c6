#pragma once

#include <functional>

#include "torch_dcp/state_dict/path.h"
#include "torch_dcp/state_dict/value.h"

namespace dcp {

/// Calls `visit` for every value in `root` that is no container, and for every empty container, in order.
///
/// Unlike `visit_leaves`, which follows the rule of Python's flattening, it opens every dict, list and tuple; the path
/// has positions for both sequences. The path is valid during the call. A `root` that is a leaf has an empty path.
///
/// \throws dcp::Error kInvalidArgument for nesting beyond 500; what `visit` throws. Collective: no.
DCP_API void visit_all(const Value& root, const std::function<void(const Path&, const Value&)>& visit);

/// A copy of `root` with the same containers, keys and order, in which `replace` gives each value that is no container.
///
/// \throws dcp::Error as `visit_all` does; what `replace` throws. Collective: no.
DCP_API Value replace_leaves(const Value& root, const std::function<Value(const Path&, const Value&)>& replace);

}  // namespace dcp

#pragma once

#include <string>

#include "torch_dcp/base/error.h"
#include "torch_dcp/state_dict/value.h"

namespace dcp {

/// Calls something of an object's; what it throws says which object it was, and becomes a dcp::Error or c10::Error.
///
/// \param path  Of the object, as `describe` spells it.
/// \param what  Such as "state_dict()".
template <typename Call>
auto call_object(const std::string& path, const char* what, const Call& call) {
  try {
    return call();
  } catch (c10::Error& error) {
    error.add_context(c10::str("in ", what, " of ", path));
    throw;
  } catch (...) {  // An object may throw whatever it likes.
    const RankFailure failure = current_failure(0);
    throw Error(failure.kind, c10::str(failure.message, " in ", what, " of ", path), DCP_WHERE);
  }
}

/// A copy of `value` in which each Stateful, at any depth, is replaced by its state.
///
/// Each object is asked once, on this thread, in the sorted order of paths, so that ranks agree on the order of what
/// their objects may do together.
///
/// \throws dcp::Error kInvalidArgument for a null pointer, and for an object whose state holds the object itself,
///         naming the path; what an object throws, with its path.
Value replace_all_stateful(const Value& value);

}  // namespace dcp

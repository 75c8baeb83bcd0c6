#pragma once

#include "torch_dcp/state_dict/value.h"

namespace dcp::test {

/// A copy whose tensors are copies too: what the original's tensors later become does not change it. Of the kinds of
/// tensors only plain ones.
inline Value deep_copy(const Value& value) {
  Value copy = value;
  if (value.is_tensor()) copy = value.as_tensor().detach().clone();
  if (value.is_dict()) {
    for (auto& [key, inner] : copy.as_dict()) inner = deep_copy(inner);
  }
  if (value.is_list()) {
    for (Value& inner : copy.as_list()) inner = deep_copy(inner);
  }
  return copy;
}

inline Dict deep_copy(const Dict& dict) { return deep_copy(Value(dict)).as_dict(); }

}  // namespace dcp::test

#pragma once

#include "torch_dcp/state_dict/value.h"

namespace dcp {

/// Something that saves and loads itself: put a shared pointer to it into a state dict.
///
/// `save` asks `state_dict()` on the caller's thread, in sorted order of top-level keys;
/// `load` fills that dict (tensors in place) and then hands it to `load_state_dict`: once, also if the object has
/// several keys, and not at all if the planner skips everything in it.
class DCP_API Stateful {
 public:
  virtual ~Stateful();
  virtual Dict state_dict() = 0;
  virtual void load_state_dict(const Dict& state) = 0;
};

}  // namespace dcp

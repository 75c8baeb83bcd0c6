#pragma once

#include <c10/util/intrusive_ptr.h>

#include "torch_dcp/base/export.h"

namespace c10d {
class ProcessGroup;
}

namespace dcp {

/// A process group, or none, as a field of options: unlike a bare pointer it can be copied and destroyed where the
/// group's own header, which is costly, is not included.
class DCP_API GroupRef {
 public:
  GroupRef();
  GroupRef(c10::intrusive_ptr<c10d::ProcessGroup> group);  // NOLINT: options take the pointer itself
  GroupRef(const GroupRef&);
  GroupRef(GroupRef&&) noexcept;
  GroupRef& operator=(const GroupRef&);
  GroupRef& operator=(GroupRef&&) noexcept;
  ~GroupRef();

  const c10::intrusive_ptr<c10d::ProcessGroup>& get() const { return group_; }
  explicit operator bool() const;

  /// This process's rank in the group; 0 without one. Talks to nobody.
  int rank() const;

 private:
  c10::intrusive_ptr<c10d::ProcessGroup> group_;
};

}  // namespace dcp

#include "torch_dcp/comm/group_ref.h"

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>

namespace dcp {

GroupRef::GroupRef() = default;
GroupRef::GroupRef(c10::intrusive_ptr<c10d::ProcessGroup> group) : group_(std::move(group)) {}
GroupRef::GroupRef(const GroupRef&) = default;
GroupRef::GroupRef(GroupRef&&) noexcept = default;
GroupRef& GroupRef::operator=(const GroupRef&) = default;
GroupRef& GroupRef::operator=(GroupRef&&) noexcept = default;
GroupRef::~GroupRef() = default;

GroupRef::operator bool() const { return static_cast<bool>(group_); }

int GroupRef::rank() const { return group_ ? group_->getRank() : 0; }

}  // namespace dcp

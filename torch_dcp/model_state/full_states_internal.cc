#include "torch_dcp/model_state/full_states_internal.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "torch_dcp/base/error.h"
#include "torch_dcp/comm/rank_step.h"
#include "torch_dcp/state_dict/walk.h"
#include "torch_dcp/tensor/dtensor.h"
#include "torch_dcp/transform/broadcast.h"
#include "torch_dcp/transform/distribute.h"
#include "torch_dcp/transform/outline.h"

namespace dcp {
namespace {

Value spread(const at::Tensor& local, const DTensorLayout& layout) {
  return DTensor(local, layout.mesh, layout.placements, layout.global_sizes);
}

Value new_memory(const FullTarget& target, const at::Tensor& whole) {
  if (target.layout == nullptr) return at::empty(whole.sizes(), whole.options().device(target.device));
  const DTensorLayout& layout = *target.layout;
  const DTensor part = DTensor::empty(layout.global_sizes, whole.scalar_type(), layout.mesh, layout.placements);
  return spread(part.local().to(target.device), layout);
}

}  // namespace

const Dict& FullStates::outline(const Dict& full) {
  outline_ = communicator_ == nullptr ? full : broadcast_outline(full, *communicator_);
  if (communicator_ == nullptr || communicator_->is_coordinator()) {
    visit_all(full, [&](const Path&, const Value& value) {
      if (value.is_tensor()) sources_.push_back(value.as_tensor());
    });
  }
  return outline_;
}

Dict FullStates::receive(const std::function<FullTarget(const Path&, const at::Tensor&)>& choose) {
  visit_all(outline_, [&](const Path& path, const Value& value) {
    if (!value.is_tensor()) return;
    Leaf& leaf = leaves_.emplace_back();
    leaf.key = describe(path);
    leaf.target = choose(path, value.as_tensor());
    if (leaf.target.is_wanted) leaf.flags |= kWanted;
    if (!leaf.target.is_wanted || leaf.target.live) leaf.flags |= kInPlace;
  });
  agree();
  for (std::size_t i = 0; i < sources_.size(); ++i) leaves_[i].source = sources_[i];
  std::size_t next = 0;
  Value received = replace_leaves(outline_, [&](const Path&, const Value& value) {
    if (!value.is_tensor()) return value;
    Leaf& leaf = leaves_[next++];
    const FullTarget& target = leaf.target;
    if (!target.is_wanted) return target.instead.value_or(value);
    if (!goes_in_place(leaf)) {
      leaf.destination = new_memory(target, value.as_tensor());
    } else {
      leaf.destination = target.layout == nullptr ? Value(*target.live) : spread(*target.live, *target.layout);
    }
    return leaf.destination;
  });
  transfer(/*is_in_place=*/false);
  return std::move(received.as_dict());
}

/// A tensor travels if any rank wants it, and goes in place if it may on all.
void FullStates::agree() {
  if (communicator_ == nullptr) return;
  const auto flags = [&] {
    DCP_CHECK(sources_.empty() || sources_.size() == leaves_.size(), kType,
              "a full state holds an object that has a state of its own");
    Bytes bytes;
    for (const Leaf& leaf : leaves_) bytes.push_back(leaf.flags);
    return bytes;
  };
  const Bytes agreed =
      reduce_step(*communicator_, "ways of a full state", flags, [&](const std::vector<Bytes>& by_rank) {
        Bytes all = by_rank.front();
        for (const Bytes& one : by_rank) {
          DCP_CHECK(one.size() == all.size(), kInternal, "ranks have ", all.size(), " and ", one.size(), " tensors");
          for (std::size_t i = 0; i < all.size(); ++i) {
            const std::uint8_t wanted = (all[i] | one[i]) & kWanted;
            all[i] = static_cast<std::uint8_t>(wanted | (all[i] & one[i] & kInPlace));
          }
        }
        return all;
      });
  for (std::size_t i = 0; i < leaves_.size(); ++i) leaves_[i].flags = agreed[i];
}

void FullStates::transfer(bool is_in_place) {
  Dict full, local;
  bool is_any = false;
  for (const Leaf& leaf : leaves_) {
    if ((leaf.flags & kWanted) == 0 || goes_in_place(leaf) != is_in_place) continue;
    is_any = true;
    if (leaf.source.defined()) full.insert_or_assign(leaf.key, leaf.source);
    if (leaf.target.is_wanted) local.insert_or_assign(leaf.key, leaf.destination);
  }
  if (!is_any) return;
  if (communicator_ == nullptr) {
    distribute_state(full, local);
  } else {
    broadcast_state(full, local, *communicator_, {.bucket_bytes = bucket_bytes_});
  }
}

void FullStates::write_in_place() { transfer(/*is_in_place=*/true); }

}  // namespace dcp

#include "torch_dcp/comm/group_store_internal.h"

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace dcp {
namespace {

// Older LibTorch keeps the store for derived classes.
template <typename Group>
struct StoreKeeper : Group {
  static c10::intrusive_ptr<c10d::Store> of(const Group& group) { return group.*(&StoreKeeper::store_); }
};

template <typename Group>
c10::intrusive_ptr<c10d::Store> kept_store(const c10::intrusive_ptr<Group>& group) {
  if constexpr (requires { group->getStore(); }) {
    return group->getStore();
  } else {
    return StoreKeeper<Group>::of(*group);
  }
}

template <typename AnyStore>
c10::intrusive_ptr<c10d::Store> cloned(const c10::intrusive_ptr<AnyStore>& store) {
  if constexpr (requires { store->clone(); }) {
    return store->clone();
  } else {
    return store;
  }
}

}  // namespace

c10::intrusive_ptr<c10d::Store> store_of(const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
  return kept_store(group);
}

c10::intrusive_ptr<c10d::Store> own_connection(const c10::intrusive_ptr<c10d::Store>& store) { return cloned(store); }

}  // namespace dcp

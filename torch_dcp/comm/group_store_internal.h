#pragma once

#include <c10/util/intrusive_ptr.h>

namespace c10d {
class ProcessGroup;
class Store;
}  // namespace c10d

namespace dcp {

/// The store that `group` was made with; null if it has none.
c10::intrusive_ptr<c10d::Store> store_of(const c10::intrusive_ptr<c10d::ProcessGroup>& group);

/// A connection of one's own to `store`, where LibTorch is new enough: a store's client is locked while another thread
/// of the program waits in it.
c10::intrusive_ptr<c10d::Store> own_connection(const c10::intrusive_ptr<c10d::Store>& store);

}  // namespace dcp

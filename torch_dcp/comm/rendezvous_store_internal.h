#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "torch_dcp/comm/bounded_call_internal.h"

namespace c10d {
class Store;
}

namespace dcp {

/// What ends the waits of a rendezvous.
struct RendezvousLimits {
  /// Throws to end a wait; asked every few milliseconds. Returns whether nothing else ends it, not even its own time.
  /// Must own what it touches.
  std::function<bool()> check;
  std::chrono::milliseconds default_wait{0};  ///< of waits that name no limit of their own
};

/// Wraps `store` for making a group: keys get `prefix`, and no wait lies in the store.
///
/// A wait asks again and again whether the keys are there. So it ends when `limits.check`
/// throws, and the store's client, which is locked during each call, is never held for long.
c10::intrusive_ptr<c10d::Store> make_rendezvous_store(c10::intrusive_ptr<c10d::Store> store, std::string prefix,
                                                      RendezvousLimits limits);

}  // namespace dcp

#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>

namespace c10d {
class ProcessGroup;
class Store;
}  // namespace c10d

namespace dcp::testing {

/// Makes a Gloo group for CPU tensors that listens on the loopback address. A group of its
/// own kind: nothing of the library is in it. Collective: yes, all ranks.
c10::intrusive_ptr<c10d::ProcessGroup> make_gloo_group(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                                       std::chrono::milliseconds timeout = std::chrono::seconds(30));

}  // namespace dcp::testing

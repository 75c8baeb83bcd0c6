#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <functional>
#include <string>

#include "torch_dcp/base/export.h"

namespace c10d {
class ProcessGroup;
class Store;
}  // namespace c10d

namespace dcp {

/// Makes a group of `size` ranks whose backend takes CPU tensors and has gather, scatter,
/// broadcast, send and recv.
///
/// Called on every rank, on a thread that may be left behind, so it must own what it
/// touches. Its waits are to go through `store`, which ends them when others fail;
/// `timeout` is the default of the group's operations.
///
/// Collective: yes, all ranks of the group.
using GroupFactory = std::function<c10::intrusive_ptr<c10d::ProcessGroup>(
    const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, std::chrono::milliseconds timeout)>;

/// Where Gloo listens. With neither set: the loopback address if all ranks share one
/// network stack, else the interface that GLOO_SOCKET_IFNAME names, else the address of
/// this machine's host name.
struct GlooFactoryOptions {
  std::string hostname;   ///< name or address, such as "127.0.0.1"
  std::string interface;  ///< such as "eth0"; counts when `hostname` is empty
};

/// Returns a factory of Gloo groups.
///
/// Where LibTorch came without Gloo's headers the factory throws dcp::Error kUnsupported
/// when called: then the program gives one of its own.
DCP_API GroupFactory gloo_group_factory(GlooFactoryOptions options = {});

}  // namespace dcp

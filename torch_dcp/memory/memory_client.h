#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "torch_dcp/base/export.h"
#include "torch_dcp/memory/memory_vault.h"

namespace dcp {

struct MemoryClientOptions {
  /// Must be the server's.
  std::string job = "default";
  /// Most that a call takes, connecting included.
  std::chrono::milliseconds deadline = std::chrono::seconds(30);
};

/// Connects to the vault of a server process on this machine (`dcp_memory`, `VaultServer`).
///
/// Bytes are written and read in place, in memory that both map. Calls of several threads go one after another. Every
/// call throws kDeadline if the server does not answer in time, and kComm if it is gone; from then on all throw kComm:
/// there is no second connection, since what was not sealed is lost. Files that are open stay readable when the server
/// is gone, and never raise a signal. The memory counts as the server's and as this process's shared memory.
///
/// A child that is forked holds the connection open as long as it lives.
///
/// \param id  "mem://" and the path of the server's socket.
/// \throws dcp::Error kInvalidArgument if that is another text; kComm if there is no server; kState if it is of another
///         job (both are named), or of another user, or has its most clients; kUnsupported if it speaks another
///         version.
DCP_API std::shared_ptr<MemoryVault> open_memory_vault(const std::string& id, const MemoryClientOptions& options = {});

}  // namespace dcp

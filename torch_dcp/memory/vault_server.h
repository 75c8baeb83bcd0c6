#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "torch_dcp/base/export.h"
#include "torch_dcp/memory/memory_vault.h"

namespace dcp {

struct VaultServerOptions {
  /// Path of the Unix socket. Beside it, as long as the server lives, lies a lock of this name and `.lock`.
  std::string socket;
  /// The only job that is served.
  std::string job = "default";
  /// Most that all files may take. 0: half of the machine's memory.
  std::uint64_t budget_bytes = 0;
  /// Most clients at a time; further ones are refused.
  std::size_t max_connections = 256;
  /// The only user that is served; without one this process's.
  std::optional<unsigned> user;
};

/// Holds a vault for other processes of this machine, which outlives them.
///
/// Clients are `open_memory_vault`. They map the server's memory, so that bytes never go through the socket. What a
/// client did not seal is gone when its connection ends, however it ends. All memory is kept until the server ends;
/// clients that have files open keep those readable after it.
///
/// Only processes of its own user are served: the socket's mode is 0600, and the system is asked who is at the other
/// end. These may write to all of the memory, so a broken one can damage other files: whoever stores checks sums. They
/// cannot make the memory smaller. Beside the budget the server takes at most 16 MiB for each client that does not read
/// its answers, 96 KiB for a request, about 1 MiB for the 4,096 files that it may have open, and in all 16,384 files
/// and 8 MiB of notes.
class DCP_API VaultServer {
 public:
  /// Makes the socket; a client can connect from then on. A socket that a dead server left is replaced.
  ///
  /// \throws dcp::Error kAlreadyExists if a server lives there, or something that is no socket is there;
  ///         kInvalidArgument for a path that is empty or too long, or a budget too small; kIo if the system refuses.
  explicit VaultServer(VaultServerOptions options);
  /// Removes the socket. \pre `run` has returned.
  ~VaultServer();
  VaultServer(const VaultServer&) = delete;
  VaultServer& operator=(const VaultServer&) = delete;

  /// Serves on this thread, until `stop` is called.
  ///
  /// \param end_descriptor  Also ends when this can be read, such as a `signalfd`; -1 for none.
  /// \throws dcp::Error kIo if the system refuses to wait or to accept.
  void run(int end_descriptor = -1);
  /// Ends `run`, now or as soon as it is called. May be called from any thread, and from a signal handler.
  void stop() noexcept;

  /// What clients give to `open_memory_vault`.
  const std::string& id() const;
  VaultUse use() const;
  /// How many clients are connected.
  std::size_t connection_count() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dcp

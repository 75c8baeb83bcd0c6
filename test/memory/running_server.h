#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "test/memory/unique_socket.h"
#include "torch_dcp/memory/memory_client.h"
#include "torch_dcp/memory/memory_vault.h"
#include "torch_dcp/memory/vault_server.h"

namespace dcp::test {

/// A memory server on a thread of its own, in place of a process.
class RunningServer {
 public:
  explicit RunningServer(const VaultServerOptions& options)
      : options_(options), server_(options), thread_([this] { server_.run(); }) {}
  /// One that serves the job at a socket that nobody else uses.
  explicit RunningServer(std::string job = "default", std::uint64_t budget_bytes = 0)
      : RunningServer(VaultServerOptions{unique_socket(), std::move(job), budget_bytes, 256, {}}) {}
  ~RunningServer() { server_.stop(); }
  RunningServer(const RunningServer&) = delete;
  RunningServer& operator=(const RunningServer&) = delete;

  const std::string& id() const { return server_.id(); }
  const std::string& socket() const { return options_.socket; }
  const VaultServer& server() const { return server_; }
  std::shared_ptr<MemoryVault> connect() const { return connect(options_.job); }
  std::shared_ptr<MemoryVault> connect(const std::string& job) const {
    return open_memory_vault(server_.id(), {job, std::chrono::seconds(20)});
  }
  /// Waits until the server has noticed that clients are gone. \returns Whether only `count` are left.
  bool has_clients(std::size_t count) const {
    for (int i = 0; i < 2000; ++i) {
      if (server_.connection_count() == count) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return false;
  }

 private:
  VaultServerOptions options_;
  VaultServer server_;
  std::jthread thread_;
};

}  // namespace dcp::test

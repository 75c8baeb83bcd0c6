#pragma once

#include <chrono>
#include <cstdint>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "test/support/child_process.h"

// Ranks as processes, which can be killed and stopped.

namespace dcp::test {

/// \param port  0 for a server that takes a free one.
inline c10::intrusive_ptr<c10d::TCPStore> connect_store(bool is_server, std::uint16_t port) {
  c10d::TCPStoreOptions options;
  options.port = port;
  options.isServer = is_server;
  options.waitWorkers = false;
  options.useLibUV = false;
  options.timeout = std::chrono::seconds(20);
  return c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
}

}  // namespace dcp::test

#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <vector>

#include "test/support/child_process.h"
#include "torch_dcp/base/error.h"

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

/// Ranks that run `body(rank, store, told)`, where `told` gets one line at a time to the test, over a store whose
/// server is a process too. No child lives longer than `limit`.
class RankProcesses {
 public:
  using Body = std::function<void(int rank, const c10::intrusive_ptr<c10d::Store>& store, const Pipe& told)>;

  RankProcesses(int count, std::chrono::seconds limit, const Body& body)
      : limit_(limit), told_(static_cast<std::size_t>(count)), ports_(told_.size()) {
    server_ = std::make_unique<Child>(
        [&] {
          auto store = connect_store(true, 0);
          for (const Pipe& port : ports_) port.write(std::to_string(store->getPort()) + "\n");
          std::this_thread::sleep_for(limit);
        },
        limit);
    for (std::size_t rank = 0; rank < told_.size(); ++rank) {
      ranks_.push_back(std::make_unique<Child>(
          [&, rank] {
            const int port = std::stoi(ports_[rank].read_line(limit));
            body(static_cast<int>(rank), connect_store(false, static_cast<std::uint16_t>(port)), told_[rank]);
          },
          limit));
    }
  }

  Child& server() { return *server_; }
  Child& rank(int rank) { return *ranks_[static_cast<std::size_t>(rank)]; }
  std::string next_line(int rank) const { return told_[static_cast<std::size_t>(rank)].read_line(limit_); }

 private:
  std::chrono::seconds limit_;
  std::vector<Pipe> told_;
  std::vector<Pipe> ports_;
  std::unique_ptr<Child> server_;
  std::vector<std::unique_ptr<Child>> ranks_;
};

/// What `call` did, on one line: "ok", or its error, and whether it took longer than `limit`.
inline std::string outcome_of(const std::function<void()>& call, std::chrono::milliseconds limit) {
  const auto start = std::chrono::steady_clock::now();
  std::string text = "ok";
  try {
    call();
  } catch (const Error& error) {
    text = std::string(error_kind_name(error.kind())) + " " + error.what_without_backtrace();
  }
  const auto took = std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - start);
  if (took > limit) text += " after " + std::to_string(took.count()) + " ms";
  return text + "\n";
}

}  // namespace dcp::test

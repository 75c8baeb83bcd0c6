// A state that travels between processes, of which one is killed.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include "test/comm/rank_process.h"
#include "torch_dcp/base/error.h"
#include "torch_dcp/peer_memory/process_group_transport.h"

namespace dcp::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

constexpr int kRanks = 3;
constexpr seconds kLimit{60};

Dict large_state() { return {{"model", Dict{{"weight", at::ones({64 << 20}, at::kByte)}}}}; }

std::string outcome_of(const std::function<void()>& call) {
  const auto start = steady_clock::now();
  std::string text = "ok";
  try {
    call();
  } catch (const Error& error) {
    text = std::string(error_kind_name(error.kind())) + " " + error.what_without_backtrace();
  }
  if (steady_clock::now() - start > seconds(5)) text += " (late)";
  return text + "\n";
}

// Rank 0 sends again and again to ranks 1 and 2, of which 2 is killed; or rank 0 is.
std::vector<std::string> outcomes(int victim) {
  std::vector<Pipe> told(kRanks);
  std::vector<Pipe> ports(kRanks);
  Child server(
      [&] {
        auto store = connect_store(true, 0);
        for (const Pipe& port : ports) port.write(std::to_string(store->getPort()) + "\n");
        std::this_thread::sleep_for(kLimit);
      },
      kLimit);
  std::vector<std::unique_ptr<Child>> ranks;
  for (int rank = 0; rank < kRanks; ++rank) {
    ranks.push_back(std::make_unique<Child>(
        [&, rank] {
          auto store = connect_store(false, static_cast<std::uint16_t>(std::stoi(ports[rank].read_line(kLimit))));
          PeerLinkOptions link_options;
          link_options.deadline = seconds(20);
          link_options.group_factory = gloo_group_factory({.hostname = "127.0.0.1", .interface = ""});
          link_options.store = store;
          TransportOptions options;
          options.piece_bytes = 1 << 20;
          auto transport = ProcessGroupTransport::create(
              GroupRef(c10::make_intrusive<c10d::ProcessGroup>(store, rank, kRanks)), options, link_options);
          Dict state = large_state();
          told[rank].write(outcome_of([&] {
            for (int step = 0;; ++step) {
              if (rank == 0) transport->send(state, step, {1, 2});
              if (rank != 0) transport->receive_into(state, step, 0);
              if (step == 0) told[rank].write("begun\n");
            }
          }));
        },
        kLimit));
  }
  for (int rank = 0; rank < kRanks; ++rank) EXPECT_EQ(told[rank].read_line(kLimit), "begun");
  std::this_thread::sleep_for(milliseconds(100));
  ranks[victim]->signal(SIGKILL);
  std::vector<std::string> lines;
  for (int rank = 0; rank < kRanks; ++rank) {
    if (rank != victim) lines.push_back(told[rank].read_line(kLimit));
  }
  return lines;
}

TEST(TransportProcesses, KilledRankIsNamedWithKeyOrPhase) {
  for (const int victim : {0, 2}) {
    const std::string lost = "rank " + std::to_string(victim) + " is gone: its connection is closed";
    for (const std::string& line : outcomes(victim)) {
      EXPECT_EQ(line.find("Comm "), 0u) << line;
      EXPECT_NE(line.find(lost), std::string::npos) << line;
      EXPECT_TRUE(line.find("model.weight") != std::string::npos || line.find("the state of step") != std::string::npos)
          << line;
      EXPECT_EQ(line.find("(late)"), std::string::npos) << line;
    }
  }
}

}  // namespace
}  // namespace dcp::test

// A state that travels between processes, of which one is killed.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include "test/comm/rank_process.h"
#include "torch_dcp/peer_memory/process_group_transport.h"

namespace dcp::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int kRanks = 3;
constexpr seconds kLimit{60};

Dict large_state() { return {{"model", Dict{{"weight", at::ones({64 << 20}, at::kByte)}}}}; }

// Rank 0 sends again and again to ranks 1 and 2, of which 2 is killed; or rank 0 is.
std::vector<std::string> outcomes(int victim) {
  RankProcesses ranks(kRanks, kLimit, [](int rank, const c10::intrusive_ptr<c10d::Store>& store, const Pipe& told) {
    PeerLinkOptions link_options;
    link_options.deadline = seconds(20);
    link_options.group_factory = gloo_group_factory({.hostname = "127.0.0.1", .interface = ""});
    link_options.store = store;
    TransportOptions options;
    options.piece_bytes = 1 << 20;
    auto transport = ProcessGroupTransport::create(
        GroupRef(c10::make_intrusive<c10d::ProcessGroup>(store, rank, kRanks)), options, link_options);
    Dict state = large_state();
    const auto go_on_for_ever = [&] {
      for (int step = 0;; ++step) {
        if (rank == 0) transport->send(state, step, {1, 2});
        if (rank != 0) transport->receive_into(state, step, 0);
        if (step == 0) told.write("begun\n");
      }
    };
    told.write(outcome_of(go_on_for_ever, seconds(5)));
  });
  for (int rank = 0; rank < kRanks; ++rank) EXPECT_EQ(ranks.next_line(rank), "begun");
  std::this_thread::sleep_for(milliseconds(100));
  ranks.rank(victim).signal(SIGKILL);
  std::vector<std::string> lines;
  for (int rank = 0; rank < kRanks; ++rank) {
    if (rank != victim) lines.push_back(ranks.next_line(rank));
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
      EXPECT_EQ(line.find(" after "), std::string::npos) << line;
    }
  }
}

}  // namespace
}  // namespace dcp::test

// Links between processes, which can be killed and stopped.
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
#include "torch_dcp/comm/peer_link.h"

namespace dcp::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int kRanks = 3;
constexpr seconds kLimit{30};

class LinkedRanks : public RankProcesses {
 public:
  using Body = std::function<void(std::shared_ptr<PeerLink> link, const Pipe& told)>;

  LinkedRanks(const Body& body, milliseconds deadline)
      : RankProcesses(kRanks, kLimit, [&](int rank, const c10::intrusive_ptr<c10d::Store>& store, const Pipe& told) {
          PeerLinkOptions options;
          options.deadline = deadline;
          options.store = store;
          options.group_factory = gloo_group_factory({.hostname = "127.0.0.1", .interface = ""});
          body(PeerLink::create(c10::make_intrusive<c10d::ProcessGroup>(store, rank, kRanks), options), told);
        }) {}
};

void receive(PeerLink& link, int from, std::size_t size) {
  auto bytes = std::make_shared<Bytes>(size);
  link.receive(from, 1, *bytes, bytes, "a message").wait();
}

void send(PeerLink& link, int to, std::size_t size) {
  auto bytes = std::make_shared<Bytes>(size);
  link.send(to, 1, *bytes, bytes, "a message").wait();
}

constexpr char kLost[] = "rank 2 is gone: its connection is closed";

TEST(PeerLinkProcesses, KilledPeerIsNamedAlsoByThoseThatWaitForAnother) {
  for (const bool serves : {false, true}) {
    LinkedRanks job(
        [&](const std::shared_ptr<PeerLink>& link, const Pipe& told) {
          if (serves) link->serve(5, 8, [](int, const Bytes&) {});
          if (link->rank() == 2) {
            receive(*link, 0, 10);
            receive(*link, 1, 10);
            ::raise(SIGKILL);
          }
          send(*link, 2, 10);
          told.write(outcome_of([&] { receive(*link, 1 - link->rank(), 10); }, seconds(2)));
          told.write(outcome_of([&] { send(*link, 2, 10); }, milliseconds(100)));
        },
        seconds(20));
    for (int rank = 0; rank < 2; ++rank) {
      EXPECT_EQ(job.next_line(rank), "Comm receiving a message from rank " + std::to_string(1 - rank) + ": " + kLost);
      EXPECT_EQ(job.next_line(rank), std::string("Comm sending a message to rank 2: ") + kLost);
    }
  }
}

TEST(PeerLinkProcesses, PeerKilledInTheMiddleOfALargeMessage) {
  for (const bool sends : {true, false}) {
    LinkedRanks job(
        [&](const std::shared_ptr<PeerLink>& link, const Pipe& told) {
          if (link->rank() == 2) {
            auto bytes = std::make_shared<Bytes>(std::size_t{256} << 20);
            auto one = sends ? link->send(0, 1, *bytes, bytes, "x") : link->receive(0, 1, *bytes, bytes, "x");
            std::this_thread::sleep_for(milliseconds(1000));  // rank 0 is at work, or stopped
            ::raise(SIGKILL);
          }
          if (link->rank() == 1) {
            told.write(outcome_of([&] { receive(*link, 0, 10); }, seconds(5)));
            return;
          }
          told.write(outcome_of(
              [&] {
                std::vector<PeerLink::Transfer> all;
                auto bytes = std::make_shared<Bytes>(std::size_t{256} << 20);
                for (int i = 0; i < 4; ++i) {
                  all.push_back(sends ? link->receive(2, 1, *bytes, bytes, "a message")
                                      : link->send(2, 1, *bytes, bytes, "a message"));
                }
                for (auto& one : all) one.wait();
              },
              seconds(5)));
        },
        seconds(20));
    EXPECT_EQ(job.next_line(0), std::string("Comm ") + (sends ? "receiving a message from" : "sending a message to") +
                                    " rank 2: " + kLost);
    EXPECT_EQ(job.next_line(1), std::string("Comm receiving a message from rank 0: ") + kLost);
  }
}

TEST(PeerLinkProcesses, StoppedPeerEndsInTheDeadlineOnAllRanks) {
  LinkedRanks job(
      [&](const std::shared_ptr<PeerLink>& link, const Pipe& told) {
        if (link->rank() == 2) {
          ::raise(SIGSTOP);
          told.write(outcome_of([&] { receive(*link, 0, 10); }, seconds(2)));
          return;
        }
        if (link->rank() == 0) told.write(outcome_of([&] { receive(*link, 2, 10); }, milliseconds(1500)));
        if (link->rank() == 1) {
          while (!link->is_broken()) std::this_thread::sleep_for(milliseconds(1));
          told.write(link->broken_reason() + "\n");
        }
      },
      milliseconds(1000));
  const std::string reason = "rank 0 waited 1000 ms: receiving a message from rank 2";
  EXPECT_EQ(job.next_line(0), "Deadline receiving a message from rank 2: " + reason);
  EXPECT_EQ(job.next_line(1), reason);
  job.rank(2).signal(SIGCONT);
  EXPECT_EQ(job.next_line(2), "Deadline receiving a message from rank 0: " + reason);
}

TEST(PeerLinkProcesses, StoreMayGoOnceTheLinkIsMade) {
  Pipe go;
  LinkedRanks job(
      [&](const std::shared_ptr<PeerLink>& link, const Pipe& told) {
        told.write("made\n");
        go.read_line(kLimit);
        const int next = (link->rank() + 1) % kRanks;
        auto bytes = std::make_shared<Bytes>(1 << 20);
        auto sent = link->send(next, 1, *bytes, bytes, "a message");
        told.write(outcome_of([&] { receive(*link, (link->rank() + 2) % kRanks, 1 << 20); }, seconds(2)));
        sent.wait();
        go.read_line(kLimit);
      },
      seconds(10));
  for (int rank = 0; rank < kRanks; ++rank) EXPECT_EQ(job.next_line(rank), "made");
  job.server().signal(SIGKILL);
  go.write("\n\n\n");
  for (int rank = 0; rank < kRanks; ++rank) EXPECT_EQ(job.next_line(rank), "ok");
  go.write("\n\n\n");
  for (int rank = 0; rank < kRanks; ++rank) EXPECT_EQ(job.rank(rank).wait(), 0);
}

}  // namespace
}  // namespace dcp::test

#include "torch_dcp/comm/peer_link.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include "test/support/expect_error.h"
#include "test/support/rank_runner.h"
#include "torch_dcp/base/error.h"

namespace dcp::test {
namespace {

using dcp::testing::RankContext;
using dcp::testing::run_ranks;
using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

constexpr std::uint32_t kTag = 7;

std::shared_ptr<PeerLink> make_link(RankContext& context, milliseconds deadline = seconds(20),
                                    const std::string& name = "test") {
  PeerLinkOptions options;
  options.deadline = deadline;
  options.name = name;
  options.store = context.store();
  options.group_factory = gloo_group_factory({.hostname = "127.0.0.1", .interface = ""});
  return PeerLink::create(context.unconnected_group(), options);
}

std::shared_ptr<Bytes> pattern(std::size_t size, int seed) {
  auto bytes = std::make_shared<Bytes>(size);
  for (std::size_t i = 0; i < size; ++i)
    (*bytes)[i] = static_cast<std::uint8_t>(i * 31 + static_cast<std::size_t>(seed));
  return bytes;
}

void send(PeerLink& link, int rank, std::uint32_t tag, const std::shared_ptr<Bytes>& bytes) {
  link.send(rank, tag, *bytes, bytes, "a message").wait();
}

Bytes receive(PeerLink& link, int rank, std::uint32_t tag, std::size_t size) {
  auto bytes = std::make_shared<Bytes>(size);
  link.receive(rank, tag, *bytes, bytes, "a message").wait();
  return *bytes;
}

// Waits until all ranks have come, without the link.
void meet(RankContext& context, const std::string& name) {
  context.store()->add("meet/" + name, 1);
  while (context.store()->add("meet/" + name, 0) < context.size()) std::this_thread::sleep_for(milliseconds(1));
}

TEST(PeerLink, MessagesOfAnySizeArriveInOrderBetweenAnyTwo) {
  const std::vector<std::size_t> sizes{1, 2, 4095, 4096, 1 << 20, 5'000'001, 3};
  run_ranks(4, [&](RankContext& context) {
    auto link = make_link(context);
    EXPECT_EQ(link->rank(), context.rank());
    EXPECT_EQ(link->size(), 4);
    std::vector<PeerLink::Transfer> sends;
    for (int to = 0; to < 4; ++to) {
      if (to == context.rank()) continue;
      for (std::size_t i = 0; i < sizes.size(); ++i) {
        auto bytes = pattern(sizes[i], context.rank() * 100 + to * 10 + static_cast<int>(i));
        sends.push_back(link->send(to, kTag, *bytes, bytes, "a message"));
      }
    }
    for (int from = 3; from >= 0; --from) {
      if (from == context.rank()) continue;
      for (std::size_t i = 0; i < sizes.size(); ++i) {
        EXPECT_EQ(receive(*link, from, kTag, sizes[i]),
                  *pattern(sizes[i], from * 100 + context.rank() * 10 + static_cast<int>(i)));
      }
    }
    for (auto& one : sends) one.wait();
    EXPECT_FALSE(link->is_broken());
    meet(context, "end");
  });
}

TEST(PeerLink, ThreadsTalkBesideEachOtherUnderTagsOfTheirOwn) {
  run_ranks(2, [&](RankContext& context) {
    auto link = make_link(context);
    const int other = 1 - context.rank();
    std::vector<std::thread> threads;
    for (std::uint32_t tag = 0; tag < 4; ++tag) {
      threads.emplace_back([&, tag] {
        for (int turn = 0; turn < 100; ++turn) {
          const int seed = static_cast<int>(tag) * 1000 + turn;
          auto bytes = pattern(1000, seed + context.rank());
          auto sent = link->send(other, tag, *bytes, bytes, "a turn");
          EXPECT_EQ(receive(*link, other, tag, 1000), *pattern(1000, seed + other));
          sent.wait();
        }
      });
    }
    for (auto& thread : threads) thread.join();
    meet(context, "end");
  });
}

TEST(PeerLink, ServesConcurrentClients) {
  constexpr std::uint32_t kRequest = 1;
  constexpr std::uint32_t kAnswer = 2;
  run_ranks(4, [&](RankContext& context) {
    auto link = make_link(context);
    std::atomic<int> served{0};
    PeerLink* server = link.get();
    link->serve(kRequest, 8, [&, server](int rank, const Bytes& bytes) {
      ++served;
      auto answer = std::make_shared<Bytes>(bytes);
      for (auto& byte : *answer) ++byte;
      server->send(rank, kAnswer, *answer, answer, "an answer");  // left behind: nobody waits for a slow client
    });
    expect_error(ErrorKind::kState, "serves once", [&] { link->serve(kRequest, 8, [](int, const Bytes&) {}); });
    for (int turn = 0; turn < 50; ++turn) {
      for (int step = 1; step < 4; ++step) {
        const int to = (context.rank() + step) % 4;
        auto request = pattern(8, turn + to);
        auto answer = std::make_shared<Bytes>(8);
        auto arriving = link->receive(to, kAnswer, *answer, answer, "an answer");
        send(*link, to, kRequest, request);
        arriving.wait();
        for (auto& byte : *request) ++byte;
        EXPECT_EQ(*answer, *request);
      }
    }
    meet(context, "served");
    EXPECT_EQ(served, 150);
    link->stop_serving();
    EXPECT_FALSE(link->is_broken()) << link->broken_reason();
    meet(context, "end");
  });
}

TEST(PeerLink, DeadlineBreaksTheLinkOnAllRanksWithOneReason) {
  run_ranks(3, [&](RankContext& context) {
    auto link = make_link(context, context.rank() == 0 ? milliseconds(300) : milliseconds(20'000));
    const std::string reason = "rank 0 waited 300 ms: receiving an answer from rank 2";
    const auto start = steady_clock::now();
    if (context.rank() == 0) {
      auto bytes = std::make_shared<Bytes>(10);
      expect_error(ErrorKind::kDeadline, reason, [&] { link->receive(2, kTag, *bytes, bytes, "an answer").wait(); });
    } else if (context.rank() == 1) {
      expect_error(ErrorKind::kDeadline, "receiving a message from rank 2: " + reason,
                   [&] { receive(*link, 2, kTag, 10); });
    } else {
      while (!link->is_broken()) std::this_thread::sleep_for(milliseconds(1));  // waits for nothing
      EXPECT_EQ(link->broken_reason(), reason);
    }
    EXPECT_LT(steady_clock::now() - start, seconds(2));
    expect_error(ErrorKind::kDeadline,
                 "sending a message to rank " + std::to_string((context.rank() + 1) % 3) + ": " + reason,
                 [&] { send(*link, (context.rank() + 1) % 3, kTag, pattern(5, 0)); });
    expect_error(ErrorKind::kDeadline, "copying: " + reason, [&] { link->throw_if_broken("copying"); });
    // A new one works.
    link = make_link(context);
    const int next = (context.rank() + 1) % 3;
    auto bytes = pattern(100, context.rank());
    auto sent = link->send(next, kTag, *bytes, bytes, "a message");
    EXPECT_EQ(receive(*link, (context.rank() + 2) % 3, kTag, 100), *pattern(100, (context.rank() + 2) % 3));
    sent.wait();
    meet(context, "end");
  });
}

TEST(PeerLink, GivingUpAndBreakingOffEndAllWaits) {
  for (const bool gives_up : {true, false}) {
    run_ranks(3, [&](RankContext& context) {
      auto link = make_link(context);
      if (context.rank() == 1) {
        if (gives_up) {
          int asked = 0;
          auto bytes = std::make_shared<Bytes>(10);
          auto transfer = link->receive(0, kTag, *bytes, bytes, "a piece");
          expect_error(ErrorKind::kCancelled, "enough",
                       [&] { transfer.wait([&] { DCP_CHECK(++asked < 5, kCancelled, "enough"); }); });
          EXPECT_EQ(asked, 5);
          EXPECT_EQ(link->broken_reason(), "rank 1 gave up receiving a piece from rank 0: enough");
        } else {
          link->break_off("the job is over");
        }
      }
      expect_error(gives_up ? ErrorKind::kCancelled : ErrorKind::kComm,
                   gives_up ? "from rank 0: enough" : ": the job is over",
                   [&] { receive(*link, (context.rank() + 1) % 3, 50, 10); });
      meet(context, "end");
    });
  }
}

TEST(PeerLink, WaitThatAsksReturnsWhatArrives) {
  run_ranks(2, [&](RankContext& context) {
    auto link = make_link(context);
    if (context.rank() == 0) {
      std::this_thread::sleep_for(milliseconds(60));
      for (int turn = 0; turn < 200; ++turn) send(*link, 1, kTag, pattern(5000, turn));
    } else {
      std::atomic<int> asked{0};
      for (int turn = 0; turn < 200; ++turn) {
        auto bytes = std::make_shared<Bytes>(5000);
        link->receive(0, kTag, *bytes, bytes, "a piece").wait([&] { ++asked; });
        EXPECT_EQ(*bytes, *pattern(5000, turn));
      }
      EXPECT_GT(asked, 3);
    }
    meet(context, "end");
  });
}

TEST(PeerLink, RankThatLeavesDoesNotDisturbTheOthers) {
  run_ranks(3, [&](RankContext& context) {
    auto link = make_link(context);
    if (context.rank() == 2) {
      link.reset();
      meet(context, "left");
      meet(context, "end");
      return;
    }
    link->serve(9, 4, [](int, const Bytes&) {});
    meet(context, "left");
    std::this_thread::sleep_for(milliseconds(100));
    const int other = 1 - context.rank();
    expect_error(ErrorKind::kComm, "receiving a message from rank 2: rank 2 has left",
                 [&] { receive(*link, 2, kTag, 4); });
    auto bytes = pattern(3000, context.rank());
    auto sent = link->send(other, kTag, *bytes, bytes, "a message");
    EXPECT_EQ(receive(*link, other, kTag, 3000), *pattern(3000, other));
    sent.wait();
    send(*link, other, 9, pattern(4, 0));
    EXPECT_FALSE(link->is_broken()) << link->broken_reason();
    meet(context, "end");
  });
}

TEST(PeerLink, WhatAHandlerThrowsIsTheReasonOnAllRanks) {
  run_ranks(3, [&](RankContext& context) {
    auto link = make_link(context);
    if (context.rank() == 0) {
      link->serve(1, 4, [](int, const Bytes&) { DCP_THROW(kCorruptData, "a strange request"); });
      while (!link->is_broken()) std::this_thread::sleep_for(milliseconds(1));
    } else if (context.rank() == 1) {
      send(*link, 0, 1, pattern(4, 0));
    }
    expect_error(ErrorKind::kCorruptData, "rank 0, serving rank 1: a strange request",
                 [&] { receive(*link, context.rank() == 2 ? 1 : 2, kTag, 4); });
    meet(context, "end");
  });
}

TEST(PeerLink, TransferLeftBehindKeepsItsMemoryAndItsDeadline) {
  run_ranks(2, [&](RankContext& context) {
    auto link = make_link(context, milliseconds(1000));
    if (context.rank() == 0) {
      auto bytes = pattern(2'000'000, 1);
      const std::weak_ptr<Bytes> watched = bytes;
      link->send(1, kTag, *bytes, bytes, "a gift");
      bytes.reset();
      EXPECT_FALSE(watched.expired());
      meet(context, "sent");
      meet(context, "taken");
      const auto until = steady_clock::now() + seconds(5);
      while (!watched.expired() && steady_clock::now() < until) std::this_thread::sleep_for(milliseconds(1));
      EXPECT_TRUE(watched.expired());
      EXPECT_FALSE(link->is_broken());
      bytes = pattern(10, 0);
      link->send(1, kTag, *bytes, bytes, "what nobody takes");
    } else {
      meet(context, "sent");
      EXPECT_EQ(receive(*link, 0, kTag, 2'000'000), *pattern(2'000'000, 1));
      meet(context, "taken");
    }
    const auto until = steady_clock::now() + seconds(5);
    while (!link->is_broken() && steady_clock::now() < until) std::this_thread::sleep_for(milliseconds(1));
    EXPECT_EQ(link->broken_reason(), "rank 0 waited 1000 ms: sending what nobody takes to rank 1");
    meet(context, "end");
  });
}

TEST(PeerLink, RanksThatDoNotComeAreNamed) {
  run_ranks(4, [&](RankContext& context) {
    if (context.rank() % 2 == 0) {
      expect_error(ErrorKind::kDeadline, "making link 'test': ranks 1, 3 did not come within 400 ms",
                   [&] { make_link(context, milliseconds(400)); });
    }
    meet(context, "end");
  });
}

TEST(PeerLink, RankThatCannotMakeItsPartEndsTheOthersAtOnce) {
  run_ranks(3, [&](RankContext& context) {
    const auto start = steady_clock::now();
    PeerLinkOptions options;
    options.store = context.store();
    options.group_factory = gloo_group_factory({.hostname = "127.0.0.1", .interface = ""});
    if (context.rank() == 1) {
      options.group_factory = [](const auto&, int, int, milliseconds) -> c10::intrusive_ptr<c10d::ProcessGroup> {
        DCP_THROW(kUnsupported, "no groups here");
      };
    }
    expect_error(context.rank() == 1 ? ErrorKind::kUnsupported : ErrorKind::kComm, "no groups here",
                 [&] { PeerLink::create(context.unconnected_group(), options); });
    EXPECT_LT(steady_clock::now() - start, seconds(5));
    meet(context, "end");
  });
}

TEST(PeerLink, WrongArgumentsAreRefused) {
  expect_error(ErrorKind::kInvalidArgument, "no group", [] { PeerLink::create({}, {}); });
  run_ranks(2, [&](RankContext& context) {
    auto link = make_link(context);
    const int other = 1 - context.rank();
    Bytes bytes(4);
    expect_error(ErrorKind::kInvalidArgument, "there are no bytes", [&] { link->send(other, 1, {}, nullptr, "x"); });
    expect_error(ErrorKind::kInvalidArgument, "this is rank", [&] { link->send(2, 1, bytes, nullptr, "x"); });
    expect_error(ErrorKind::kInvalidArgument, "this is rank", [&] { link->send(-1, 1, bytes, nullptr, "x"); });
    expect_error(ErrorKind::kInvalidArgument, "this is rank",
                 [&] { link->receive(context.rank(), 1, bytes, nullptr, "x"); });
    expect_error(ErrorKind::kInvalidArgument, "tag 2000000000",
                 [&] { link->receive(other, 2'000'000'000, bytes, nullptr, "x"); });
    expect_error(ErrorKind::kInvalidArgument, "0 bytes", [&] { link->serve(1, 0, [](int, const Bytes&) {}); });
    EXPECT_FALSE(link->is_broken());
    meet(context, "end");
  });
}

TEST(PeerLink, LinkOfOneRank) {
  run_ranks(1, [&](RankContext& context) {
    auto link = make_link(context);
    link->serve(1, 4, [](int, const Bytes&) {});
    expect_error(ErrorKind::kInvalidArgument, "this is rank 0 of 1", [&] { send(*link, 0, 1, pattern(4, 0)); });
    link->break_off("over");
    EXPECT_TRUE(link->is_broken());
  });
}

TEST(PeerLink, GoesWithItsGroup) {
  run_ranks(2, [&](RankContext& context) {
    PeerLinkOptions options;
    options.store = context.store();
    c10::weak_intrusive_ptr<c10d::ProcessGroup> made{c10::intrusive_ptr<c10d::ProcessGroup>()};
    options.group_factory = [&, make = gloo_group_factory({.hostname = "127.0.0.1", .interface = ""})](
                                const auto& store, int rank, int size, milliseconds timeout) {
      auto group = make(store, rank, size, timeout);
      made = c10::weak_intrusive_ptr<c10d::ProcessGroup>(group);
      return group;
    };
    auto link = PeerLink::create(context.unconnected_group(), options);
    EXPECT_FALSE(made.expired());
    link.reset();
    EXPECT_TRUE(made.expired());
    meet(context, "end");
  });
}

TEST(PeerLink, DestroyedWhileAnotherThreadWaits) {
  run_ranks(2, [&](RankContext& context) {
    auto link = make_link(context);
    auto bytes = std::make_shared<Bytes>(4);
    auto transfer = link->receive(1 - context.rank(), kTag, *bytes, bytes, "a message");
    std::thread waiting([&] {
      try {
        transfer.wait();
        ADD_FAILURE() << "nothing was sent";
      } catch (const Error& error) {
        const std::string text = error.what_without_backtrace();
        EXPECT_TRUE(text.find("the link was closed") != std::string::npos || text.find("has left") != std::string::npos)
            << text;
      }
    });
    std::this_thread::sleep_for(milliseconds(20));
    link.reset();
    waiting.join();
    meet(context, "end");
  });
}

}  // namespace
}  // namespace dcp::test

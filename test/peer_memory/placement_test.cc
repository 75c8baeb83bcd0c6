#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "test/support/expect_error.h"
#include "torch_dcp/base/error.h"
#include "torch_dcp/peer_memory/peer_protocol_internal.h"
#include "torch_dcp/peer_memory/placement_internal.h"

namespace dcp::peer {
namespace {

using test::expect_error;

/// Ranks with a vault each, so many to a host.
std::vector<MemberPlace> ranks_on_hosts(int count, int ranks_per_host) {
  std::vector<MemberPlace> places;
  for (int rank = 0; rank < count; ++rank) {
    places.push_back({"vault " + std::to_string(rank), "host " + std::to_string(rank / ranks_per_host)});
  }
  return places;
}

const MemberPlace& at(const std::vector<MemberPlace>& places, int rank) {
  return places[static_cast<std::size_t>(rank)];
}

/// Every rank has `copies` holders, in as many vaults, none its own.
void expect_apart(const std::vector<MemberPlace>& places, const std::vector<std::vector<int>>& holders, int copies) {
  ASSERT_EQ(holders.size(), places.size());
  for (std::size_t rank = 0; rank < places.size(); ++rank) {
    EXPECT_EQ(holders[rank].size(), static_cast<std::size_t>(copies)) << rank;
    std::set<std::string> vaults = {places[rank].vault};
    for (const int holder : holders[rank]) {
      ASSERT_TRUE(holder >= 0 && holder < static_cast<int>(places.size())) << rank;
      EXPECT_TRUE(vaults.insert(at(places, holder).vault).second) << rank << " has two copies in one memory";
    }
  }
}

TEST(Placement, CopiesLieInOtherMemoriesInBalance) {
  for (int count = 2; count < 10; ++count) {
    for (int copies = 1; copies < count; ++copies) {
      SCOPED_TRACE(std::to_string(count) + " ranks, " + std::to_string(copies) + " copies");
      const std::vector<MemberPlace> places = ranks_on_hosts(count, 1);
      const auto holders = place_copies(places, copies);
      expect_apart(places, holders, copies);
      std::vector<int> held(places.size(), 0);
      for (const std::vector<int>& of_rank : holders) {
        for (const int holder : of_rank) ++held[static_cast<std::size_t>(holder)];
      }
      const auto [least, most] = std::minmax_element(held.begin(), held.end());
      EXPECT_LE(*most - *least, 1);
      EXPECT_EQ(place_copies(places, copies), holders) << "another answer to the same question";
    }
  }
}

TEST(Placement, NoCopyLiesOnTheOwnHostIfThereAreOthers) {
  for (const int ranks_per_host : {1, 2, 3}) {
    for (const int copies : {1, 2, 3}) {
      SCOPED_TRACE(std::to_string(ranks_per_host) + " to a host, " + std::to_string(copies) + " copies");
      const std::vector<MemberPlace> places = ranks_on_hosts(4 * ranks_per_host, ranks_per_host);
      const auto holders = place_copies(places, copies);
      expect_apart(places, holders, copies);
      for (std::size_t rank = 0; rank < places.size(); ++rank) {
        std::set<std::string> hosts = {places[rank].host};
        // Four hosts: up to three copies lie on one each.
        for (const int holder : holders[rank]) EXPECT_TRUE(hosts.insert(at(places, holder).host).second) << rank;
      }
    }
  }
  // Two hosts: both copies on the other, rather than one on the own.
  const std::vector<MemberPlace> places = ranks_on_hosts(4, 2);
  const auto holders = place_copies(places, 2);
  for (std::size_t rank = 0; rank < places.size(); ++rank) {
    for (const int holder : holders[rank]) EXPECT_NE(at(places, holder).host, places[rank].host) << rank;
  }
}

TEST(Placement, OneHostIsBetterThanNoCopy) {
  const std::vector<MemberPlace> places = ranks_on_hosts(3, 3);
  expect_apart(places, place_copies(places, 2), 2);
}

TEST(Placement, RanksThatShareAMemoryHoldNothingForEachOther) {
  const std::vector<MemberPlace> places = {{"a", "x"}, {"a", "x"}, {"b", "y"}, {"b", "y"}};
  expect_apart(places, place_copies(places, 1), 1);
  expect_error(ErrorKind::kInvalidArgument, "there are 1", [&] { place_copies(places, 2); });
}

TEST(Placement, TooManyCopiesAreRefusedInNumbers) {
  for (const auto& holders : place_copies(ranks_on_hosts(3, 1), 0)) EXPECT_TRUE(holders.empty());
  expect_error(ErrorKind::kInvalidArgument, "2 copies of rank 0's items need as many memories beside its own",
               [] { place_copies(ranks_on_hosts(2, 1), 2); });
  expect_error(ErrorKind::kInvalidArgument, "there are 0", [] { place_copies(ranks_on_hosts(1, 1), 1); });
  expect_error(ErrorKind::kInvalidArgument, "-1 copies", [] { place_copies(ranks_on_hosts(2, 1), -1); });
}

Request some_request(Verb verb) {
  return {.verb = verb,
          .call = kCalls - 1,
          .generation = 0x0123456789abcdefULL,
          .offset = 0xfedcba9876543210ULL,
          .byte_count = kPieceBytes,
          .name = "__3_0.distcp",
          .note = std::string("a\0note", 6)};
}

TEST(PeerProtocol, RequestsComeBack) {
  for (const Verb verb : {Verb::kPutBegin, Verb::kPutPiece, Verb::kPutSeal, Verb::kPutDrop, Verb::kRead}) {
    for (const std::size_t length : {std::size_t{0}, std::size_t{12}, kMostNameBytes}) {
      Request request = some_request(verb);
      request.name.assign(length, 'n');
      request.note.assign(length, '\xff');
      const Bytes head = encode_head(request);
      EXPECT_EQ(head.size(), kHeadBytes);
      const Request decoded = decode_request(head);
      EXPECT_EQ(decoded.verb, verb);
      EXPECT_EQ(decoded.call, request.call);
      EXPECT_EQ(decoded.generation, request.generation);
      EXPECT_EQ(decoded.offset, request.offset);
      EXPECT_EQ(decoded.byte_count, request.byte_count);
      EXPECT_EQ(decoded.name, request.name);
      EXPECT_EQ(decoded.note, request.note);
    }
  }
}

TEST(PeerProtocol, AnswersComeBackAndLongTextsAreCut) {
  for (int kind = 0; kind <= static_cast<int>(ErrorKind::kInternal); ++kind) {
    const Answer answer = {
        .is_good = kind % 2 == 0, .kind = static_cast<ErrorKind>(kind), .text = "why", .size = std::uint64_t{1} << 63};
    const Bytes head = encode_head(answer);
    EXPECT_EQ(head.size(), kHeadBytes);
    const Answer decoded = decode_answer(head);
    EXPECT_EQ(decoded.is_good, answer.is_good);
    EXPECT_EQ(decoded.kind, answer.kind);
    EXPECT_EQ(decoded.text, answer.text);
    EXPECT_EQ(decoded.size, answer.size);
  }
  const std::string text(10 * kHeadBytes, 't');
  const Answer cut = decode_answer(encode_head(Answer{.is_good = false, .text = text}));
  EXPECT_GT(cut.text.size(), kHeadBytes / 2);
  EXPECT_TRUE(text.starts_with(cut.text));
}

TEST(PeerProtocol, NamesAndNotesThatDoNotFitAreRefused) {
  Request request = some_request(Verb::kPutBegin);
  request.name.assign(kMostNameBytes + 1, 'n');
  expect_error(ErrorKind::kInvalidArgument, "a file name of 256 bytes", [&] { encode_head(request); });
  request = some_request(Verb::kPutSeal);
  request.note.assign(kMostNoteBytes + 1, 'n');
  expect_error(ErrorKind::kInvalidArgument, "a note of 256 bytes", [&] { encode_head(request); });
}

/// Decodes what a peer may have sent: what comes out is within bounds, or it is refused. \returns Whether it came out.
bool is_taken(ByteSpan head, bool is_request) {
  try {
    if (is_request) {
      const Request request = decode_request(head);
      EXPECT_LE(static_cast<int>(request.verb), static_cast<int>(Verb::kRead));
      EXPECT_LT(request.call, kCalls);
      EXPECT_LE(request.byte_count, kPieceBytes);
      EXPECT_LE(request.name.size(), kMostNameBytes);
      EXPECT_LE(request.note.size(), kMostNoteBytes);
    } else {
      const Answer answer = decode_answer(head);
      EXPECT_LE(static_cast<int>(answer.kind), static_cast<int>(ErrorKind::kInternal));
      EXPECT_LE(answer.text.size(), kHeadBytes);
    }
    return true;
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kCorruptData) << error.what_without_backtrace();
    return false;
  }
}

TEST(PeerProtocol, ChangedHeadsAreRefusedOrWithinBounds) {
  for (const bool is_request : {true, false}) {
    const Bytes good = is_request ? encode_head(some_request(Verb::kPutPiece))
                                  : encode_head(Answer{.is_good = false, .kind = ErrorKind::kIo, .text = "why"});
    int refused = 0;
    for (std::size_t position = 0; position < good.size(); ++position) {
      Bytes changed = good;
      for (int change = 1; change < 256; ++change) {
        changed[position] = static_cast<std::uint8_t>(good[position] ^ change);
        if (!is_taken(changed, is_request)) ++refused;
      }
    }
    EXPECT_GT(refused, 1000) << "of lengths alone there are more that cannot be";
    // The padding after what was written is not looked at.
    EXPECT_TRUE(is_taken(good, is_request));
    EXPECT_FALSE(is_taken(ByteSpan(good).first(8), is_request));
    EXPECT_FALSE(is_taken({}, is_request));
  }
}

TEST(PeerProtocol, NoiseIsRefusedOrWithinBounds) {
  std::mt19937 random(5);
  Bytes noise(kHeadBytes);
  for (int time = 0; time < 2000; ++time) {
    for (std::uint8_t& byte : noise) byte = static_cast<std::uint8_t>(random());
    is_taken(noise, true);
    is_taken(noise, false);
  }
}

}  // namespace
}  // namespace dcp::peer

#include "torch_dcp/comm/codec.h"

#include <gtest/gtest.h>

#include <limits>

#include "torch_dcp/comm/envelope_internal.h"
#include "torch_dcp/comm/verdict_internal.h"

namespace dcp {
namespace {

template <typename T>
void expect_round_trip(const T& value) {
  const Bytes bytes = to_bytes(value);
  EXPECT_EQ(from_bytes<T>(bytes), value);
  Bytes longer = bytes;
  longer.push_back(0);
  EXPECT_THROW(from_bytes<T>(longer), Error);
  for (std::size_t cut = 0; cut < bytes.size(); ++cut) {
    EXPECT_THROW(from_bytes<T>(Bytes(bytes.begin(), bytes.begin() + cut)), Error) << "cut to " << cut;
  }
}

TEST(Codec, RoundTrips) {
  expect_round_trip(true);
  expect_round_trip(std::int64_t{-5});
  expect_round_trip(std::numeric_limits<std::uint64_t>::max());
  expect_round_trip(-3);
  expect_round_trip(0.1);
  expect_round_trip(std::string("x\0y", 3));
  expect_round_trip(Bytes{0, 255});
  expect_round_trip(std::vector<bool>{true, false});
  expect_round_trip(std::vector<std::pair<std::string, std::optional<double>>>{{"a", 1.5}, {"", std::nullopt}});
  expect_round_trip(std::optional<std::vector<Bytes>>({{1}, {}}));
  expect_round_trip(std::monostate());
}

TEST(Codec, ChecksRangeAndCounts) {
  EXPECT_THROW(from_bytes<std::int32_t>(to_bytes(std::int64_t{1} << 40)), Error);
  EXPECT_THROW(from_bytes<std::vector<std::string>>(to_bytes(std::uint64_t{1} << 60)), Error);
}

TEST(Envelope, FailuresRoundTripAndCancelledOnesGiveWay) {
  const RankFailure disk{2, ErrorKind::kIo, "no space", "writer.cc:7"};
  const RankFailure key{0, ErrorKind::kKey, "", ""};
  const RankFailure stopped{1, ErrorKind::kCancelled, "stopped", ""};
  const auto collect = [](const std::vector<std::vector<RankFailure>>& by_rank) {
    std::vector<Envelope> envelopes(1);  // one rank that succeeded
    for (const auto& failures : by_rank) envelopes.push_back(failure_envelope(failures));
    return collect_failures(envelopes);
  };
  EXPECT_EQ(collect({{disk}, {stopped}, {key}}), (std::vector<RankFailure>{key, disk}));
  EXPECT_EQ(collect({{stopped}}), std::vector<RankFailure>{stopped});
  EXPECT_EQ(collect({}), std::vector<RankFailure>{});
}

Decision judged(const std::vector<RankSign>& signs) {
  return judge(signs, {0, 4, "write", Phase::kWaiting}, std::chrono::milliseconds(1000),
               std::chrono::milliseconds(100));
}

RankSign saw(int rank, Observed observed, ErrorKind kind = ErrorKind::kComm, Phase phase = Phase::kWaiting) {
  RankSign sign;
  sign.report = Report{{0, 4, "write", phase}, observed, {rank, kind, "text of " + std::to_string(rank), ""}};
  return sign;
}

std::vector<std::pair<int, ErrorKind>> names(const Decision& decision) {
  std::vector<std::pair<int, ErrorKind>> result;
  for (const RankFailure& failure : decision.failures) result.emplace_back(failure.rank, failure.kind);
  return result;
}

using Names = std::vector<std::pair<int, ErrorKind>>;

TEST(Verdict, NamesThoseThatFailedBeforeThoseThatSaw) {
  const RankSign silent;
  RankSign left;
  left.left = true;
  const RankSign lost0 = saw(0, Observed::kLost);
  const RankSign followed1 = saw(1, Observed::kFollowed);
  const RankSign timeout0 = saw(0, Observed::kTimeout, ErrorKind::kDeadline);
  const RankSign busy2 = saw(2, Observed::kNothing, ErrorKind::kInternal, Phase::kLocal);

  EXPECT_EQ(names(judged({lost0, followed1, silent})), (Names{{2, ErrorKind::kComm}}));
  EXPECT_EQ(names(judged({lost0, followed1, left})), (Names{{2, ErrorKind::kComm}}));
  EXPECT_EQ(names(judged({lost0, silent, busy2})), (Names{{1, ErrorKind::kComm}}));
  EXPECT_EQ(names(judged({timeout0, followed1, busy2})), (Names{{2, ErrorKind::kDeadline}}));
  EXPECT_EQ(names(judged({timeout0, silent, busy2})), (Names{{1, ErrorKind::kDeadline}, {2, ErrorKind::kDeadline}}));
  EXPECT_EQ(names(judged({lost0, saw(1, Observed::kOwn, ErrorKind::kIo), busy2})), (Names{{1, ErrorKind::kIo}}));
  EXPECT_EQ(names(judged({lost0, followed1})), (Names{{0, ErrorKind::kComm}}));
  EXPECT_EQ(names(judged({followed1})), (Names{{-1, ErrorKind::kComm}}));
  EXPECT_EQ(judged({lost0, silent}).label, "write");
}

// Rank 0 waited in vain for the last word of step 3, which was complete; nobody is late in step 4 for that.
TEST(Verdict, AnEarlierStepsTimeOutMakesNobodyLate) {
  RankSign timeout0 = saw(0, Observed::kTimeout, ErrorKind::kDeadline);
  timeout0.report->position = {0, 3, "plan", Phase::kWaiting};
  timeout0.report->early = RankFailure{0, ErrorKind::kIo, "of step 3", ""};
  const RankSign between1 = saw(1, Observed::kNothing, ErrorKind::kInternal, Phase::kBetweenSteps);
  EXPECT_EQ(names(judged({timeout0, between1})), (Names{{0, ErrorKind::kDeadline}}));
  EXPECT_EQ(judged({timeout0, between1}).failures.at(0).message, "text of 0");
}

TEST(Verdict, NamesFailuresOfWhichWordWasLost) {
  const RankSign silent;
  const RankSign busy2 = saw(2, Observed::kNothing, ErrorKind::kInternal, Phase::kLocal);
  RankSign early0 = saw(0, Observed::kTimeout, ErrorKind::kDeadline);
  early0.report->early = RankFailure{0, ErrorKind::kIo, "no space", ""};
  EXPECT_EQ(names(judged({early0, saw(1, Observed::kFollowed), busy2})),
            (Names{{0, ErrorKind::kIo}, {2, ErrorKind::kDeadline}}));
  EXPECT_EQ(names(judged({early0, silent, busy2})),
            (Names{{0, ErrorKind::kIo}, {1, ErrorKind::kDeadline}, {2, ErrorKind::kDeadline}}));
  early0.report->observed = Observed::kLost;
  EXPECT_EQ(names(judged({early0, silent, busy2})), (Names{{0, ErrorKind::kIo}, {1, ErrorKind::kComm}}));
  const std::string late = judged({silent, saw(1, Observed::kTimeout, ErrorKind::kDeadline)}).failures.at(0).message;
  EXPECT_NE(late.find("step 'write' within its deadline of 1000 ms"), std::string::npos) << late;
}

TEST(Verdict, RoundTrips) {
  const Decision decision{false, "write", {{1, ErrorKind::kIo, "a", "b"}, {2, ErrorKind::kKey, "", ""}}};
  const Decision read = decode_decision(encode_decision(decision));
  EXPECT_EQ(read.complete, decision.complete);
  EXPECT_EQ(read.label, decision.label);
  EXPECT_EQ(read.failures, decision.failures);

  Report report{{3, 9, "plan", Phase::kGlobal}, Observed::kTimeout, {1, ErrorKind::kDeadline, "late", "x:1"}};
  EXPECT_EQ(decode_report(encode_report(report)).early, std::nullopt);
  report.early = RankFailure{1, ErrorKind::kIo, "no space", "y:2"};
  const Report back = decode_report(encode_report(report));
  EXPECT_EQ(back.early, report.early);
  EXPECT_EQ(back.position.generation, 3);
  EXPECT_EQ(back.position.step, 9);
  EXPECT_EQ(back.position.label, "plan");
  EXPECT_EQ(back.position.phase, Phase::kGlobal);
  EXPECT_EQ(back.observed, Observed::kTimeout);
  EXPECT_EQ(back.failure, report.failure);
}

}  // namespace
}  // namespace dcp

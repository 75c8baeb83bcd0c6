#include "torch_dcp/base/error.h"

#include <gtest/gtest.h>

#include <functional>
#include <new>
#include <stdexcept>

namespace dcp {
namespace {

RankFailure failure_of(const std::function<void()>& thrower) {
  try {
    thrower();
  } catch (...) {
    return current_failure(3);
  }
  return {};
}

TEST(ErrorTest, IsCaughtAsC10ErrorWithKindMessageAndPlace) {
  try {
    DCP_THROW(kShape, "w: [", 2, "] is not [", 3, "]");
  } catch (const c10::Error& caught) {
    const auto& error = dynamic_cast<const Error&>(caught);
    EXPECT_EQ(error.kind(), ErrorKind::kShape);
    EXPECT_STREQ(error.what_without_backtrace(), "w: [2] is not [3]");
    EXPECT_NE(error.where().find("error_test.cc:"), std::string::npos);
    return;
  }
  FAIL() << "nothing was thrown";
}

TEST(ErrorTest, CheckThrowsOnlyWhenFalse) {
  EXPECT_NO_THROW(DCP_CHECK(1 + 1 == 2, kInternal, "arithmetic"));
  EXPECT_THROW(DCP_CHECK(1 + 1 == 3, kInternal, "arithmetic"), Error);
}

TEST(ErrorTest, AZeroByteEndsNoMessage) {
  const Error error(ErrorKind::kKey, std::string("no '\0' and \0\0 here", 18), "here");
  EXPECT_STREQ(error.what_without_backtrace(), "no '\\0' and \\0\\0 here");
}

TEST(ErrorTest, EveryKindHasAName) {
  for (int kind = 0; kind <= static_cast<int>(ErrorKind::kInternal); ++kind) {
    EXPECT_STRNE(error_kind_name(static_cast<ErrorKind>(kind)), "Unknown");
  }
}

TEST(CheckpointErrorTest, SortsFailuresByRankAndNamesThemAll) {
  const CheckpointError error(
      "write", {{2, ErrorKind::kIo, "disk full", "a.cc:1"}, {0, ErrorKind::kKey, "w is missing", "b.cc:2"}}, "here:1");
  ASSERT_EQ(error.failures().size(), 2u);
  EXPECT_EQ(error.failures()[0].rank, 0);
  EXPECT_EQ(error.failures()[1].rank, 2);
  EXPECT_EQ(error.kind(), ErrorKind::kKey);
  EXPECT_EQ(error.step(), "write");
  const std::string text = error.what();
  EXPECT_NE(text.find("rank 0: Key: w is missing"), std::string::npos) << text;
  EXPECT_NE(text.find("rank 2: Io: disk full"), std::string::npos) << text;
}

TEST(CurrentFailureTest, KeepsKindMessageAndContext) {
  const RankFailure failure = failure_of([] {
    try {
      DCP_THROW(kCorruptData, "bad magic");
    } catch (Error& error) {
      error.add_context("while reading x");
      throw;
    }
  });
  EXPECT_EQ(failure.rank, 3);
  EXPECT_EQ(failure.kind, ErrorKind::kCorruptData);
  EXPECT_NE(failure.message.find("bad magic"), std::string::npos);
  EXPECT_NE(failure.message.find("while reading x"), std::string::npos);
}

TEST(CurrentFailureTest, TakesWhateverIsThrown) {
  EXPECT_EQ(failure_of([] { throw std::runtime_error("plain"); }).message, "plain");
  EXPECT_EQ(failure_of([] { throw std::bad_alloc(); }).message, "out of memory");
  EXPECT_NE(failure_of([] { throw 42; }).message, "");
  EXPECT_EQ(failure_of([] { TORCH_CHECK(false, "from torch"); }).message, "from torch");
}

}  // namespace
}  // namespace dcp

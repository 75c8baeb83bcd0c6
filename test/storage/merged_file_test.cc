#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>

#include "test/support/expect_error.h"
#include "test/support/fault_injecting_file_system.h"
#include "torch_dcp/io/memory_file_system.h"
#include "torch_dcp/storage/merged_file_internal.h"

namespace dcp::test {
namespace {

class MergedFileTest : public ::testing::Test {
 protected:
  MergedFileTest() {
    for (std::size_t i = 0; i < bytes_.size(); ++i) bytes_[i] = static_cast<std::uint8_t>(i * 131 >> 3);
    const auto file = files_->create_file("f");
    file->append(bytes_);
    file->close();
  }

  MergedFile merged(const std::vector<ByteRange>& wanted, std::int64_t max_hole_bytes = 100) {
    files_->clear_trace();
    return MergedFile(std::shared_ptr<const RandomAccessFile>(files_->open_file("f")), wanted, max_hole_bytes);
  }

  void expect_read(const MergedFile& file, std::size_t begin, std::size_t count) {
    Bytes out(count, 0xab);
    file.read_at(begin, out);
    EXPECT_TRUE(std::equal(out.begin(), out.end(), bytes_.begin() + static_cast<std::ptrdiff_t>(begin)))
        << "bytes " << begin << " to " << begin + count;
  }

  std::vector<std::pair<std::uint64_t, std::uint64_t>> reads() const {
    std::vector<std::pair<std::uint64_t, std::uint64_t>> found;
    for (const FileEvent& event : files_->trace()) {
      if (event.op == FileOp::kRead) found.emplace_back(event.offset, event.bytes);
    }
    return found;
  }
  using Reads = std::vector<std::pair<std::uint64_t, std::uint64_t>>;

  Bytes bytes_ = Bytes(1'000'000);
  std::shared_ptr<FaultInjectingFileSystem> files_ =
      std::make_shared<FaultInjectingFileSystem>(make_memory_file_system());
};

TEST_F(MergedFileTest, RangesThatLieCloseAreReadAtOnce) {
  const MergedFile file = merged({{10, 20}, {130, 20}, {251, 20}, {600, 5}});
  for (const std::size_t begin : {10u, 130u, 251u, 600u}) expect_read(file, begin, 5);
  EXPECT_EQ(reads(), (Reads{{10, 140}, {251, 5}, {600, 5}})) << "a hole of 101 bytes is not read along";
}

TEST_F(MergedFileTest, OverlappingAndDoubledRangesCountOnce) {
  const MergedFile file = merged({{0, 100}, {0, 100}, {50, 10}, {90, 30}});
  expect_read(file, 0, 100);
  expect_read(file, 50, 10);
  expect_read(file, 90, 30);
  expect_read(file, 0, 100);
  EXPECT_EQ(reads(), (Reads{{0, 120}}));
}

TEST_F(MergedFileTest, WhatIsNotInASpanIsReadAsItComes) {
  const MergedFile file = merged({{100, 50}, {160, 50}});
  expect_read(file, 90, 20);
  expect_read(file, 200, 20);
  expect_read(file, 5000, 10);
  EXPECT_EQ(reads(), (Reads{{90, 20}, {200, 20}, {5000, 10}}));
}

TEST_F(MergedFileTest, ASpanEndsAtItsLimit) {
  constexpr std::int64_t kHalf = MergedFile::kMaxSpanBytes / 2;
  const MergedFile file = merged({{0, kHalf}, {kHalf, kHalf}, {2 * kHalf, 1}});
  expect_read(file, 1, 1);
  expect_read(file, 2 * kHalf, 1);
  EXPECT_EQ(reads(), (Reads{{0, 2 * kHalf}, {2 * kHalf, 1}}));
}

TEST_F(MergedFileTest, GoingBackReadsTheSpanAgain) {
  const MergedFile file = merged({{0, 10}, {20, 10}, {1000, 10}, {1020, 10}});
  for (const std::size_t begin : {20u, 1020u, 0u}) expect_read(file, begin, 10);
  EXPECT_EQ(reads(), (Reads{{0, 30}, {1000, 30}, {0, 30}}));
}

TEST_F(MergedFileTest, AReadThatFailedIsMadeAgain) {
  const MergedFile file = merged({{0, 10}, {20, 10}});
  files_->fail({.op = FileOp::kRead});
  expect_error(ErrorKind::kIo, "No space left", [&] { expect_read(file, 20, 10); });
  expect_read(file, 20, 10);
  expect_read(file, 0, 10);
}

TEST_F(MergedFileTest, AFileThatEndsBeforeARangeGivesWhatItHas) {
  const auto end = static_cast<std::int64_t>(bytes_.size());
  const MergedFile file = merged({{end - 50, 10}, {end - 20, 40}});
  expect_read(file, bytes_.size() - 50, 10);
  expect_error(ErrorKind::kCorruptData, "f", [&] {
    Bytes out(40);
    file.read_at(bytes_.size() - 20, out);
  });
}

TEST_F(MergedFileTest, WithoutHolesNothingIsMerged) {
  const MergedFile file = merged({{0, 10}, {10, 10}}, 0);
  expect_read(file, 0, 10);
  expect_read(file, 10, 10);
  EXPECT_EQ(reads(), (Reads{{0, 10}, {10, 10}}));
}

}  // namespace
}  // namespace dcp::test

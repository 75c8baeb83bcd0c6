#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "torch_dcp/plan/read_items.h"
#include "torch_dcp/tensor/layout.h"

// What is read of a tensor of rows that one number of ranks has saved and another loads.

namespace dcp {
namespace {

/// The rows of each rank, empty ones too.
std::vector<Box> rows_of(std::int64_t size, std::int64_t ranks) {
  std::vector<Box> boxes;
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    const IndexRun run = chunk_of(size, ranks, rank);
    boxes.push_back({{run.offset}, {run.length}});
  }
  return boxes;
}

struct Reading {
  std::int64_t stored_at;  ///< offset of the stored chunk
  std::int64_t skipped;    ///< rows of it
  std::int64_t put_at;     ///< within the destination
  std::int64_t length;
  friend bool operator==(const Reading&, const Reading&) = default;
};

/// What the rank `to_rank` of `to` ranks reads of what `from` ranks have saved.
std::vector<Reading> readings(std::int64_t size, std::int64_t from, std::int64_t to, std::int64_t to_rank) {
  const TensorStorageMetadata stored = {{}, {size}, rows_of(size, from)};
  const Box wanted = rows_of(size, to)[static_cast<std::size_t>(to_rank)];
  std::vector<Reading> found;
  for (const ReadItem& item : create_read_items("w", stored, {wanted})) {
    EXPECT_EQ(item.dest_index.fqn, "w");
    EXPECT_EQ(item.dest_index.offset, wanted.offsets);
    found.push_back({(*item.storage_index.offset)[0], item.storage_offsets[0], item.dest_offsets[0], item.lengths[0]});
  }
  return found;
}

TEST(ReshardPlan, FromEightRanksToFour) {
  using Readings = std::vector<Reading>;
  EXPECT_EQ(readings(16, 8, 4, 0), (Readings{{0, 0, 0, 2}, {2, 0, 2, 2}}));
  EXPECT_EQ(readings(16, 8, 4, 1), (Readings{{4, 0, 0, 2}, {6, 0, 2, 2}}));
  EXPECT_EQ(readings(16, 8, 4, 3), (Readings{{12, 0, 0, 2}, {14, 0, 2, 2}}));
}

TEST(ReshardPlan, FromFourRanksToThree) {
  using Readings = std::vector<Reading>;
  EXPECT_EQ(readings(12, 4, 3, 0), (Readings{{0, 0, 0, 3}, {3, 0, 3, 1}}));
  EXPECT_EQ(readings(12, 4, 3, 1), (Readings{{3, 1, 0, 2}, {6, 0, 2, 2}}));
  EXPECT_EQ(readings(12, 4, 3, 2), (Readings{{6, 2, 0, 1}, {9, 0, 1, 3}}));
}

TEST(ReshardPlan, EveryPairOfWorldSizesReadsEachRowOnce) {
  for (const std::int64_t size : {0, 1, 3, 7, 8, 13, 24}) {
    for (std::int64_t from = 1; from <= 8; ++from) {
      for (std::int64_t to = 1; to <= 8; ++to) {
        SCOPED_TRACE(std::to_string(size) + " rows, from " + std::to_string(from) + " to " + std::to_string(to));
        std::vector<int> times_read(static_cast<std::size_t>(size), 0);
        for (std::int64_t rank = 0; rank < to; ++rank) {
          const IndexRun mine = chunk_of(size, to, rank);
          std::size_t overlap_count = 0;
          for (const Box& chunk : rows_of(size, from)) {
            const std::int64_t begin = std::max(chunk.offsets[0], mine.offset);
            overlap_count += begin < std::min(chunk.offsets[0] + chunk.sizes[0], mine.offset + mine.length);
          }
          const std::vector<Reading> found = readings(size, from, to, rank);
          EXPECT_EQ(found.size(), overlap_count);
          for (const Reading& reading : found) {
            const std::int64_t first = reading.stored_at + reading.skipped;
            ASSERT_EQ(first, mine.offset + reading.put_at) << "a row goes to its own place";
            ASSERT_LE(reading.put_at + reading.length, mine.length);
            for (std::int64_t row = first; row < first + reading.length; ++row) {
              ++times_read.at(static_cast<std::size_t>(row));
            }
          }
        }
        EXPECT_TRUE(std::all_of(times_read.begin(), times_read.end(), [](int times) { return times == 1; }));
      }
    }
  }
}

}  // namespace
}  // namespace dcp

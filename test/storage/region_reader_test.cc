#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <utility>
#include <vector>

#include "torch_dcp/io/span_file.h"
#include "torch_dcp/storage/region_reader_internal.h"

namespace dcp::test {
namespace {

/// Counts what is asked of it.
class CountingFile final : public RandomAccessFile {
 public:
  explicit CountingFile(ByteSpan bytes) : file_(bytes) {}
  std::uint64_t size() const override { return file_.size(); }
  void read_at(std::uint64_t offset, MutableByteSpan out) const override {
    ++calls;
    bytes += out.size();
    file_.read_at(offset, out);
  }

  mutable std::uint64_t calls = 0;
  mutable std::uint64_t bytes = 0;

 private:
  SpanFile file_;
};

Bytes noise(std::size_t size) {
  std::mt19937 random(3);
  Bytes bytes(size);
  for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random());
  return bytes;
}

std::int64_t product(const std::vector<std::int64_t>& sizes) {
  std::int64_t result = 1;
  for (const std::int64_t size : sizes) result *= size;
  return result;
}

Bytes read(const RandomAccessFile& file, const FileRegion& region, std::int64_t max_hole_bytes = kMergeHoleBytes) {
  Bytes out(static_cast<std::size_t>(product(region.lengths) * region.element_bytes), 0xAB);
  read_region(file, region, out, max_hole_bytes);
  return out;
}

/// Element by element.
Bytes expected(const Bytes& bytes, const FileRegion& region) {
  Bytes out;
  std::vector<std::int64_t> place(region.sizes.size(), 0);
  for (std::int64_t i = 0; i < product(region.lengths); ++i) {
    std::int64_t rest = i;
    for (std::size_t d = region.sizes.size(); d-- > 0; rest /= region.lengths[d]) place[d] = rest % region.lengths[d];
    std::int64_t flat = 0;
    for (std::size_t d = 0; d < region.sizes.size(); ++d) flat = flat * region.sizes[d] + region.begin[d] + place[d];
    const auto begin = bytes.begin() + region.position + flat * region.element_bytes;
    out.insert(out.end(), begin, begin + region.element_bytes);
  }
  return out;
}

TEST(RegionReader, RandomRegionsAgreeWithReadingElementByElement) {
  const Bytes bytes = noise(40'000);
  const CountingFile file(bytes);
  std::mt19937 random(5);
  for (int round = 0; round < 500; ++round) {
    FileRegion region;
    region.element_bytes = std::int64_t{1} << (random() % 5);
    region.position = static_cast<std::int64_t>(random() % 100);
    const std::size_t ndim = random() % 5;
    for (std::size_t d = 0; d < ndim; ++d) {
      const std::int64_t size = 1 + random() % (ndim < 3 ? 40 : 6);
      const std::int64_t begin = random() % 3 == 0 ? 0 : static_cast<std::int64_t>(random()) % size;
      const std::int64_t length =
          random() % 3 == 0 ? size - begin : 1 + static_cast<std::int64_t>(random()) % (size - begin);
      region.sizes.push_back(size);
      region.begin.push_back(begin);
      region.lengths.push_back(length);
    }
    const std::int64_t max_hole_bytes = std::vector<std::int64_t>{0, 1, 100, 4096, 1 << 20}[random() % 5];
    ASSERT_EQ(read(file, region, max_hole_bytes), expected(bytes, region)) << "round " << round;
  }
}

TEST(RegionReader, AWholeArrayIsOneCall) {
  const Bytes bytes = noise(8 << 20);
  const CountingFile file(bytes);
  EXPECT_EQ(read(file, {0, 4, {2, 1 << 10, 1 << 10}, {0, 0, 0}, {2, 1 << 10, 1 << 10}}), bytes);
  EXPECT_EQ(file.calls, 1u);
}

TEST(RegionReader, RowsOfAnArrayAreOneCallWithoutOtherBytes) {
  const Bytes bytes = noise(1 << 20);
  const CountingFile file(bytes);
  read(file, {16, 4, {256, 1000}, {100, 0}, {7, 1000}});
  EXPECT_EQ(file.calls, 1u);
  EXPECT_EQ(file.bytes, 7u * 4000u);
}

TEST(RegionReader, LargeRunsCostFewOtherBytes) {
  const Bytes bytes = noise(1 << 20);
  for (const std::int64_t run : {1 << 10, 2 << 10, 4 << 10, 8 << 10, 100'000}) {
    for (const std::int64_t hole : {64, 1000, 4096, 10'000}) {
      const CountingFile file(bytes);
      const std::int64_t rows = (1 << 20) / (run + hole);
      const FileRegion region = {0, 1, {rows, run + hole}, {0, 0}, {rows, run}};
      ASSERT_EQ(read(file, region), expected(bytes, region));
      EXPECT_LE(static_cast<double>(file.bytes), 1.05 * static_cast<double>(rows * run)) << run << " " << hole;
      EXPECT_LE(file.calls, static_cast<std::uint64_t>(rows));
    }
  }
}

TEST(RegionReader, SmallRunsThatLieCloseTogetherAreReadAtOnce) {
  const Bytes bytes = noise(1 << 20);
  const CountingFile file(bytes);
  const FileRegion region = {0, 4, {1024, 256}, {0, 3}, {1024, 1}};
  EXPECT_EQ(read(file, region), expected(bytes, region));
  EXPECT_EQ(file.calls, 1u);
  const CountingFile far(bytes);
  const FileRegion far_region = {0, 4, {16, 1 << 14}, {0, 3}, {16, 1}};
  EXPECT_EQ(read(far, far_region), expected(bytes, far_region));
  EXPECT_EQ(far.calls, 16u);
  EXPECT_EQ(far.bytes, 64u);
}

TEST(RegionReader, TheStatedHoleDecidesWhatIsReadAlong) {
  const Bytes bytes = noise(1 << 20);
  const FileRegion region = {0, 1, {64, 16 << 10}, {0, 0}, {64, 200}};
  constexpr std::int64_t kHole = (16 << 10) - 200;
  for (const auto& [max_hole_bytes, calls] :
       std::vector<std::pair<std::int64_t, std::uint64_t>>{{0, 64}, {kHole - 1, 64}, {kHole, 1}, {1 << 20, 1}}) {
    const CountingFile file(bytes);
    EXPECT_EQ(read(file, region, max_hole_bytes), expected(bytes, region));
    EXPECT_EQ(file.calls, calls) << max_hole_bytes;
    EXPECT_EQ(file.bytes, calls == 1 ? 63u * (16u << 10) + 200u : 64u * 200u) << max_hole_bytes;
  }
  // Without any, also where a byte alone is between.
  const CountingFile file(bytes);
  EXPECT_EQ(read(file, {0, 1, {100, 101}, {0, 0}, {100, 100}}, 0).size(), 10'000u);
  EXPECT_EQ(file.bytes, 10'000u);
}

// The rule in `read_region`'s description, and the limits that follow from it.
TEST(RegionReader, WhatIsReadAlongIsAsStated) {
  const Bytes bytes = noise(1 << 20);
  constexpr std::int64_t kCount = 20;
  for (const std::int64_t most : {0, 64, 4096, 20'000}) {
    for (const std::int64_t run : {1, 15, 16, 17, 100, 1023, 1024, 1025, 5000, 20'000}) {
      for (const std::int64_t hole : {1, 32, 63, 64, 65, 640, 4096, 4097, 20'000, 20'001}) {
        const CountingFile file(bytes);
        const FileRegion region = {3, 1, {kCount, run + hole}, {0, 0}, {kCount, run}};
        if (3 + kCount * (run + hole) > std::int64_t{1} << 20) continue;
        const Bytes found = read(file, region, most);
        for (std::int64_t i = 0; i < kCount; ++i) {
          const auto wanted = bytes.begin() + 3 + i * (run + hole);
          ASSERT_TRUE(std::equal(wanted, wanted + run, found.begin() + i * run)) << run << " " << hole << " " << most;
        }
        const bool is_joined = hole <= most && (run < most / 4 || hole <= run / 32);
        EXPECT_EQ(file.bytes, static_cast<std::uint64_t>(kCount * run + (is_joined ? (kCount - 1) * hole : 0)))
            << run << " " << hole << " " << most;
        EXPECT_EQ(file.calls, is_joined ? 1u : static_cast<std::uint64_t>(kCount)) << run << " " << hole << " " << most;
      }
    }
  }
}

/// Bytes read for each wanted one where arrays of `rows` x `columns` floats, cut along their columns in `from` files,
/// are read in `to` parts.
double read_for_each_wanted(std::int64_t columns, std::int64_t from, std::int64_t to) {
  constexpr std::int64_t kRows = 256;
  const Bytes bytes(static_cast<std::size_t>(kRows * columns * 4));
  const CountingFile file(bytes);
  const auto part = [columns](std::int64_t count, std::int64_t number) {
    const std::int64_t each = (columns + count - 1) / count;
    return std::pair(std::min(columns, number * each), std::min(columns, (number + 1) * each));
  };
  std::int64_t wanted = 0;
  for (std::int64_t i = 0; i < from; ++i) {
    for (std::int64_t j = 0; j < to; ++j) {
      const auto [held_begin, held_end] = part(from, i);
      const auto [begin, end] = part(to, j);
      const std::int64_t first = std::max(held_begin, begin);
      const std::int64_t length = std::min(held_end, end) - first;
      if (length <= 0) continue;
      read(file, {0, 4, {kRows, held_end - held_begin}, {0, first - held_begin}, {kRows, length}});
      wanted += kRows * length * 4;
    }
  }
  return static_cast<double>(file.bytes) / static_cast<double>(wanted);
}

TEST(RegionReader, CutsAlongColumnsReadWhatTheOptionSays) {
  for (const auto& [columns, ratios] : std::vector<std::pair<std::int64_t, std::vector<double>>>{
           {1024, {1.5, 1.6, 1.0, 1.0, 8.0}}, {4096, {1.0, 1.5, 1.0, 1.0, 1.0}}, {16'384, {1.0, 1.0, 1.0, 1.0, 1.0}}}) {
    EXPECT_NEAR(read_for_each_wanted(columns, 4, 3), ratios[0], 0.05) << columns;
    EXPECT_NEAR(read_for_each_wanted(columns, 8, 6), ratios[1], 0.05) << columns;
    EXPECT_NEAR(read_for_each_wanted(columns, 8, 2), ratios[2], 0.05) << columns;
    EXPECT_NEAR(read_for_each_wanted(columns, 1, 2), ratios[3], 0.05) << columns;
    EXPECT_NEAR(read_for_each_wanted(columns, 1, 8), ratios[4], 0.05) << columns;
  }
}

TEST(RegionReader, WhatIsReadAtOnceIsBounded) {
  const Bytes bytes = noise(9 << 20);
  const CountingFile file(bytes);
  const FileRegion region = {0, 1, {9 << 10, 1 << 10}, {0, 0}, {9 << 10, 100}};
  EXPECT_EQ(read(file, region), expected(bytes, region));
  EXPECT_EQ(file.calls, 3u);  // Of 4 MiB at most.
}

}  // namespace
}  // namespace dcp::test

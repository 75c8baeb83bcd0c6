#include <gtest/gtest.h>

#include <atomic>
#include <random>
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

TEST(RegionReader, WhatIsReadAtOnceIsBounded) {
  const Bytes bytes = noise(9 << 20);
  const CountingFile file(bytes);
  const FileRegion region = {0, 1, {9 << 10, 1 << 10}, {0, 0}, {9 << 10, 100}};
  EXPECT_EQ(read(file, region), expected(bytes, region));
  EXPECT_EQ(file.calls, 3u);  // Of 4 MiB at most.
}

}  // namespace
}  // namespace dcp::test

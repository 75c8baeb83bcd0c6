#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "test/plan/plan_support.h"
#include "torch_dcp/plan/box_sweep_internal.h"
#include "torch_dcp/plan/read_items.h"
#include "torch_dcp/plan/validate.h"
#include "torch_dcp/plan/validate_internal.h"

namespace dcp {
namespace {

using test::expect_error_with;
using test::random_tiling;

constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();

Box row(std::int64_t offset, std::int64_t size) { return {{offset}, {size}}; }

TensorStorageMetadata stored(Sizes size, std::vector<Box> chunks) { return {{}, std::move(size), std::move(chunks)}; }

std::vector<Box> row_splits(std::int64_t count, std::int64_t rows) {
  std::vector<Box> boxes;
  for (std::int64_t i = 0; i < count; ++i) boxes.push_back(row(i * rows, rows));
  return boxes;
}

/// A grid of `n` by `n` chunks of 2 x 3 elements.
TensorStorageMetadata checkerboard(std::int64_t n) {
  TensorStorageMetadata tensor = stored({2 * n, 3 * n}, {});
  for (std::int64_t i = 0; i < n; ++i) {
    for (std::int64_t j = 0; j < n; ++j) tensor.chunks.push_back({{2 * i, 3 * j}, {2, 3}});
  }
  return tensor;
}

void shuffle(TensorStorageMetadata& tensor, std::mt19937& random) {
  std::vector<Box> chunks = tensor.chunks.boxes();
  std::shuffle(chunks.begin(), chunks.end(), random);
  tensor.chunks = chunks;
}

/// Changes one chunk.
template <typename Change>
void change(TensorStorageMetadata& tensor, std::size_t number, const Change& change_box) {
  Box chunk = tensor.chunks[number];
  change_box(chunk);
  tensor.chunks.replace(number, chunk);
}

double n_log_n(std::size_t n) { return static_cast<double>(n) * std::log2(static_cast<double>(n)); }

std::string fault_of(const TensorStorageMetadata& tensor, bool must_cover = true) {
  return find_chunk_fault(tensor, must_cover).value_or("");
}

Box random_box(std::size_t ndim, std::int64_t extent, std::mt19937& random) {
  Box box;
  for (std::size_t dim = 0; dim < ndim; ++dim) {
    const auto begin = static_cast<std::int64_t>(random() % static_cast<std::size_t>(extent));
    box.offsets.push_back(begin);
    box.sizes.push_back(static_cast<std::int64_t>(random() % static_cast<std::size_t>(extent - begin + 1)));
  }
  return box;
}

TEST(BoxSweep, FindsAnOverlapWheneverOnePairOverlaps) {
  std::mt19937 random(1);
  int found_count = 0;
  for (int round = 0; round < 4000; ++round) {
    const std::size_t ndim = 1 + random() % 5;
    std::vector<Box> boxes;
    for (std::size_t i = random() % 7; i > 0; --i) boxes.push_back(random_box(ndim, 6, random));
    bool expected = false;
    for (std::size_t i = 0; i < boxes.size(); ++i) {
      for (std::size_t j = 0; j < i; ++j) expected |= intersect(boxes[i], boxes[j]).has_value();
    }
    const auto found = find_overlap(boxes);
    ASSERT_EQ(found.has_value(), expected) << "round " << round;
    if (!found) continue;
    ++found_count;
    ASSERT_NE(found->first, found->second);
    ASSERT_TRUE(intersect(boxes[found->first], boxes[found->second])) << "round " << round;
  }
  EXPECT_GT(found_count, 500);
}

TEST(BoxSweep, TilingsHaveNoOverlapAndNoHoleUntilABoxIsTakenAway) {
  std::mt19937 random(2);
  for (int round = 0; round < 500; ++round) {
    const std::size_t ndim = random() % 5;
    const Box whole = whole_box(Sizes(ndim, 5));
    std::vector<Box> boxes = random_tiling(whole, 1 + random() % 20, random);
    ASSERT_FALSE(find_overlap(boxes));
    ASSERT_FALSE(find_uncovered(whole, boxes));
    const Box removed = boxes.back();
    boxes.pop_back();
    const auto hole = find_uncovered(whole, boxes);
    ASSERT_TRUE(hole) << "round " << round;
    ASSERT_FALSE(hole->empty());
    ASSERT_TRUE(removed.contains(*hole)) << to_string(removed) << " and " << to_string(*hole);
  }
}

TEST(BoxSweep, OverlapFinderAgreesWithAllPairs) {
  std::mt19937 random(3);
  for (int round = 0; round < 1000; ++round) {
    const std::size_t ndim = random() % 4;
    std::vector<Box> boxes;
    for (std::size_t i = random() % 9; i > 0; --i) boxes.push_back(random_box(ndim, 7, random));
    const OverlapFinder finder(boxes);
    const Box wanted = random_box(ndim, 7, random);
    std::vector<std::size_t> expected;
    for (std::size_t i = 0; i < boxes.size(); ++i) {
      if (intersect(wanted, boxes[i])) expected.push_back(i);
    }
    ASSERT_EQ(finder.overlaps(wanted), expected) << "round " << round;
  }
}

TEST(BoxSweep, RowSplitsMakeNoPairTestsBeyondTheOverlaps) {
  const std::vector<Box> chunks = row_splits(512, 3);
  SweepCounters counters;
  const OverlapFinder finder(chunks, &counters);
  std::size_t overlaps = 0;
  for (std::int64_t i = 0; i < 384; ++i) overlaps += finder.overlaps(row(4 * i, 4)).size();
  EXPECT_EQ(overlaps, 512u + 384u - 128u);  // Each border of one cut that is no border of the other adds one.
  EXPECT_EQ(counters.pair_tests, overlaps);
}

TEST(Validate, TilesExactly) {
  EXPECT_EQ(fault_of(stored({6}, {row(0, 2), row(4, 2), row(2, 2), row(6, 0)})), "");
  EXPECT_EQ(fault_of(stored({}, {{{}, {}}})), "");
  EXPECT_EQ(fault_of(stored({0, 5}, {})), "");
  EXPECT_EQ(fault_of(stored({0, 5}, {{{0, 0}, {0, 5}}})), "");
  EXPECT_EQ(fault_of(checkerboard(5)), "");
}

TEST(Validate, NamesEachKindOfFault) {
  EXPECT_EQ(fault_of(stored({6}, {row(0, 2), row(4, 2)})),
            "chunks hold 4 of 6 elements of the size [6]; none holds [2] + [2]");
  EXPECT_EQ(fault_of(stored({6}, {row(0, 2), row(4, 2)}), /*must_cover=*/false), "");
  EXPECT_EQ(fault_of(stored({}, {})), "chunks hold 0 of 1 elements of the size []; none holds [] + []");
  EXPECT_EQ(fault_of(stored({}, {{{}, {}}, {{}, {}}})), "chunks [] + [] and [] + [] overlap");
  EXPECT_EQ(fault_of(stored({6}, {row(0, 4), row(3, 3)}), false), "chunks [0] + [4] and [3] + [3] overlap");
  EXPECT_EQ(fault_of(stored({6}, {row(4, 3)}), false), "chunk [4] + [3] is out of bounds of the size [6]");
  EXPECT_EQ(fault_of(stored({6}, {row(-1, 3)}), false), "chunk [-1] + [3] has a negative offset");
  EXPECT_EQ(fault_of(stored({6}, {row(3, -1)}), false), "chunk [3] + [-1] has a negative size");
  EXPECT_NE(fault_of(stored({6}, {{{0, 0}, {1, 1}}}), false).find("another number of dimensions"), std::string::npos);
  EXPECT_NE(fault_of(stored({6}, {{{0}, {1, 1}}}), false).find("another number of dimensions"), std::string::npos);
}

TEST(Validate, HostileNumbersAreFaultsNotOverflows) {
  EXPECT_NE(fault_of(stored({kMax}, {row(kMax, kMax)})).find("out of bounds"), std::string::npos);
  EXPECT_NE(fault_of(stored({kMax, 3}, {})).find("fit 64 bits"), std::string::npos);
  EXPECT_NE(fault_of(stored({kMax, 0, kMax}, {})).find("fit 64 bits"), std::string::npos);
  EXPECT_NE(fault_of(stored({-1}, {})).find("negative"), std::string::npos);
  EXPECT_EQ(fault_of(stored({kMax}, {row(0, kMax)})), "");
  EXPECT_NE(fault_of(stored({kMax}, {row(0, kMax - 1)})).find("none holds [9223372036854775806] + [1]"),
            std::string::npos);
}

TEST(Validate, OneErrorNamesEveryFaultyKey) {
  Metadata metadata;
  metadata.state_dict_metadata["good"] = stored({2}, {row(0, 2)});
  metadata.state_dict_metadata["hole"] = stored({2}, {row(0, 1)});
  metadata.state_dict_metadata["object"] = BytesStorageMetadata{};
  metadata.state_dict_metadata["twice"] = stored({2}, {row(0, 2), row(1, 1)});
  expect_error_with(ErrorKind::kInvalidArgument,
                    {"'hole': chunks hold 1 of 2", "'twice': chunks [0] + [2] and [1] + [1]"},
                    [&] { validate_global_plan(metadata, true); });
  metadata.state_dict_metadata.erase("twice");
  validate_global_plan(metadata, false);
}

TEST(Validate, O30_ManyChunksTakeNLogNComparisons) {
  SweepCounters counters;
  const TensorStorageMetadata rows = stored({16384 * 2}, row_splits(16384, 2));
  EXPECT_FALSE(check_chunks(rows, &counters).fault);
  EXPECT_LE(counters.pair_tests, 16384u);
  EXPECT_LE(static_cast<double>(counters.sort_comparisons), n_log_n(16384));

  std::mt19937 random(4);
  TensorStorageMetadata shuffled = rows;
  shuffle(shuffled, random);
  counters = {};
  EXPECT_TRUE(check_chunks(shuffled, &counters).covers_all());
  EXPECT_LE(counters.pair_tests, 16384u);
  EXPECT_LE(static_cast<double>(counters.sort_comparisons), 1.5 * n_log_n(16384));
}

TEST(Validate, O30_CheckerboardsTakeNLogNComparisons) {
  for (const bool is_shuffled : {false, true}) {
    TensorStorageMetadata board = checkerboard(128);
    std::mt19937 random(5);
    if (is_shuffled) shuffle(board, random);
    SweepCounters counters;
    EXPECT_TRUE(check_chunks(board, &counters).covers_all());
    EXPECT_LE(counters.pair_tests, 2u * 16384u);
    EXPECT_LE(static_cast<double>(counters.sort_comparisons), 5 * n_log_n(16384));
  }
}

/// `n` by `n` by `n` chunks of 2 x 3 x 1 elements, in random order, and the last dimension cut in two once more.
TensorStorageMetadata four_dim_grid(std::int64_t n) {
  TensorStorageMetadata tensor = stored({2 * n, 3 * n, n, 8}, {});
  for (std::int64_t i = 0; i < n; ++i) {
    for (std::int64_t j = 0; j < n; ++j) {
      for (std::int64_t k = 0; k < n; ++k) {
        tensor.chunks.push_back({{2 * i, 3 * j, k, 0}, {2, 3, 1, 5}});
        tensor.chunks.push_back({{2 * i, 3 * j, k, 5}, {2, 3, 1, 3}});
      }
    }
  }
  std::mt19937 random(7);
  shuffle(tensor, random);
  return tensor;
}

TEST(Validate, O30_GridsOfManyDimensionsTakeNLogNComparisons) {
  TensorStorageMetadata grid = four_dim_grid(20);
  const std::size_t n = grid.chunks.size();
  SweepCounters counters;
  EXPECT_TRUE(check_chunks(grid, &counters).covers_all());
  EXPECT_LE(counters.pair_tests, 2 * n);
  EXPECT_LE(static_cast<double>(counters.sort_comparisons), 4 * 2 * n_log_n(n));
  change(grid, n / 2, [](Box& chunk) {
    chunk.sizes[2] += 1;
    if (chunk.offsets[2] == 19) chunk.offsets[2] -= 1;
  });
  EXPECT_NE(fault_of(grid).find("overlap"), std::string::npos);
}

/// Rods along each of three dimensions, none touching another, and no plane that parts them.
std::vector<Box> rods(std::int64_t count_per_dim) {
  const std::int64_t extent = 3 * count_per_dim;
  std::vector<Box> boxes;
  for (std::int64_t i = 0; i < count_per_dim; ++i) {
    boxes.push_back({{0, 3 * i, 3 * i}, {extent, 1, 1}});
    boxes.push_back({{3 * i + 1, 0, 3 * i + 1}, {1, extent, 1}});
    boxes.push_back({{3 * i + 2, 3 * i + 2, 0}, {1, 1, extent}});
  }
  return boxes;
}

/// Slabs that come off one by one, each time in another dimension.
std::vector<Box> peels(std::int64_t count) {
  std::vector<Box> boxes;
  Box rest = whole_box(Sizes(3, count));
  for (std::int64_t i = 0; i < count; ++i) {
    const std::size_t dim = static_cast<std::size_t>(i % 3);
    Box peel = rest;
    peel.sizes[dim] = 1;
    boxes.push_back(peel);
    rest.offsets[dim] += 1;
    rest.sizes[dim] -= 1;
  }
  return boxes;
}

TEST(BoxSweep, IrregularBoxesTakeABoundedTime) {
  for (auto make : {rods, peels}) {
    std::vector<Box> some = make(1000);
    EXPECT_FALSE(find_overlap(some));
    some.push_back(some[500]);
    EXPECT_TRUE(find_overlap(some));
  }
  SweepCounters counters;
  expect_error_with(ErrorKind::kUnsupported, {"30000 boxes lie so irregularly in 3 dimensions"},
                    [&] { find_overlap(rods(10'000), &counters); });
  expect_error_with(ErrorKind::kUnsupported, {"lie so irregularly"}, [&] { find_overlap(peels(30'000), &counters); });
  EXPECT_LE(counters.pair_tests, 2 * (16'000'000u + 64 * 30'000u + 1));
  EXPECT_LE(counters.sort_comparisons, 2u * 100 * 30'000 * 16);
}

TEST(Validate, O30_BrokenCheckerboards) {
  const TensorStorageMetadata board = checkerboard(16);
  TensorStorageMetadata hole = board;
  std::vector<Box> others = board.chunks.boxes();
  others.erase(others.begin() + 16 * 3 + 5);
  hole.chunks = others;
  EXPECT_EQ(fault_of(hole), "chunks hold 1530 of 1536 elements of the size [32, 48]; none holds [6, 15] + [2, 3]");
  TensorStorageMetadata shifted = board;
  change(shifted, 16 * 3 + 5, [](Box& chunk) { chunk.offsets[1] += 1; });
  EXPECT_NE(fault_of(shifted).find("overlap"), std::string::npos);
  EXPECT_NE(fault_of(shifted).find("[6, 16] + [2, 3]"), std::string::npos);
  TensorStorageMetadata out = board;
  change(out, out.chunks.size() - 1, [](Box& chunk) { chunk.offsets[0] += 1; });
  EXPECT_EQ(fault_of(out), "chunk [31, 45] + [2, 3] is out of bounds of the size [32, 48]");
  TensorStorageMetadata negative = board;
  change(negative, 0, [](Box& chunk) { chunk.offsets[1] = -3; });
  EXPECT_EQ(fault_of(negative), "chunk [0, -3] + [2, 3] has a negative offset");
}

TEST(ReadItems, GiveBeginsInBothChunks) {
  const auto items = create_read_items("w", stored({6, 2}, {{{0, 0}, {4, 2}}, {{4, 0}, {2, 2}}, {{6, 0}, {0, 2}}}),
                                       {{{6, 0}, {0, 2}}, {{3, 1}, {3, 1}}});
  ASSERT_EQ(items.size(), 2u);
  EXPECT_EQ(items[0].dest_index, (MetadataIndex{"w", Sizes{3, 1}, {}}));
  EXPECT_EQ(items[0].dest_index.index, 1);
  EXPECT_EQ(items[0].storage_index, (MetadataIndex{"w", Sizes{0, 0}, {}}));
  EXPECT_EQ(items[0].storage_offsets, (Sizes{3, 1}));
  EXPECT_EQ(items[0].dest_offsets, (Sizes{0, 0}));
  EXPECT_EQ(items[0].lengths, (Sizes{1, 1}));
  EXPECT_EQ(items[1].storage_index.index, 1);
  EXPECT_EQ(items[1].storage_offsets, (Sizes{0, 1}));
  EXPECT_EQ(items[1].dest_offsets, (Sizes{1, 0}));
  EXPECT_EQ(items[1].lengths, (Sizes{2, 1}));
}

TEST(ReadItems, ZeroDimensionsMakeOneItem) {
  const auto items = create_read_items("s", stored({}, {{{}, {}}}), {{{}, {}}});
  ASSERT_EQ(items.size(), 1u);
  EXPECT_EQ(items[0].lengths, Sizes());
  EXPECT_EQ(items[0].storage_index.offset, Sizes());
}

TEST(ReadItems, RefuseOtherNdim) {
  expect_error_with(ErrorKind::kInvalidArgument, {"'w'", "wanted box [0] + [1]", "[6, 2]"},
                    [] { create_read_items("w", stored({6, 2}, {}), {row(0, 1)}); });
  expect_error_with(ErrorKind::kInvalidArgument, {"'w'", "stored chunk [0] + [1]"},
                    [] { create_read_items("w", stored({6, 2}, {row(0, 1)}), {}); });
}

TEST(ReadItems, FillEveryElementOfRandomTilingsOnce) {
  std::mt19937 random(6);
  for (int round = 0; round < 200; ++round) {
    const Box whole = whole_box(Sizes(1 + random() % 3, 6));
    const TensorStorageMetadata tensor = stored(whole.sizes, random_tiling(whole, 12, random));
    const std::vector<Box> wanted = random_tiling(whole, 12, random);
    std::vector<Box> filled;
    for (const ReadItem& item : create_read_items("w", tensor, wanted)) {
      const Box& to = wanted[static_cast<std::size_t>(*item.dest_index.index)];
      const Box& from = tensor.chunks[static_cast<std::size_t>(*item.storage_index.index)];
      Box global{to.offsets, item.lengths};
      for (std::size_t dim = 0; dim < whole.ndim(); ++dim) {
        global.offsets[dim] += item.dest_offsets[dim];
        ASSERT_EQ(global.offsets[dim], from.offsets[dim] + item.storage_offsets[dim]);
      }
      ASSERT_TRUE(from.contains(global));
      ASSERT_TRUE(to.contains(global));
      filled.push_back(global);
    }
    ASSERT_EQ(fault_of(stored(whole.sizes, filled)), "");
  }
}

}  // namespace
}  // namespace dcp

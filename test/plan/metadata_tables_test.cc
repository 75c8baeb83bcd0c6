// The compact forms in which Metadata holds chunks and their places, against plain ones.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "test/support/expect_error.h"
#include "torch_dcp/plan/metadata.h"

namespace dcp {
namespace {

Box some_box(std::size_t ndim, std::mt19937& random) {
  Box box;
  for (std::size_t dim = 0; dim < ndim; ++dim) {
    box.offsets.push_back(static_cast<std::int64_t>(random()) << (random() % 30));
    box.sizes.push_back(static_cast<std::int64_t>(random() % 5));
  }
  return box;
}

TEST(ChunkList, HoldsWhatAVectorHolds) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    const std::size_t ndim = random() % 6;
    const bool is_mixed = round % 4 == 0;
    std::vector<Box> plain;
    ChunkList list;
    for (std::size_t left = random() % 9; left > 0; --left) {
      plain.push_back(some_box(is_mixed ? random() % 4 : ndim, random));
      if (is_mixed && random() % 3 == 0) plain.back().sizes.push_back(7);
      list.push_back(plain.back());
    }
    ASSERT_EQ(list.size(), plain.size());
    EXPECT_EQ(list.empty(), plain.empty());
    EXPECT_EQ(list.boxes(), plain);
    EXPECT_EQ(list, ChunkList(plain));
    std::size_t number = 0;
    for (const Box& chunk : list) {
      EXPECT_EQ(chunk, plain[number]);
      EXPECT_EQ(list.offsets(number), c10::IntArrayRef(plain[number].offsets));
      EXPECT_EQ(list.sizes(number), c10::IntArrayRef(plain[number].sizes));
      ++number;
    }
    EXPECT_EQ(number, plain.size());
    if (plain.empty()) continue;
    const ChunkList before = list;
    const std::size_t at = random() % plain.size();
    plain[at] = some_box(is_mixed ? random() % 4 : ndim, random);
    list.replace(at, plain[at]);
    EXPECT_EQ(list.boxes(), plain);
    EXPECT_EQ(before == list, before.boxes() == plain);
    const ChunkList moved = std::move(list);
    EXPECT_EQ(moved.boxes(), plain);
  }
}

TEST(ChunkList, ScalarsCount) {
  ChunkList list;
  for (int i = 0; i < 3; ++i) list.push_back(Box());
  EXPECT_EQ(list.size(), 3u);
  EXPECT_EQ(list[2], Box());
  EXPECT_FALSE(list == ChunkList{Box()});
  list.clear();
  EXPECT_TRUE(list.empty());
  EXPECT_EQ(list, ChunkList());
  list.push_back({{1, 2}, {3, 4}});
  EXPECT_EQ(list.front(), (Box{{1, 2}, {3, 4}}));
  test::expect_error(ErrorKind::kInvalidArgument, "chunk 1 of 1", [&] { list.at(1); });
}

using Entries = std::vector<std::pair<MetadataIndex, StorageInfo>>;

void expect_holds(const StorageTable& table, const Entries& plain) {
  ASSERT_EQ(table.size(), plain.size());
  std::size_t number = 0;
  for (const auto& [index, info] : table) {
    EXPECT_EQ(index, plain[number].first);
    EXPECT_EQ(index.index, plain[number].first.index);
    EXPECT_EQ(info, plain[number].second);
    EXPECT_TRUE(table.contains(index));
    EXPECT_EQ(table.find(index), info);
    ++number;
  }
  number = 0;
  for (const StorageTable::Row& row : table.rows()) {
    const auto& [index, info] = plain[number++];
    EXPECT_EQ(row.fqn, index.fqn);
    EXPECT_EQ(row.has_offset, index.offset.has_value());
    EXPECT_EQ(row.chunk_offsets, index.offset ? c10::IntArrayRef(*index.offset) : c10::IntArrayRef());
    EXPECT_EQ(row.relative_path, info.relative_path);
  }
}

MetadataIndex some_index(std::mt19937& random) {
  MetadataIndex index{"key " + std::to_string(random() % 7), {}, {}};
  if (random() % 5 != 0) {
    index.offset.emplace();
    for (std::size_t left = random() % 4; left > 0; --left) index.offset->push_back(random() % 3);
  }
  const std::vector<std::optional<std::int64_t>> hints = {std::nullopt,  0,       5,  (1 << 24) - 3, (1 << 24) - 2,
                                                          (1 << 24) - 1, 1 << 24, -1, INT64_MAX,     INT64_MIN};
  index.index = hints[random() % hints.size()];
  return index;
}

StorageInfo some_info(std::mt19937& random) {
  StorageInfo info{"__" + std::to_string(random() % 3) + "_0.distcp",
                   static_cast<std::int64_t>(random()),
                   static_cast<std::int64_t>(random()) << 30,
                   {}};
  for (std::size_t left = random() % 3; left > 0; --left) {
    info.transform_descriptors.push_back(random() % 2 == 0 ? "stream.zstd/1" : "other/1");
  }
  return info;
}

TEST(StorageTable, HoldsWhatAMapHolds) {
  std::mt19937 random(2);
  for (int round = 0; round < 50; ++round) {
    StorageTable table;
    Entries plain;
    if (round % 3 == 0) table.reserve(random() % 100);
    for (int step = 0; step < 100; ++step) {
      const MetadataIndex index = some_index(random);
      const StorageInfo info = some_info(random);
      const auto known =
          std::find_if(plain.begin(), plain.end(), [&](const auto& entry) { return entry.first == index; });
      const bool is_new = known == plain.end();
      switch (random() % 4) {
        case 0:
          EXPECT_EQ(table.erase(index), !is_new);
          if (!is_new) plain.erase(known);
          break;
        case 1:
          table.insert_or_assign(index, info);
          if (!is_new) known->second = info;
          if (is_new) plain.emplace_back(index, info);
          break;
        default:
          EXPECT_EQ(table.insert(index, info), is_new);
          if (is_new) plain.emplace_back(index, info);
      }
    }
    table.shrink_to_fit();
    expect_holds(table, plain);
    const StorageTable copy = table;
    EXPECT_EQ(copy, table);
    const StorageTable moved = std::move(table);
    expect_holds(moved, plain);
    expect_holds(copy, plain);
  }
}

TEST(StorageTable, OffsetsOfManyDimensions) {
  StorageTable table;
  for (const std::size_t ndim : {0, 1, 253, 254}) {
    EXPECT_TRUE(table.insert({"w", Sizes(ndim, 7), 0}, {"f", static_cast<std::int64_t>(ndim), 1, {}}));
  }
  EXPECT_TRUE(table.insert({"w", std::nullopt, 0}, {"f", -1, 1, {}}));
  for (const std::size_t ndim : {0, 1, 253, 254}) {
    const auto info = table.find({"w", Sizes(ndim, 7), {}});
    ASSERT_TRUE(info) << ndim;
    EXPECT_EQ(info->offset, static_cast<std::int64_t>(ndim));
  }
  EXPECT_FALSE(table.contains({"w", Sizes(254, 8), {}}));
  EXPECT_FALSE(table.contains({"w", Sizes(255, 7), {}}));
  test::expect_error(ErrorKind::kUnsupported, "key 'w': a chunk of 255 dimensions",
                     [&] { table.insert({"w", Sizes(255, 7), 0}, {"f", 0, 1, {}}); });
  EXPECT_EQ(table.size(), 5u);
}

}  // namespace
}  // namespace dcp

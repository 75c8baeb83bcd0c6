// How much memory the metadata of many ranks take.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "test/support/memory_counter.h"
#include "torch_dcp/format/metadata_pickle.h"
#include "torch_dcp/plan/merge_metadata.h"
#include "torch_dcp/plan/metadata.h"

namespace dcp {
namespace {

constexpr std::int64_t kTensors = 200;
constexpr std::int64_t kMostBytesPerItem = 100;

std::string key_of(std::int64_t tensor) { return "model.layers." + std::to_string(tensor) + ".feed_forward.weight"; }

StorageInfo place(std::int64_t rank, std::int64_t tensor) {
  return {"__" + std::to_string(rank) + "_0.distcp", tensor * 1'000'000, 999'999, {}};
}

/// Of tensors cut into rows, one piece a rank, those pieces of `first_rank` and of as many as `rank_count` after it.
Metadata sharded(std::int64_t first_rank, std::int64_t rank_count, std::int64_t all_ranks) {
  Metadata metadata;
  for (std::int64_t number = 0; number < kTensors; ++number) {
    TensorStorageMetadata tensor;
    tensor.size = {8 * all_ranks, 4096};
    for (std::int64_t rank = first_rank; rank < first_rank + rank_count; ++rank) {
      tensor.chunks.push_back({{8 * rank, 0}, {8, 4096}});
    }
    metadata.state_dict_metadata.insert(key_of(number), std::move(tensor));
  }
  for (std::int64_t rank = first_rank; rank < first_rank + rank_count; ++rank) {
    for (std::int64_t number = 0; number < kTensors; ++number) {
      metadata.storage_data.insert({key_of(number), Sizes{8 * rank, 0}, rank - first_rank}, place(rank, number));
    }
  }
  return metadata;
}

TEST(MetadataMemory, O30_AtMost100BytesAnItemAfterParsing) {
  for (const std::int64_t ranks : {300, 512, 700, 1000}) {
    const Bytes bytes = encode_metadata(sharded(0, ranks, ranks));
    const testing::PeakMemory memory;
    const Metadata metadata = decode_metadata(bytes);
    const std::int64_t held = memory.held_bytes();
    ASSERT_EQ(metadata.storage_data.size(), static_cast<std::size_t>(kTensors * ranks));
    EXPECT_LE(held, kMostBytesPerItem * kTensors * ranks) << ranks << " ranks";
    EXPECT_GE(held, 50 * kTensors * ranks) << "it is not counted";
  }
}

TEST(MetadataMemory, AtMost100BytesAnItemAfterMerging) {
  constexpr std::int64_t kRanks = 512;
  std::vector<Metadata> by_rank;
  for (std::int64_t rank = 0; rank < kRanks; ++rank) by_rank.push_back(sharded(rank, 1, kRanks));
  const testing::PeakMemory memory;
  const Metadata merged = merge_rank_metadata(by_rank);
  EXPECT_LE(memory.held_bytes(), kMostBytesPerItem * kTensors * kRanks);
  EXPECT_EQ(merged.storage_data.size(), static_cast<std::size_t>(kTensors * kRanks));
}

}  // namespace
}  // namespace dcp

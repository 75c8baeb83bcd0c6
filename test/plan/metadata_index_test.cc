#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "torch_dcp/plan/metadata.h"

namespace dcp {
namespace {

TEST(MetadataIndex, IsItsKeyAndOffset) {
  const MetadataIndex index = {"w", Sizes{2, 0}, 1};
  const MetadataIndexHash hash;
  for (const std::optional<std::int64_t> hint : std::vector<std::optional<std::int64_t>>{std::nullopt, 0, 1, 7, -1}) {
    const MetadataIndex other = {"w", Sizes{2, 0}, hint};
    EXPECT_EQ(other, index) << "the number is only a hint";
    EXPECT_EQ(hash(other), hash(index));
  }
  const std::vector<MetadataIndex> others = {
      {"w", Sizes{0, 2}, 1}, {"w", Sizes{2}, 1}, {"w", Sizes{}, 1}, {"w", std::nullopt, 1}, {"v", Sizes{2, 0}, 1}};
  for (const MetadataIndex& other : others) EXPECT_FALSE(other == index) << to_string(other);
}

TEST(MetadataIndex, FindsItsChunkWhateverTheHint) {
  Metadata metadata;
  metadata.state_dict_metadata.insert("w", TensorStorageMetadata{{}, {6}, {{{0}, {2}}, {{2}, {3}}, {{5}, {1}}}});
  metadata.state_dict_metadata.insert("n", BytesStorageMetadata{});
  for (const std::optional<std::int64_t> hint :
       std::vector<std::optional<std::int64_t>>{1, 0, 2, 3, -1, std::nullopt}) {
    const std::optional<Box> chunk = find_chunk(metadata, {"w", Sizes{2}, hint});
    ASSERT_TRUE(chunk);
    EXPECT_EQ(*chunk, (Box{{2}, {3}}));
    EXPECT_FALSE(find_chunk(metadata, {"w", Sizes{1}, hint})) << "no chunk begins there";
    EXPECT_FALSE(find_chunk(metadata, {"w", std::nullopt, hint}));
    EXPECT_FALSE(find_chunk(metadata, {"n", Sizes{2}, hint})) << "an object";
    EXPECT_FALSE(find_chunk(metadata, {"gone", Sizes{2}, hint}));
  }
}

}  // namespace
}  // namespace dcp

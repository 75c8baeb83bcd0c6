#include "torch_dcp/plan/merge_metadata.h"

#include <gtest/gtest.h>

#include "test/plan/plan_support.h"

namespace dcp {
namespace {

using test::expect_error_with;

Box row(std::int64_t offset, std::int64_t size) { return {{offset}, {size}}; }

TensorStorageMetadata tensor(Sizes size, std::vector<Box> chunks, c10::ScalarType dtype = c10::ScalarType::Float) {
  return {{dtype}, std::move(size), std::move(chunks)};
}

/// What one rank saved: its items lie in a file of its name.
struct Rank {
  explicit Rank(int number) : file("__" + std::to_string(number) + "_0.distcp") {}

  Rank& add(const std::string& fqn, TensorStorageMetadata entry) {
    for (std::size_t i = 0; i < entry.chunks.size(); ++i) {
      store({fqn, entry.chunks[i].offsets, static_cast<std::int64_t>(i)});
    }
    metadata.state_dict_metadata.insert(fqn, std::move(entry));
    return *this;
  }
  Rank& add_object(const std::string& fqn) {
    store({fqn, {}, {}});
    metadata.state_dict_metadata.insert(fqn, BytesStorageMetadata());
    return *this;
  }
  Rank& add_path(const std::string& fqn, Path path) {
    if (!metadata.planner_data) metadata.planner_data.emplace();
    metadata.planner_data->insert(fqn, std::move(path));
    return *this;
  }

  Metadata metadata;
  std::string file;

 private:
  void store(const MetadataIndex& index) { metadata.storage_data.insert(index, {file, 0, 100, {}}); }
};

StorageInfo stored(const Metadata& metadata, const std::string& fqn, std::optional<Sizes> offset = {}) {
  return *metadata.storage_data.find({fqn, std::move(offset), {}});
}

TEST(MergeMetadata, UnitesChunksAndTakesCopiesOfTheLowestRank) {
  Rank first(0);
  first.add("w", tensor({5}, {row(0, 2)})).add("same", tensor({3}, {row(0, 3)})).add_object("n");
  first.add_path("w", {PathItem::dict_key("w")});
  first.metadata.storage_meta = StorageMeta{"c", "id of rank 0", {}};
  first.metadata.version = "1.0.0";
  Rank second(1);
  second.add_object("n").add_object("late").add("same", tensor({3}, {row(0, 3)}));
  second.add("w", tensor({5}, {row(2, 1), row(3, 2)})).add_path("late", {PathItem::dict_key("late")});

  const Metadata merged = merge_rank_metadata({first.metadata, second.metadata});
  ASSERT_EQ(merged.state_dict_metadata.size(), 4u);
  const auto& w = std::get<TensorStorageMetadata>(*merged.state_dict_metadata.find("w"));
  EXPECT_EQ(w.chunks, (std::vector<Box>{row(0, 2), row(2, 1), row(3, 2)}));
  EXPECT_EQ(merged.storage_data.size(), 6u);
  EXPECT_EQ(stored(merged, "w", Sizes{0}).relative_path, first.file);
  EXPECT_EQ(stored(merged, "w", Sizes{3}).relative_path, second.file);
  EXPECT_EQ(stored(merged, "same", Sizes{0}).relative_path, first.file);
  EXPECT_EQ(stored(merged, "n").relative_path, first.file);
  EXPECT_EQ(stored(merged, "late").relative_path, second.file);
  for (const auto& [index, info] : merged.storage_data) {
    if (index.fqn == "w") {
      EXPECT_EQ(w.chunks.at(static_cast<std::size_t>(*index.index)).offsets, *index.offset);
    }
  }
  EXPECT_EQ(merged.planner_data->size(), 2u);
  EXPECT_EQ(merged.version, "1.0.0");
  EXPECT_EQ(merged.storage_meta->checkpoint_id, "c");
  EXPECT_FALSE(merged.storage_meta->save_id);
}

TEST(MergeMetadata, EmptyChunksGiveWay) {
  Rank first(0);
  first.add("w", tensor({2}, {row(0, 0)}));
  Rank second(1);
  second.add("w", tensor({2}, {row(0, 2)}));
  Rank third(2);
  third.add("w", tensor({2}, {row(0, 0)}));
  const Metadata merged = merge_rank_metadata({first.metadata, second.metadata, third.metadata});
  EXPECT_EQ(std::get<TensorStorageMetadata>(*merged.state_dict_metadata.find("w")).chunks,
            (std::vector<Box>{row(0, 2)}));
  EXPECT_EQ(stored(merged, "w", Sizes{0}).relative_path, second.file);
}

TEST(MergeMetadata, NamesEveryKeyThatContradicts) {
  Rank first(0);
  first.add("kind", tensor({2}, {row(0, 2)})).add("size", tensor({2}, {row(0, 2)}));
  first.add("dtype", tensor({2}, {row(0, 2)})).add("cut", tensor({4}, {row(0, 2)}));
  first.add("overlap", tensor({4}, {row(0, 3)})).add("hole", tensor({4}, {row(0, 2)})).add_object("path");
  first.add_path("path", {PathItem::dict_key("path")});
  Rank second(1);
  second.add_object("kind").add("size", tensor({3}, {row(0, 3)}));
  second.add("dtype", tensor({2}, {row(0, 2)}, c10::ScalarType::Double)).add("cut", tensor({4}, {row(0, 4)}));
  second.add("overlap", tensor({4}, {row(2, 2)})).add("hole", tensor({4}, {row(3, 1)}));
  second.add_path("path", {PathItem::dict_key("pa"), PathItem::dict_key("th")});
  expect_error_with(
      ErrorKind::kCorruptData,
      {"7 faults", "key 'kind': it is a float32 tensor of size [2] on rank 0 and an object on rank 1",
       "key 'size': it is a float32 tensor of size [2] on rank 0 and a float32 tensor of size [3] on rank 1",
       "key 'dtype': it is a float32 tensor of size [2] on rank 0 and a float64 tensor",
       "key 'cut': rank 0 has the chunk [0] + [2], rank 1 [0] + [4]", "key 'overlap'",
       "[0] + [3] and [2] + [2] overlap", "key 'hole'", "none holds [2] + [1]", "key 'path'"},
      [&] { merge_rank_metadata({first.metadata, second.metadata}); });
  expect_error_with(ErrorKind::kInvalidArgument, {"no metadata"}, [] { merge_rank_metadata({}); });
}

}  // namespace
}  // namespace dcp

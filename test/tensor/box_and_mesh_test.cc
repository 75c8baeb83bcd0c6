#include <gtest/gtest.h>

#include <limits>
#include <unordered_set>

#include "test/support/expect_error.h"
#include "torch_dcp/tensor/box.h"
#include "torch_dcp/tensor/c10d_placement.h"
#include "torch_dcp/tensor/device_mesh.h"
#include "torch_dcp/tensor/placement.h"

#if DCP_HAS_C10D_PLACEMENT
#include <torch/csrc/distributed/Placement.h>
#endif

namespace dcp {
namespace {

using test::expect_error;

constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();

TEST(Box, SpellsOffsetsAndSizes) {
  EXPECT_EQ(to_string(Sizes{2, 3}), "[2, 3]");
  EXPECT_EQ(to_string(Sizes{}), "[]");
  EXPECT_EQ(to_string(Box{{0, 1}, {2, 3}}), "[0, 1] + [2, 3]");
}

TEST(Box, CountsElements) {
  EXPECT_EQ((Box{{}, {}}).numel(), 1);
  EXPECT_EQ((Box{{4, 5}, {2, 3}}).numel(), 6);
  EXPECT_EQ((Box{{4, 5}, {0, 3}}).numel(), 0);
  EXPECT_TRUE((Box{{4, 5}, {0, 3}}).empty());
  EXPECT_FALSE((Box{{}, {}}).empty());
  EXPECT_FALSE((Box{{0}, {1}}).empty());
  expect_error(ErrorKind::kInvalidArgument, "out of range", [] { Box{{0, 0}, {kMax, 2}}.numel(); });
}

TEST(Box, ContainsWhatLiesInside) {
  const Box outer{{2, 3}, {4, 5}};
  EXPECT_TRUE(outer.contains(outer));
  EXPECT_TRUE(outer.contains({{3, 4}, {3, 4}}));
  EXPECT_TRUE(outer.contains({{6, 3}, {0, 5}}));
  EXPECT_FALSE(outer.contains({{1, 3}, {4, 5}}));
  EXPECT_FALSE(outer.contains({{3, 3}, {4, 5}}));
  EXPECT_FALSE(outer.contains({{2, 3}, {4, 6}}));
  EXPECT_FALSE(outer.contains({{7, 3}, {0, 5}}));
  EXPECT_FALSE(outer.contains({{2}, {4}}));
  EXPECT_FALSE(outer.contains({{kMax, 3}, {kMax, 5}}));
  EXPECT_TRUE((Box{}).contains(Box{}));
}

TEST(Box, MakeBoxChecksItsNumbers) {
  EXPECT_EQ(make_box({1, 2}, {3, 0}), (Box{{1, 2}, {3, 0}}));
  expect_error(ErrorKind::kInvalidArgument, "2 offsets, but 1 sizes", [] { make_box({0, 0}, {1}); });
  expect_error(ErrorKind::kInvalidArgument, "dimension 1", [] { make_box({0, -1}, {1, 1}); });
  expect_error(ErrorKind::kInvalidArgument, "dimension 0", [] { make_box({0, 0}, {-1, 1}); });
  expect_error(ErrorKind::kInvalidArgument, "dimension 0", [] { make_box({kMax}, {1}); });
  expect_error(ErrorKind::kInvalidArgument, "number of elements", [] { make_box({0, 0}, {kMax, kMax}); });
}

TEST(Box, WholeBoxStartsAtZero) {
  EXPECT_EQ(whole_box({2, 3}), (Box{{0, 0}, {2, 3}}));
  EXPECT_EQ(whole_box({}), Box());
}

TEST(Box, IntersectsWhereBothHoldElements) {
  EXPECT_EQ(intersect({{0, 0}, {4, 4}}, {{2, 3}, {4, 4}}), (Box{{2, 3}, {2, 1}}));
  EXPECT_EQ(intersect({{2, 3}, {4, 4}}, {{0, 0}, {4, 4}}), (Box{{2, 3}, {2, 1}}));
  EXPECT_EQ(intersect({{0}, {2}}, {{2}, {2}}), std::nullopt);
  EXPECT_EQ(intersect({{0}, {4}}, {{2}, {0}}), std::nullopt);
  EXPECT_EQ(intersect({{0, 0}, {2, 2}}, {{0, 2}, {2, 2}}), std::nullopt);
  EXPECT_EQ(intersect(Box(), Box()), Box());
}

TEST(Box, HashesByContent) {
  std::unordered_set<Sizes, SizesHash> seen;
  for (std::int64_t i = 0; i < 10; ++i) {
    for (std::int64_t j = 0; j < 10; ++j) seen.insert(Sizes{i, j});
  }
  EXPECT_EQ(seen.size(), 100u);
  EXPECT_TRUE(seen.contains(Sizes{3, 4}));
  EXPECT_FALSE(seen.contains(Sizes{3}));
  EXPECT_NE(SizesHash()(Sizes{1, 2}), SizesHash()(Sizes{2, 1}));
}

TEST(DeviceMesh, KnowsWhereEachRankStands) {
  const DeviceMesh mesh({2, 3}, {10, 11, 12, 20, 21, 22}, 21, {"dp", "tp"});
  EXPECT_EQ(mesh.ndim(), 2u);
  EXPECT_EQ(mesh.size(), 6);
  EXPECT_EQ(mesh.my_rank(), 21);
  EXPECT_EQ(mesh.my_coordinate(), (Sizes{1, 1}));
  EXPECT_EQ(mesh.coordinate_of(12), (Sizes{0, 2}));
  EXPECT_EQ(mesh.coordinate_of(0), std::nullopt);
  EXPECT_EQ(mesh.dim_names(), (std::vector<std::string>{"dp", "tp"}));
}

TEST(DeviceMesh, MakesRowMajorRanks) {
  const auto mesh = DeviceMesh::make({2, 2, 2}, 5);
  EXPECT_EQ(mesh->ranks(), (std::vector<std::int64_t>{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(mesh->my_coordinate(), (Sizes{1, 0, 1}));
  EXPECT_TRUE(mesh->dim_names().empty());
  EXPECT_EQ(DeviceMesh::make({2}, 2)->my_coordinate(), std::nullopt);
}

TEST(DeviceMesh, EqualsByShapeAndRanks) {
  EXPECT_EQ(*DeviceMesh::make({2, 2}, 0), *DeviceMesh::make({2, 2}, 3, {"a", "b"}));
  EXPECT_FALSE(*DeviceMesh::make({2, 2}, 0) == *DeviceMesh::make({4}, 0));
  EXPECT_FALSE(*DeviceMesh::make({2}, 0) == DeviceMesh({2}, {1, 0}, 0));
}

TEST(DeviceMesh, RefusesWhatIsNoGrid) {
  const auto kind = ErrorKind::kInvalidArgument;
  expect_error(kind, "needs 4 ranks, got 3", [] { DeviceMesh({2, 2}, {0, 1, 2}, 0); });
  expect_error(kind, "every dimension needs a rank", [] { DeviceMesh({2, 0}, {}, 0); });
  expect_error(kind, "every dimension needs a rank", [] { DeviceMesh::make({-1}, 0); });
  expect_error(kind, "too many ranks", [] { DeviceMesh::make({kMax, 3}, 0); });
  expect_error(kind, "rank 1 is in it twice", [] { DeviceMesh({2}, {1, 1}, 0); });
  expect_error(kind, "rank -1 is negative", [] { DeviceMesh({2}, {0, -1}, 0); });
  expect_error(kind, "has 1 names", [] { DeviceMesh::make({2, 2}, 0, {"a"}); });
  expect_error(kind, "same name", [] { DeviceMesh::make({2, 2}, 0, {"a", "a"}); });
}

TEST(Placement, SpellsItself) {
  EXPECT_EQ(to_string(Placement::replicate()), "Replicate()");
  EXPECT_EQ(to_string(Placement::shard(1)), "Shard(1)");
  EXPECT_EQ(to_string(Placement::strided_shard(0, 2)), "_StridedShard(0, split_factor=2)");
  EXPECT_EQ(to_string(Placement::partial()), "Partial(sum)");
  EXPECT_EQ(to_string(Placement::partial("avg")), "Partial(avg)");
}

TEST(Placement, IsAShardOrNot) {
  EXPECT_TRUE(Placement::shard(0).is_shard());
  EXPECT_TRUE(Placement::strided_shard(0, 2).is_shard());
  EXPECT_FALSE(Placement::replicate().is_shard());
  EXPECT_FALSE(Placement::partial().is_shard());
  EXPECT_NE(Placement::shard(0), Placement::shard(1));
  EXPECT_NE(Placement::strided_shard(0, 2), Placement::strided_shard(0, 3));
}

#if DCP_HAS_C10D_PLACEMENT
TEST(Placement, GoesToLibTorchAndBack) {
  const std::vector<Placement> placements = {Placement::replicate(), Placement::shard(3),
                                             Placement::strided_shard(1, 4), Placement::partial("max")};
  for (const Placement& placement : placements) {
    EXPECT_EQ(from_c10d_placement(*to_c10d_placement(placement)), placement) << to_string(placement);
  }
  EXPECT_TRUE(to_c10d_placement(Placement::shard(3))->is_shard(3));
  EXPECT_TRUE(to_c10d_placement(Placement::replicate())->is_replicate());
  EXPECT_TRUE(to_c10d_placement(Placement::partial("max"))->is_partial("max"));
  EXPECT_EQ(from_c10d_placement(torch::distributed::Partial()), Placement::partial("sum"));
}

TEST(Placement, RefusesAnUnknownKindOfLibTorch) {
  class Unknown : public torch::distributed::Placement {};
  expect_error(ErrorKind::kUnsupported, "Unknown", [] { from_c10d_placement(Unknown()); });
}
#endif

}  // namespace
}  // namespace dcp

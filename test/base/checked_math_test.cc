#include "torch_dcp/base/checked_math.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace dcp {
namespace {

constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
using Sizes64 = std::vector<std::int64_t>;

TEST(CheckedMathTest, SumsAndProductsThatFit) {
  EXPECT_EQ(checked_add(2, 3), 5);
  EXPECT_EQ(checked_mul(-2, 3), -6);
  EXPECT_EQ(checked_numel(Sizes64{2, 3, 4}), 24);
  EXPECT_EQ(checked_numel(Sizes64{}), 1);
  EXPECT_EQ(checked_numel(Sizes64{0, 5}), 0);
}

TEST(CheckedMathTest, OverflowAndNegativeSizesAreNothing) {
  EXPECT_FALSE(checked_add(kMax, 1));
  EXPECT_FALSE(checked_mul(kMax, 2));
  EXPECT_FALSE(checked_numel(Sizes64{-4, -3}));
  EXPECT_FALSE(checked_numel(Sizes64{1ll << 32, 1ll << 32}));
  EXPECT_FALSE(checked_numel(Sizes64{0, 1ll << 62, 4})) << "a zero must not hide an overflow";
}

}  // namespace
}  // namespace dcp

#include "torch_dcp/base/ordered_map.h"

#include <gtest/gtest.h>

#include <string>

namespace dcp {
namespace {

using Map = OrderedMap<std::string, int>;

std::string keys_of(const Map& map) {
  std::string keys;
  for (const auto& [key, value] : map) keys += key;
  return keys;
}

TEST(OrderedMapTest, KeepsTheOrderOfInsertion) {
  Map map{{"z", 1}, {"a", 2}};
  map["m"] = 3;
  map["z"] = 4;
  EXPECT_EQ(keys_of(map), "zam");
  EXPECT_EQ(*map.find("z"), 4);
  EXPECT_FALSE(map.insert("a", 9));
  EXPECT_EQ(*map.find("a"), 2);
}

TEST(OrderedMapTest, EraseKeepsTheOthersReachable) {
  Map map{{"a", 1}, {"b", 2}, {"c", 3}};
  EXPECT_TRUE(map.erase("b"));
  EXPECT_FALSE(map.erase("b"));
  EXPECT_EQ(keys_of(map), "ac");
  EXPECT_EQ(*map.find("c"), 3);
  EXPECT_EQ(map.find("b"), nullptr);
}

}  // namespace
}  // namespace dcp

#include "torch_dcp/base/ordered_map.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>
#include <vector>

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

/// Every key has the same hash, or one of few.
struct PoorHash {
  std::size_t operator()(int key) const { return static_cast<std::size_t>(key % 3); }
};

template <typename Map>
void check_against_a_plain_map(unsigned seed) {
  std::mt19937 random(seed);
  Map map;
  std::map<int, int> plain;
  std::vector<int> order;
  for (int step = 0; step < 4000; ++step) {
    const int key = static_cast<int>(random() % 500) * 64;
    const int value = static_cast<int>(random());
    switch (random() % 5) {
      case 0:
        if (map.erase(key)) std::erase(order, key);
        plain.erase(key);
        break;
      case 1:
        if (map.insert(key, value)) order.push_back(key);
        plain.try_emplace(key, value);
        break;
      case 2:
        if (!plain.contains(key)) order.push_back(key);
        map.insert_or_assign(key, value);
        plain[key] = value;
        break;
      case 3:
        if (!plain.contains(key)) order.push_back(key);
        map[key] = value;
        plain[key] = value;
        break;
      default:
        if (step % 100 == 0) map.reserve(random() % 2000);
        ASSERT_EQ(map.contains(key), plain.contains(key));
        if (plain.contains(key)) {
          ASSERT_EQ(*map.find(key), plain.at(key));
        }
    }
    ASSERT_EQ(map.size(), plain.size());
  }
  std::vector<int> keys;
  for (const auto& [key, value] : map) {
    keys.push_back(key);
    EXPECT_EQ(plain.at(key), value);
  }
  EXPECT_EQ(keys, order);
  const Map copy = map;
  for (const int key : order) EXPECT_EQ(*copy.find(key), plain.at(key));
}

TEST(OrderedMapTest, DoesWhatAPlainMapDoes) {
  for (unsigned seed = 0; seed < 5; ++seed) {
    check_against_a_plain_map<OrderedMap<int, int>>(seed);
    check_against_a_plain_map<OrderedMap<int, int, PoorHash>>(seed);
  }
}

TEST(OrderedMapTest, AnEmptyMapFindsNothing) {
  Map map;
  EXPECT_EQ(map.find("a"), nullptr);
  EXPECT_FALSE(map.erase("a"));
  map.reserve(0);
  EXPECT_FALSE(map.contains("a"));
}

}  // namespace
}  // namespace dcp

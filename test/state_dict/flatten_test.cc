#include "torch_dcp/state_dict/flatten.h"

#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <random>

#include "test/support/expect_error.h"
#include "torch_dcp/state_dict/equal.h"
#include "torch_dcp/state_dict/stateful.h"

namespace dcp {
namespace {

using test::expect_error;

at::Tensor number(double value) { return at::full({2}, value); }

ShardedTensor sharded() { return ShardedTensor({4}, at::kFloat, {{number(1), {2}}}); }

DTensor distributed() { return DTensor(number(1), DeviceMesh::make({1}, 0), {Placement::shard(0)}, {2}); }

std::vector<std::string> keys_of(const FlatStateDict& flat) {
  std::vector<std::string> keys;
  for (const auto& [key, leaf] : flat) keys.push_back(key);
  return keys;
}

using Keys = std::vector<std::string>;

TEST(Flatten, OpensMappingsAndListsOfTensors) {
  const Dict state = {
      {"model", Dict{{"w", number(1)}, {"deep", Dict{{"n", 3}}}}},
      {"tensors", List{Value(number(2)), Value(3)}},
      {"dicts", List{Value(1), Value(Dict{{"x", 1}})}},
      {"dtensors", List{Value(distributed())}},
      {"sharded", List{Value(sharded())}},
      {"nested", List{Value(List{Value(number(3))}), Value(List{Value(1)})}},
      {"plain", List{1, 2}},
      {"plain nested", List{Value(List{1}), Value(List())}},
      {"tuple", Tuple{Value(number(4)), Value(Dict{{"x", 1}})}},
      {"tuple in list", List{Value(Tuple{Value(number(5))})}},
      {std::int64_t{5}, 6},
  };
  const auto flat = flatten_state_dict(state);
  EXPECT_EQ(keys_of(flat),
            (Keys{"model.w", "model.deep.n", "tensors.0", "tensors.1", "dicts.0", "dicts.1.x", "dtensors.0",
                  "sharded.0", "nested.0.0", "nested.1", "plain", "plain nested", "tuple", "tuple in list", "5"}));
  EXPECT_EQ(describe(flat.find("dicts.1.x")->path), "['dicts'][1]['x']");
  EXPECT_EQ(flat.find("5")->path, (Path{PathItem::dict_key(Key(std::int64_t{5}))}));
  EXPECT_TRUE(flat.find("model.w")->value.as_tensor().is_same(state.at("model").as_dict().at("w").as_tensor()));
}

TEST(Flatten, KeepsEmptyContainersAsLeaves) {
  const Dict state = {
      {"d", Dict()}, {"l", List()}, {"t", Tuple()}, {"deep", Dict{{"d", Dict()}}}, {"in list", List{Value(Dict())}}};
  const auto flat = flatten_state_dict(state);
  EXPECT_EQ(keys_of(flat), (Keys{"d", "l", "t", "deep.d", "in list.0"}));
  EXPECT_TRUE(flat.find("in list.0")->value.is_dict());
  EXPECT_EQ(first_difference(unflatten_state_dict(flat), state), "");
  EXPECT_EQ(flatten_state_dict(Dict()).size(), 0u);
}

TEST(Flatten, KeepsMappingsWithoutTensorsWholeByTheOldRule) {
  const Dict state = {
      {"plain", Dict{{"lr", 0.1}, {"betas", Tuple{0.9, 0.999}}}},
      {"mixed", Dict{{"t", number(1)}, {"lr", 0.1}, {"sub", Dict{{"x", 1}}}}},
      {"deep", Dict{{"sub", Dict{{"l", List{Value(number(2))}}}}}},
      {"dicts", List{Value(Dict{{"x", 1}})}},
      {"empty", Dict()},
  };
  EXPECT_EQ(keys_of(flatten_state_dict(state, FlattenRule::kUpTo2_3)),
            (Keys{"plain", "mixed.t", "mixed.lr", "mixed.sub", "deep.sub.l.0", "dicts", "empty"}));
  EXPECT_EQ(keys_of(flatten_state_dict(state)), (Keys{"plain.lr", "plain.betas", "mixed.t", "mixed.lr", "mixed.sub.x",
                                                      "deep.sub.l.0", "dicts.0.x", "empty"}));
}

TEST(Flatten, LeavesTheTopLevelAloneIfAsked) {
  const Dict state = {{"model", Dict{{"w", number(1)}}}, {"a.b", List{Value(number(1))}}, {std::int64_t{1}, number(1)}};
  EXPECT_EQ(keys_of(flatten_state_dict(state, FlattenRule::kTopLevel)), (Keys{"model", "a.b", "1"}));
}

TEST(Flatten, LeavesStatefulObjectsAlone) {
  class Nothing : public Stateful {
   public:
    Dict state_dict() override { return {}; }
    void load_state_dict(const Dict&) override {}
  };
  const Dict state = {{"s", std::make_shared<Nothing>()}, {"l", List{Value(std::make_shared<Nothing>())}}};
  EXPECT_EQ(keys_of(flatten_state_dict(state)), (Keys{"s", "l"}));
}

TEST(Flatten, O17_NamesAFlatKeyThatTwoPathsHave) {
  const auto kind = ErrorKind::kKey;
  expect_error(kind, "'a.b' is the flat key of ['a']['b'] and of ['a.b']",
               [] { flatten_state_dict({{"a", Dict{{"b", number(1)}}}, {"a.b", number(2)}}); });
  expect_error(kind, "'a.b.c' is the flat key of ['a']['b']['c'] and of ['a.b']['c']", [] {
    flatten_state_dict({{"a", Dict{{"b", Dict{{"c", number(1)}}}}}, {"a.b", Dict{{"c", number(2)}}}});
  });
  expect_error(kind, "'l.0' is the flat key of ['l'][0] and of ['l.0']",
               [] { flatten_state_dict({{"l", List{Value(number(1))}}, {"l.0", number(2)}}); });
  const Dict alone = {{"a.b", Dict{{"c", number(1)}}}};
  EXPECT_EQ(first_difference(unflatten_state_dict(flatten_state_dict(alone)), alone), "");
}

TEST(Flatten, NamesAllDoubledKeysInOneError) {
  const Dict state = {{"a", Dict{{"b", Dict{{"c", 1}}}, {"b.c", 2}}},
                      {"a.b", Dict{{"c", 3}}},
                      {std::int64_t{1}, 4},
                      {"1", 5},
                      {"x", 6}};
  const auto flatten = [&] { flatten_state_dict(state); };
  expect_error(ErrorKind::kKey, "'a.b.c' is the flat key of ['a']['b']['c'] and of ['a']['b.c'] and of ['a.b']['c']",
               flatten);
  expect_error(ErrorKind::kKey, "'1' is the flat key of [1] and of ['1']", flatten);
}

Dict nested_dicts(int depth) {
  Value value = 1;
  for (int i = 0; i < depth; ++i) value = Value(Dict{{"k", std::move(value)}});
  return value.as_dict();
}

Value nested_lists(int depth, Value value) {
  for (int i = 0; i < depth; ++i) {
    List list;
    list.push_back(std::move(value));
    value = std::move(list);
  }
  return value;
}

TEST(Flatten, BoundsTheDepth) {
  const auto kind = ErrorKind::kInvalidArgument;
  EXPECT_EQ(flatten_state_dict(nested_dicts(500)).begin()->second.path.size(), 500u);
  expect_error(kind, "nested more than 500 deep below ['k']['k']['k']", [] { flatten_state_dict(nested_dicts(501)); });
  EXPECT_EQ(flatten_state_dict({{"l", nested_lists(499, number(1))}}).size(), 1u);
  expect_error(kind, "500 deep below ['l']", [] { flatten_state_dict({{"l", nested_lists(500, number(1))}}); });
  expect_error(kind, "500 deep below ['l']", [] { flatten_state_dict({{"l", nested_lists(500, 1)}}); });
  for (FlattenRule rule : {FlattenRule::kCurrent, FlattenRule::kUpTo2_3}) {
    expect_error(kind, "500 deep", [&] { flatten_state_dict(nested_dicts(600), rule); });
  }
  EXPECT_EQ(flatten_state_dict(nested_dicts(600), FlattenRule::kTopLevel).size(), 1u);
}

TEST(VisitLeaves, VisitsInOrderAndPassesErrorsOn) {
  const Dict state = {{"b", Dict{{"y", 1}, {"x", 2}}}, {"a", 3}};
  std::string seen;
  visit_leaves(state, [&](const Path& path, const Value& value) {
    seen += describe(path) + "=" + std::to_string(value.as_int()) + " ";
  });
  EXPECT_EQ(seen, "['b']['y']=1 ['b']['x']=2 ['a']=3 ");
  int count = 0;
  EXPECT_THROW(visit_leaves(state,
                            [&](const Path&, const Value&) {
                              ++count;
                              throw std::runtime_error("stop");
                            }),
               std::runtime_error);
  EXPECT_EQ(count, 1);
}

TEST(Unflatten, NamesTheFlatKeyOfABadPath) {
  const auto one = [](std::vector<std::pair<std::string, Path>> leaves) {
    FlatStateDict flat;
    for (auto& [key, path] : leaves) flat.insert(key, {path, Value(1)});
    return [flat] { unflatten_state_dict(flat); };
  };
  const auto a = PathItem::dict_key("a");
  const auto b = PathItem::dict_key("b");
  expect_error(ErrorKind::kCorruptData, "flat key 'huge'", one({{"huge", {a, PathItem::list_index(1'000'000'000)}}}));
  expect_error(ErrorKind::kCorruptData, "flat key 'none'", one({{"none", {}}}));
  expect_error(ErrorKind::kType, "flat key 'second'", one({{"first", {a}}, {"second", {a, b}}}));
  expect_error(ErrorKind::kKey, "['a'] would replace another value, a dict", one({{"first", {a, b}}, {"second", {a}}}));
  expect_error(ErrorKind::kKey, "flat key 'second'", one({{"first", {a}}, {"second", {a}}}));
  expect_error(ErrorKind::kType, "needs a list", one({{"first", {a, b}}, {"second", {a, PathItem::list_index(0)}}}));
}

TEST(Unflatten, FillsListsInAnyOrder) {
  FlatStateDict flat;
  const auto l = PathItem::dict_key("l");
  flat.insert("l.2", {{l, PathItem::list_index(2)}, Value("c")});
  flat.insert("l.0", {{l, PathItem::list_index(0)}, Value()});
  flat.insert("l.1", {{l, PathItem::list_index(1), PathItem::dict_key("x")}, Value(1)});
  const Dict expected = {{"l", List{Value(), Value(Dict{{"x", 1}}), Value("c")}}};
  EXPECT_EQ(first_difference(unflatten_state_dict(flat), expected), "");
}

/// Makes nested values at random, with all that makes names awkward.
class RandomState {
 public:
  explicit RandomState(unsigned seed) : random_(seed) {}

  Dict dict(int depth) {
    Dict dict;
    for (int i = below(5); i > 0; --i) dict[key()] = value(depth - 1);
    return dict;
  }

 private:
  int below(int end) { return static_cast<int>(random_() % static_cast<unsigned>(end)); }

  Key key() {
    if (below(4) == 0) return static_cast<std::int64_t>(below(6)) - 2;
    static const char* const kNames[] = {"a",   "b", "c", "a.b", "0", "1", "-1", "", ".", "weight", "layers.0.weight",
                                         "it's"};
    return std::string(kNames[below(12)]);
  }

  Value value(int depth) {
    switch (below(depth > 0 ? 12 : 8)) {
      case 0:
        return Value();
      case 1:
        return below(2) == 0;
      case 2:
        return below(1000);
      case 3:
        return below(1000) / 7.0;
      case 4:
        return "text";
      case 5:
        return number(below(100));
      case 6:
        return distributed();
      case 7:
        return sharded();
      case 8:
        return elements<Tuple>(depth);
      case 9:
      case 10:
        return elements<List>(depth);
      default:
        return dict(depth);
    }
  }

  template <typename Sequence>
  Value elements(int depth) {
    Sequence sequence;
    for (int i = below(4); i > 0; --i) sequence.push_back(value(depth - 1));
    return sequence;
  }

  std::mt19937 random_;
};

TEST(Flatten, ComesBackAsItWasForAnyNestedValue) {
  int round_trips = 0;
  int doubled = 0;
  RandomState random(20240917);
  for (int i = 0; i < 3000; ++i) {
    const Dict state = random.dict(4);
    for (FlattenRule rule : {FlattenRule::kCurrent, FlattenRule::kUpTo2_3, FlattenRule::kTopLevel}) {
      try {
        const auto flat = flatten_state_dict(state, rule);
        ASSERT_EQ(first_difference(unflatten_state_dict(flat), state), "") << "state " << i;
        ++round_trips;
      } catch (const Error& error) {
        ASSERT_EQ(error.kind(), ErrorKind::kKey) << error.what();
        ++doubled;
      }
    }
  }
  EXPECT_GT(round_trips, 5000);
  EXPECT_GT(doubled, 50);
}

}  // namespace
}  // namespace dcp

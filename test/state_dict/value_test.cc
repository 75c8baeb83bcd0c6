#include "torch_dcp/state_dict/value.h"

#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <limits>

#include "test/support/expect_error.h"
#include "torch_dcp/state_dict/stateful.h"

namespace dcp {
namespace {

using test::expect_error;

class Counter : public Stateful {
 public:
  Dict state_dict() override { return {{"count", count_}}; }
  void load_state_dict(const Dict& state) override { count_ = state.at("count").as_int(); }

 private:
  std::int64_t count_ = 3;
};

DTensor replicated(at::Tensor tensor) {
  const Sizes sizes(tensor.sizes());
  return DTensor(std::move(tensor), DeviceMesh::make({1}, 0), {Placement::replicate()}, sizes);
}

TEST(Value, HasTheKindOfWhatItHolds) {
  const at::Tensor ones = at::ones({2});
  EXPECT_EQ(Value().kind(), ValueKind::kNone);
  EXPECT_EQ(Value(None()).kind(), ValueKind::kNone);
  EXPECT_EQ(Value(true).kind(), ValueKind::kBool);
  EXPECT_EQ(Value(1).kind(), ValueKind::kInt);
  EXPECT_EQ(Value(std::uint8_t{1}).kind(), ValueKind::kInt);
  EXPECT_EQ(Value(std::size_t{1}).kind(), ValueKind::kInt);
  EXPECT_EQ(Value(1.5f).kind(), ValueKind::kDouble);
  EXPECT_EQ(Value(1.5).kind(), ValueKind::kDouble);
  EXPECT_EQ(Value("text").kind(), ValueKind::kString);
  EXPECT_EQ(Value(std::string("text")).kind(), ValueKind::kString);
  EXPECT_EQ(Value(Bytes{1, 2}).kind(), ValueKind::kBytes);
  EXPECT_EQ(Value(ones).kind(), ValueKind::kTensor);
  EXPECT_EQ(Value(replicated(ones)).kind(), ValueKind::kDTensor);
  EXPECT_EQ(Value(ShardedTensor({2}, at::kFloat, {})).kind(), ValueKind::kShardedTensor);
  EXPECT_EQ(Value(Dict()).kind(), ValueKind::kDict);
  EXPECT_EQ(Value(List()).kind(), ValueKind::kList);
  EXPECT_EQ(Value(Tuple()).kind(), ValueKind::kTuple);
  EXPECT_EQ(Value(std::make_shared<Counter>()).kind(), ValueKind::kStateful);
  EXPECT_EQ(Value(Opaque{nullptr, "collections.deque"}).kind(), ValueKind::kOpaque);
}

TEST(Value, TellsTensorsAndContainers) {
  const at::Tensor ones = at::ones({2});
  EXPECT_TRUE(Value(ones).is_tensor());
  EXPECT_TRUE(Value(ones).is_tensor_like());
  EXPECT_TRUE(Value(replicated(ones)).is_tensor_like());
  EXPECT_FALSE(Value(replicated(ones)).is_tensor());
  EXPECT_TRUE(Value(ShardedTensor({2}, at::kFloat, {})).is_tensor_like());
  EXPECT_FALSE(Value(1).is_tensor_like());
  EXPECT_TRUE(Value(Dict()).is_container());
  EXPECT_TRUE(Value(List()).is_container());
  EXPECT_TRUE(Value(Tuple()).is_container());
  EXPECT_FALSE(Value("text").is_container());
  EXPECT_TRUE(Value().is_none());
  EXPECT_TRUE(Value(Dict()).is_dict());
  EXPECT_TRUE(Value(List()).is_list());
}

TEST(Value, GivesBackWhatItHolds) {
  const at::Tensor ones = at::ones({2});
  EXPECT_TRUE(Value(true).as_bool());
  EXPECT_EQ(Value((std::int64_t{1} << 53) + 1).as_int(), (std::int64_t{1} << 53) + 1);
  EXPECT_EQ(Value(std::int64_t{-5}).as_int(), -5);
  EXPECT_EQ(Value(0.1).as_double(), 0.1);
  EXPECT_EQ(Value(7).as_double(), 7.0);
  EXPECT_EQ(Value("text").as_string(), "text");
  EXPECT_EQ(Value(Bytes{1, 2}).as_bytes(), (Bytes{1, 2}));
  EXPECT_TRUE(Value(ones).as_tensor().is_same(ones));
  EXPECT_TRUE(Value(replicated(ones)).as_dtensor().local().is_same(ones));
  EXPECT_EQ(Value(ShardedTensor({2}, at::kFloat, {})).as_sharded_tensor().global_sizes(), (Sizes{2}));
  EXPECT_EQ(Value(Dict{{"a", 1}}).as_dict().at("a").as_int(), 1);
  EXPECT_EQ(Value(List{1, 2}).as_list().size(), 2u);
  EXPECT_EQ(Value(Tuple{1, 2, 3}).as_tuple().size(), 3u);
  EXPECT_EQ(Value(std::make_shared<Counter>()).as_stateful()->state_dict().at("count").as_int(), 3);
  EXPECT_EQ(Value(Opaque{nullptr, "a.B"}).as_opaque().type_name, "a.B");
}

TEST(Value, TurnsAnyKindOfTensorIntoATensorLikeAndBack) {
  const at::Tensor ones = at::ones({2});
  for (const Value& value : {Value(ones), Value(replicated(ones)), Value(ShardedTensor({2}, at::kFloat, {}))}) {
    EXPECT_EQ(Value(value.as_tensor_like()).kind(), value.kind());
    EXPECT_EQ(global_sizes(value.as_tensor_like()), (Sizes{2}));
  }
  expect_error(ErrorKind::kType, "expected a value of kind tensor of any kind, got int",
               [] { Value(1).as_tensor_like(); });
}

TEST(Value, RefusesAnotherKind) {
  const auto kind = ErrorKind::kType;
  expect_error(kind, "expected a value of kind bool, got int", [] { Value(1).as_bool(); });
  expect_error(kind, "kind int, got bool", [] { Value(true).as_int(); });
  expect_error(kind, "kind int, got double", [] { Value(1.0).as_int(); });
  expect_error(kind, "kind double, got bool", [] { Value(true).as_double(); });
  expect_error(kind, "kind string, got bytes", [] { Value(Bytes{1}).as_string(); });
  expect_error(kind, "kind bytes, got string", [] { Value("a").as_bytes(); });
  expect_error(kind, "kind tensor, got None", [] { Value().as_tensor(); });
  expect_error(kind, "kind DTensor, got tensor", [] { Value(at::Tensor()).as_dtensor(); });
  expect_error(kind, "kind ShardedTensor, got list", [] { Value(List()).as_sharded_tensor(); });
  expect_error(kind, "kind dict, got list", [] { Value(List()).as_dict(); });
  expect_error(kind, "kind list, got tuple", [] { Value(Tuple()).as_list(); });
  expect_error(kind, "kind tuple, got dict", [] { Value(Dict()).as_tuple(); });
  expect_error(kind, "kind stateful object, got opaque object", [] { Value(Opaque()).as_stateful(); });
  expect_error(kind, "kind opaque object, got ShardedTensor",
               [] { Value(ShardedTensor({}, at::kFloat, {})).as_opaque(); });
}

TEST(Value, RefusesIntegersBeyond64BitsSigned) {
  EXPECT_EQ(Value(std::uint64_t{1} << 62).as_int(), std::int64_t{1} << 62);
  expect_error(ErrorKind::kInvalidArgument, "9223372036854775808 does not fit", [] { Value(std::uint64_t{1} << 63); });
}

TEST(Value, DoesNotTakePointersForBools) {
  EXPECT_FALSE((std::is_constructible_v<Value, int*>));
  EXPECT_FALSE((std::is_constructible_v<Value, std::nullptr_t>));
  EXPECT_TRUE((std::is_constructible_v<Value, char*>));
}

TEST(Value, CopiesContainersDeepAndTensorsShallow) {
  const at::Tensor ones = at::ones({2});
  const Value original = Dict{{"t", ones}, {"l", List{1}}};
  Value copy = original;
  copy.as_dict().at("l").as_list().push_back(2);
  EXPECT_EQ(original.as_dict().at("l").as_list().size(), 1u);
  EXPECT_TRUE(copy.as_dict().at("t").as_tensor().is_same(ones));
}

TEST(Value, IsSmallEnoughForLongLists) { EXPECT_LE(sizeof(Value), 64u); }

TEST(Dict, KeepsTheOrderOfInsertion) {
  Dict dict = {{"b", 1}, {"a", 2}, {std::int64_t{7}, 3}};
  dict["c"] = 4;
  dict["b"] = 5;
  dict.insert_or_assign("a", 6);
  std::vector<std::string> keys;
  for (const auto& [key, value] : dict) keys.push_back(to_string(key));
  EXPECT_EQ(keys, (std::vector<std::string>{"b", "a", "7", "c"}));
  EXPECT_EQ(dict.at("b").as_int(), 5);
  EXPECT_EQ(dict.at("a").as_int(), 6);
  EXPECT_EQ(dict.size(), 4u);
}

TEST(Dict, KeepsIntegerAndStringKeysApart) {
  Dict dict = {{std::int64_t{1}, "int"}, {"1", "string"}};
  EXPECT_EQ(dict.at(std::int64_t{1}).as_string(), "int");
  EXPECT_EQ(dict.at("1").as_string(), "string");
  EXPECT_EQ(to_string(Key(std::int64_t{-1})), "-1");
}

TEST(Dict, FindsAndErases) {
  Dict dict = {{"a", 1}, {"b", 2}};
  EXPECT_TRUE(dict.contains("a"));
  EXPECT_EQ(dict.find("z"), nullptr);
  EXPECT_EQ(std::as_const(dict).find("b")->as_int(), 2);
  EXPECT_TRUE(dict.erase("a"));
  EXPECT_FALSE(dict.erase("a"));
  EXPECT_EQ(dict.begin()->second.as_int(), 2);
  EXPECT_TRUE(dict["new"].is_none());
  expect_error(ErrorKind::kKey, "no key 'z'", [&] { dict.at("z"); });
  expect_error(ErrorKind::kKey, "no key 'z'", [&] { std::as_const(dict).at("z"); });
}

TEST(Dict, MayTakeAPartOfItself) {
  Dict copied = {{"inner", Dict{{"x", 1}}}};
  copied = copied.at("inner").as_dict();
  EXPECT_EQ(copied.at("x").as_int(), 1);
  Dict moved = {{"inner", Dict{{"x", 2}}}};
  moved = std::move(moved.at("inner").as_dict());
  EXPECT_EQ(moved.at("x").as_int(), 2);
  Dict left = {{"a", 1}};
  const Dict right = std::move(left);
  left = right;
  EXPECT_EQ(left.at("a").as_int(), 1);
}

TEST(Dict, TakesAPointerToAStateful) {
  Dict dict;
  const auto counter = std::make_shared<Counter>();
  dict["counter"] = counter;
  EXPECT_EQ(dict.at("counter").as_stateful().get(), counter.get());
}

}  // namespace
}  // namespace dcp

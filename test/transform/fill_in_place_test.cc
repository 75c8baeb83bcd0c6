#include "torch_dcp/transform/fill_in_place.h"

#include <algorithm>
#include <stdexcept>

#include "test/support/expect_error.h"
#include "test/transform/transform_support.h"
#include "torch_dcp/transform/clone.h"

// Names begin with the lines of the checklist that they cover.

namespace dcp {
namespace {

using namespace test;  // NOLINT: the support's names

using Keys = std::vector<std::string>;

DTensor on(const at::Tensor& whole, Sizes mesh, Placements placements, int rank = 1) {
  return placed(whole, std::move(mesh), std::move(placements), rank);
}

DTensor rows_of(const at::Tensor& whole, int rank = 1) { return on(whole, {2}, {Placement::shard(0)}, rank); }

ShardedTensor shards_of(const at::Tensor& whole) {
  return ShardedTensor(Sizes(whole.sizes()), whole.scalar_type(),
                       {{whole.narrow(0, 0, 1).clone(), {0}}, {whole.narrow(0, 2, 2).clone(), {2}}});
}

Keys keys_of(const Dict& dict) {
  Keys keys;
  for (const auto& [key, value] : dict) keys.push_back(to_string(key));
  return keys;
}

/// Counts its states, and refuses them if told to.
class Counting final : public Stateful {
 public:
  Dict state_dict() override { return {{"n", number}}; }
  void load_state_dict(const Dict& state) override {
    if (refuses && throws_an_int) throw 42;
    if (refuses) throw std::runtime_error("it refuses");
    ++given;
    number = state.at("n").as_int();
  }

  std::int64_t number = 0;
  int given = 0;
  bool refuses = false;
  bool throws_an_int = false;
};

TEST(FillInPlace, B20_B23_B24_TensorsStayAndGetTheBytes) {
  Dict live = {{"w", pattern({2, 3}).t()},
               {"deep", Dict{{"inner", Dict{{"t", pattern({2})}, {"n", 1}}}, {std::int64_t{7}, pattern({1})}}},
               {"flag", false},
               {"rate", 0.5}};
  const Dict before = live;
  const Dict source = {
      {"rate", 0.25},
      {"w", counted({3, 2})},
      {"deep", Dict{{std::int64_t{7}, counted({1}) + 3}, {"inner", Dict{{"n", 2}, {"t", counted({2})}}}}},
      {"flag", true}};
  const FillReport report = fill_in_place(live, source);
  expect_same(live,
              Dict{{"w", counted({3, 2})},
                   {"deep", Dict{{"inner", Dict{{"t", counted({2})}, {"n", 2}}}, {std::int64_t{7}, counted({1}) + 3}}},
                   {"flag", true},
                   {"rate", 0.25}});
  EXPECT_TRUE(live.at("w").as_tensor().is_same(before.at("w").as_tensor()));
  EXPECT_TRUE(live.at("deep").as_dict().at("inner").as_dict().at("t").as_tensor().is_same(
      before.at("deep").as_dict().at("inner").as_dict().at("t").as_tensor()));
  EXPECT_EQ(report.copied, (Keys{"w", "deep.7", "deep.inner.t"}));
  EXPECT_EQ(report.assigned, (Keys{"rate", "deep.inner.n", "flag"}));
  EXPECT_EQ(report, (FillReport{.copied = report.copied, .assigned = report.assigned}));
}

TEST(FillInPlace, B21_NewKeysAreDeepCopies) {
  const at::Tensor tied = counted({4});
  const Dict source = {{"new", Dict{{"a", tied}, {"l", List{Value(tied.narrow(0, 1, 2))}}}},
                       {"d", Dict{{"b", tied}, {"x", 1}, {"e", Dict{{"late", 2}}}}},
                       {"last", "text"}};
  Dict live = {{"only here", 5}, {"d", Dict{{"x", 0}, {"mine", pattern({1})}, {"e", Dict{{"early", 1}}}}}};
  const FillReport report = fill_in_place(live, source);
  expect_same(live,
              Dict{{"only here", 5},
                   {"d", Dict{{"x", 1}, {"mine", pattern({1})}, {"e", Dict{{"early", 1}, {"late", 2}}}, {"b", tied}}},
                   {"new", source.at("new")},
                   {"last", "text"}});
  Keys added = report.added;
  std::sort(added.begin(), added.end());
  EXPECT_EQ(added, (Keys{"d.b", "d.e.late", "last", "new"}));
  EXPECT_EQ(report.untouched, (Keys{"d.e.early", "d.mine", "only here"}));
  const at::Tensor& a = live.at("new").as_dict().at("a").as_tensor();
  EXPECT_FALSE(a.is_alias_of(tied));
  EXPECT_TRUE(a.is_same(live.at("d").as_dict().at("b").as_tensor())) << "one tensor stays one";
  EXPECT_TRUE(a.is_alias_of(live.at("new").as_dict().at("l").as_list()[0].as_tensor())) << "views stay views";
}

TEST(FillInPlace, B22_LocalPartsOfTheSameLayout) {
  const at::Tensor whole = counted({5, 2});
  Dict live = {{"rows", rows_of(pattern({5, 2}))}, {"partial", on(pattern({3}), {2}, {Placement::replicate()})}};
  live["partial"] = DTensor(pattern({3}), DeviceMesh::make({2}, 1), {Placement::partial()}, {3});
  const Dict before = live;
  fill_in_place(live, {{"rows", rows_of(whole)},
                       {"partial", DTensor(counted({3}), DeviceMesh::make({2}, 1), {Placement::partial()}, {3})}});
  expect_same(live.at("rows"), rows_of(whole));
  expect_same(live.at("partial").as_dtensor().local(), counted({3}));
  EXPECT_TRUE(live.at("rows").as_dtensor().local().is_same(before.at("rows").as_dtensor().local()));
}

TEST(FillInPlace, B22_OtherLayoutsAreCutWhereThisRankHasTheElements) {
  const at::Tensor whole = counted({6, 4});
  const std::vector<Value> sources = {
      whole, on(whole, {2}, {Placement::replicate()}), on(whole, {4}, {Placement::replicate()}),
      ShardedTensor({6, 4}, at::kFloat,
                    {{whole.narrow(0, 0, 2).clone(), {0, 0}}, {whole.narrow(0, 2, 4).clone(), {2, 0}}})};
  const auto blanks = [&] {
    const at::Tensor blank = pattern({6, 4});
    return std::vector<Value>{
        blank,
        on(blank, {2}, {Placement::shard(0)}),
        on(blank, {2}, {Placement::shard(1)}),
        on(blank, {2, 2}, {Placement::strided_shard(0, 2), Placement::shard(0)}, 2),
        on(blank, {2, 2}, {Placement::shard(1), Placement::replicate()}, 3),
        ShardedTensor({6, 4}, at::kFloat, {{pattern({1, 3}), {4, 1}}, {pattern({2, 2}), {0, 2}}})};
  };
  const auto expected_of = [&](const Value& blank) -> Value {
    if (blank.is_tensor()) return whole;
    if (blank.kind() == ValueKind::kDTensor) {
      const DTensor& tensor = blank.as_dtensor();
      return DTensor::distribute(whole, tensor.mesh_ptr(), tensor.placements());
    }
    return ShardedTensor({6, 4}, at::kFloat,
                         {{whole.narrow(0, 4, 1).narrow(1, 1, 3).clone(), {4, 1}},
                          {whole.narrow(0, 0, 2).narrow(1, 2, 2).clone(), {0, 2}}});
  };
  for (const Value& source : sources) {
    for (Value& blank : blanks()) {
      const Value before = blank;
      Dict live = {{"k", blank}};
      const FillReport report = fill_in_place(live, {{"k", source}});
      expect_same(live.at("k"), expected_of(blank));
      EXPECT_EQ(report.copied, Keys{"k"});
      EXPECT_EQ(live.at("k").kind(), before.kind());
      expect_same(before, expected_of(blank));  // The same memory.
    }
  }
  // From other rows that this rank has.
  Dict narrower = {{"k", on(pattern({6, 4}), {2, 2}, {Placement::shard(0), Placement::shard(1)}, 3)}};
  fill_in_place(narrower, {{"k", rows_of(whole)}});
  expect_same(narrower.at("k"), on(whole, {2, 2}, {Placement::shard(0), Placement::shard(1)}, 3));
}

TEST(FillInPlace, B22_B28_LayoutsThatCannotBeCutAreNamed) {
  const at::Tensor whole = counted({4, 2});
  const auto quantized = at::quantize_per_tensor(counted({4}), 1, 0, at::kQInt8);
  const Dict source = {{"placement", rows_of(whole)},
                       {"mesh", on(whole, {4}, {Placement::shard(0)})},
                       {"shards", shards_of(counted({4}))},
                       {"partial", DTensor(counted({3}), DeviceMesh::make({2}, 1), {Placement::partial()}, {3})},
                       {"global", rows_of(whole)},
                       {"flat", whole},
                       {"quantized", quantized},
                       {"sparse", whole.to_sparse()},
                       {"undefined", at::Tensor()},
                       {"dtype", ShardedTensor({4}, at::kDouble, {})},
                       {"fine", counted({2})}};
  Dict live = {{"placement", on(pattern({4, 2}), {2}, {Placement::shard(1)})},
               {"mesh", rows_of(pattern({4, 2}))},
               {"shards", ShardedTensor({4}, at::kFloat, {{pattern({2}), {1}}})},
               {"partial", pattern({3})},
               {"global", rows_of(pattern({5, 2}))},
               {"flat", rows_of(pattern({8}))},
               {"quantized", rows_of(pattern({4}))},
               {"sparse", rows_of(pattern({4, 2}))},
               {"undefined", rows_of(pattern({4}))},
               {"dtype", ShardedTensor({4}, at::kFloat, {})},
               {"fine", pattern({2})}};
  for (const bool strict : {true, false}) {
    for (const char* text :
         {"fill of a state dict, 10 faults:",
          "key 'placement': the source is a DTensor [Shard(0)] on the mesh [2] with [2, 0] + [2, 2] on this rank, the "
          "target a DTensor [Shard(1)] on the mesh [2] with [0, 1] + [4, 1], and no elements are sent between ranks",
          "key 'mesh': the source is a DTensor [Shard(0)] on the mesh [4] with [1, 0] + [1, 2]",
          "key 'shards': the source is a ShardedTensor with [0] + [1], [2] + [2] on this rank, the target a "
          "ShardedTensor with [1] + [2]",
          "key 'partial': the parts of a Partial DTensor are no parts of a whole",
          "key 'global': the source has shape [4, 2], the target [5, 2]",
          "key 'flat': the source has shape [4, 2], the target [8]",
          "key 'quantized': a quantized tensor cannot be copied into another layout",
          "key 'sparse': a tensor of layout Sparse cannot be copied",
          "key 'undefined': the tensor is undefined in the source only",
          "key 'dtype': the given tensor is float64, the current one float32"}) {
      expect_error(ErrorKind::kKey, text, [&] { fill_in_place(live, source, {.strict = strict}); });
    }
  }
  EXPECT_TRUE(is_pattern(live.at("fine").as_tensor())) << "nothing was copied";
}

TEST(FillInPlace, B23_FaultsAreNamedTogetherBeforeAnythingChanges) {
  const Dict source = {{"a", counted({2})},      {"shape", counted({2, 3})}, {"dtype", counted({2}, at::kDouble)},
                       {"row", counted({2, 2})}, {"meta", counted({2})},     {"n", 1}};
  Dict live = {{"a", pattern({2})},
               {"shape", pattern({6})},
               {"dtype", pattern({2})},
               {"row", at::zeros({1, 2}).expand({2, 2})},
               {"meta", at::empty({2}, at::kMeta)},
               {"n", 0}};
  for (const char* text : {"4 faults", "key 'shape': the given tensor has shape [2, 3], the current one [6]",
                           "key 'dtype': the given tensor is float64, the current one float32",
                           "key 'row': a tensor that overlaps itself cannot be written",
                           "key 'meta': a tensor on the meta device cannot be copied"}) {
    expect_error(ErrorKind::kShape, text, [&] { fill_in_place(live, source); });
  }
  EXPECT_TRUE(is_pattern(live.at("a").as_tensor()));
  EXPECT_EQ(live.at("n").as_int(), 0);
}

TEST(FillInPlace, B23_ConvertsAsThePolicyAllows) {
  const Dict source = {{"half", counted({3}, at::kHalf)}, {"shards", shards_of(counted({4}, at::kBFloat16))}};
  const auto fresh = [] { return Dict{{"half", pattern({3})}, {"shards", shards_of(pattern({4}))}}; };
  Dict live = fresh();
  EXPECT_EQ(fill_in_place(live, source).converted,
            (std::vector<DtypeConversion>{{"half", "float16", "float32"}, {"shards", "bfloat16", "float32"}}));
  expect_same(live, Dict{{"half", counted({3})}, {"shards", shards_of(counted({4}))}});
  live = fresh();
  expect_error(ErrorKind::kType, "key 'shards'",
               [&] { fill_in_place(live, source, {.dtype_policy = DtypePolicy::kExact}); });
  Dict narrow = {{"half", pattern({3}, at::kInt)}};
  fill_in_place(narrow, {{"half", counted({3}, at::kHalf)}}, {.dtype_policy = DtypePolicy::kAny});
  expect_same(narrow.at("half"), counted({3}, at::kInt));
}

TEST(FillInPlace, B25_ListsOfTheSameLengthElementByElement) {
  Dict live = {{"l", List{Value(pattern({2})), Value(1), Value(Dict{{"t", pattern({1})}}), Value(List{Value("a")})}},
               {"t", Tuple{Value(pattern({3})), Value(0.5)}}};
  const at::Tensor first = live.at("l").as_list()[0].as_tensor();
  const at::Tensor in_tuple = live.at("t").as_tuple()[0].as_tensor();
  const Dict source = {
      {"l", List{Value(counted({2})), Value(2), Value(Dict{{"t", counted({1}) + 9}}), Value(List{Value("b")})}},
      {"t", Tuple{Value(counted({3})), Value(0.25)}}};
  const FillReport report = fill_in_place(live, source);
  expect_same(live, source);
  EXPECT_TRUE(live.at("l").as_list()[0].as_tensor().is_same(first));
  EXPECT_TRUE(live.at("t").as_tuple()[0].as_tensor().is_same(in_tuple));
  EXPECT_EQ(report.copied, (Keys{"l.0", "l.2.t", "t.0"}));
  Dict shorter = {{"l", List{Value(counted({2})), Value(pattern({2}))}}};
  expect_error(ErrorKind::kShape, "key 'l.1': the given tensor has shape [3], the current one [2]",
               [&] { fill_in_place(shorter, {{"l", List{Value(counted({2})), Value(counted({3}))}}}); });
}

TEST(FillInPlace, B25_AListOfAnotherLengthIsReplacedUnlessStrict) {
  const at::Tensor inside = counted({2});
  const Dict source = {{"d", Dict{{"l", List{Value(inside), Value(2)}}, {"t", Tuple{}}}}};
  Dict live = {{"d", Dict{{"l", List{Value(pattern({2}))}}, {"t", Tuple{Value(1)}}}}};
  const Dict before = live;
  for (const char* text : {"2 faults", "key 'd.l': the source has 2 elements, the target 1",
                           "key 'd.t': the source has 0 elements, the target 1"}) {
    expect_error(ErrorKind::kKey, text, [&] { fill_in_place(live, source); });
  }
  expect_same(live, before);
  const FillReport report = fill_in_place(live, source, {.strict = false});
  expect_same(live, source);
  EXPECT_EQ(report, (FillReport{.replaced = {"d.l", "d.t"}}));
  EXPECT_FALSE(live.at("d").as_dict().at("l").as_list()[0].as_tensor().is_alias_of(inside));
}

TEST(FillInPlace, B26_ObjectsAreGivenTheirStates) {
  const auto top = std::make_shared<Counting>();
  const auto deep = std::make_shared<Counting>();
  const auto from = std::make_shared<Counting>();
  from->number = 8;
  Dict live = {{"z", top}, {"d", Dict{{"l", List{Value(deep)}}}}, {"plain", Dict{{"n", 0}}}, {"w", pattern({2})}};
  const Dict source = {
      {"w", counted({2})}, {"z", Dict{{"n", 5}}}, {"d", Dict{{"l", List{Value(from)}}}}, {"plain", from}};
  const FillReport report = fill_in_place(live, source);
  EXPECT_EQ(top->number, 5);
  EXPECT_EQ(deep->number, 8);
  EXPECT_EQ(live.at("z").as_stateful(), top);
  expect_same(live.at("plain"), Dict{{"n", 8}});
  EXPECT_EQ(report.loaded, (Keys{"d.l.0", "z"}));
  EXPECT_EQ(top->given + deep->given, 2);
  expect_error(ErrorKind::kType, "key 'z': the source has a int, the target a stateful object",
               [&] { fill_in_place(live, {{"z", 1}}); });
  live = {{"null", std::shared_ptr<Stateful>()}};
  expect_error(ErrorKind::kInvalidArgument, "key 'null': holds a null Stateful",
               [&] { fill_in_place(live, {{"null", Dict()}}); });
}

TEST(FillInPlace, B26_AnObjectThatFailsIsNamedAndNothingElseChanges) {
  const auto first = std::make_shared<Counting>();
  const auto second = std::make_shared<Counting>();
  second->refuses = true;
  Dict live = {{"b", second}, {"a", first}, {"w", pattern({2})}, {"n", 0}};
  const Dict source = {{"b", Dict{{"n", 1}}}, {"a", Dict{{"n", 2}}}, {"w", counted({2})}, {"n", 1}, {"new", 3}};
  for (const char* text : {"it refuses in load_state_dict() of ['b']",
                           "objects that have been given their state already: 'a'; nothing else has been changed"}) {
    expect_error(ErrorKind::kInternal, text, [&] { fill_in_place(live, source); });
  }
  EXPECT_TRUE(is_pattern(live.at("w").as_tensor()));
  EXPECT_EQ(keys_of(live), (Keys{"b", "a", "w", "n"}));
  EXPECT_EQ(live.at("n").as_int(), 0);
  live = {{"b", second}};
  expect_error(ErrorKind::kInternal, "nothing else has been changed", [&] { fill_in_place(live, {{"b", Dict()}}); });
  second->throws_an_int = true;
  expect_error(ErrorKind::kInternal, "an exception that is no std::exception in load_state_dict() of ['b']",
               [&] { fill_in_place(live, {{"b", Dict()}}); });
}

TEST(FillInPlace, B27_AnotherKindIsRefusedUnlessNotStrict) {
  const at::Tensor tensor = counted({2});
  const Dict source = {{"number", tensor}, {"tensor", 1}, {"list", Tuple{Value(tensor)}},
                       {"dict", List{}},   {"int", 0.5},  {"none", None()},
                       {"text", Bytes{1}}, {"fine", 4}};
  Dict live = {{"number", 1},
               {"tensor", pattern({2})},
               {"list", List{Value(pattern({2}))}},
               {"dict", Dict{{"x", 1}}},
               {"int", 1},
               {"none", 1},
               {"text", "a"},
               {"fine", 0}};
  const Dict before = live;
  for (const char* text :
       {"7 faults", "key 'number': the source has a tensor, the target a int",
        "key 'tensor': the source has a int, the target a tensor",
        "key 'list': the source has a tuple, the target a list", "key 'dict': the source has a list, the target a dict",
        "key 'int'", "key 'none'", "key 'text'"}) {
    expect_error(ErrorKind::kType, text, [&] { fill_in_place(live, source); });
  }
  expect_same(live, before);
  const FillReport report = fill_in_place(live, source, {.strict = false});
  expect_same(live, source);
  EXPECT_EQ(report.replaced, (Keys{"number", "tensor", "list", "dict", "int", "none", "text"}));
  EXPECT_EQ(report.assigned, Keys{"fine"});
  EXPECT_FALSE(live.at("number").as_tensor().is_alias_of(tensor));
  EXPECT_TRUE(live.at("number").as_tensor().is_same(live.at("list").as_tuple()[0].as_tensor()));
}

TEST(FillInPlace, B27_WhatHasNoKindYetTakesAnything) {
  const at::Tensor tensor = counted({2});
  Dict live = {{"none", None()}, {"undefined", at::Tensor()}, {"both", at::Tensor()}, {"still", None()}};
  const FillReport report = fill_in_place(
      live, {{"none", tensor}, {"undefined", rows_of(tensor)}, {"both", at::Tensor()}, {"still", None()}});
  EXPECT_EQ(report.replaced, (Keys{"none", "undefined"}));
  EXPECT_EQ(report.assigned, Keys{"still"});
  expect_same(live.at("none"), tensor);
  expect_same(live.at("undefined"), rows_of(tensor));
  EXPECT_FALSE(live.at("none").as_tensor().is_alias_of(tensor));
}

TEST(FillInPlace, B28_ShardsStayAndGetTheBytes) {
  Dict live = {{"same", shards_of(pattern({4}))},
               {"order", ShardedTensor({4}, at::kFloat, {{pattern({2}), {2}}, {pattern({1}), {0}}})},
               {"none", ShardedTensor({4}, at::kFloat, {})}};
  const Dict before = live;
  const at::Tensor whole = counted({4});
  const FillReport report =
      fill_in_place(live, {{"same", shards_of(whole)}, {"order", shards_of(whole)}, {"none", shards_of(whole)}});
  EXPECT_EQ(report.copied, (Keys{"same", "order", "none"}));
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_TRUE(live.at("same").as_sharded_tensor().local_shards()[i].tensor.is_same(
        before.at("same").as_sharded_tensor().local_shards()[i].tensor));
  }
  expect_same(before.at("same"), shards_of(whole));
  expect_same(before.at("order").as_sharded_tensor().local_shards()[0].tensor, whole.narrow(0, 2, 2));
  expect_same(before.at("order").as_sharded_tensor().local_shards()[1].tensor, whole.narrow(0, 0, 1));
}

TEST(FillInPlace, SourcesInTheMemoryOfTargetsAndAutograd) {
  const at::Tensor both = counted({4});
  at::Tensor leaf = at::ones({2}).set_requires_grad(true);
  Dict live = {{"a", both.narrow(0, 0, 2)}, {"b", both.narrow(0, 2, 2)}, {"w", leaf}};
  const Dict same = live;
  fill_in_place(live, same);
  EXPECT_TRUE(bit_equal(both, counted({4}))) << "from itself";
  fill_in_place(live, {{"a", both.narrow(0, 2, 2)}, {"b", both.narrow(0, 0, 2)}, {"w", leaf * 2}});
  EXPECT_TRUE(bit_equal(both, at::tensor({2.0f, 3.0f, 0.0f, 1.0f})));
  EXPECT_TRUE(bit_equal(leaf, at::full({2}, 2.0)));
  EXPECT_FALSE(leaf.grad_fn());
}

TEST(FillInPlace, B23_ValuesThatDifferForOneTensorAreNamed) {
  const at::Tensor tied = pattern({2});
  Dict live = {{"a", tied}, {"d", Dict{{"b", tied}}}, {"view", tied.narrow(0, 0, 1)}};
  const Dict source = {{"a", counted({2})}, {"d", Dict{{"b", counted({2}) + 1}}}};
  for (const bool strict : {true, false}) {
    expect_error(ErrorKind::kKey, "key 'd.b': is the same tensor as 'a' here, but the source has other values for it",
                 [&] { fill_in_place(live, source, {.strict = strict}); });
  }
  EXPECT_TRUE(is_pattern(tied));
  fill_in_place(live, {{"a", counted({2})}, {"d", Dict{{"b", counted({2})}}}, {"view", counted({1})}});
  expect_same(tied, counted({2}));
}

TEST(FillInPlace, B23_ATiedTensorIsFoundBehindAViewThatBeginsWithIt) {
  const at::Tensor tied = pattern({4});
  Dict live = {{"view", tied.narrow(0, 0, 2)}, {"a", tied}, {"b", tied}};
  expect_error(ErrorKind::kKey, "key 'b': is the same tensor as 'a' here",
               [&] { fill_in_place(live, {{"view", counted({2})}, {"a", counted({4})}, {"b", counted({4}) + 1}}); });
}

TEST(FillInPlace, TooDeepNestingIsRefused) {
  Value value = 1;
  for (int i = 0; i < 600; ++i) value = List{value};
  Dict live = {{"v", value}};
  const Dict source = live;
  expect_error(ErrorKind::kInvalidArgument, "nested more than", [&] { fill_in_place(live, source); });
}

Dict rich_state(const std::shared_ptr<Counting>& object) {
  const at::Tensor tied = counted({3});
  return {{"w", counted({2, 3})},
          {"tied", tied},
          {"d", Dict{{"t", tied}, {"n", 1}, {"l", List{Value(counted({2})), Value(Dict{{"x", 2}})}}}},
          {"rows", rows_of(counted({5}))},
          {"shards", shards_of(counted({4}))},
          {"undefined", at::Tensor()},
          {"none", None()},
          {"app", object}};
}

TEST(RestoreInPlace, B2_TheSameTensorsGetTheirOldBytes) {
  const auto object = std::make_shared<Counting>();
  object->number = 3;
  Dict live = rich_state(object);
  const Dict handles = live;
  const Dict snapshot = clone(live);
  live.at("w").as_tensor().fill_(9);
  live.at("tied").as_tensor().fill_(9);
  live.at("rows").as_dtensor().local().fill_(9);
  live.at("shards").as_sharded_tensor().local_shards()[1].tensor.fill_(9);
  live.at("d").as_dict()["n"] = "other";
  live.at("d").as_dict()["new"] = counted({1});
  live["late"] = 1;
  live["undefined"] = counted({1});
  object->number = 4;
  const FillReport report = restore_in_place(live, snapshot);
  EXPECT_EQ(report.removed, (Keys{"d.new", "late"}));
  EXPECT_EQ(report.loaded, Keys{"app"});
  EXPECT_EQ(report.replaced, (Keys{"d.n", "undefined"}));
  EXPECT_EQ(object->number, 3);
  EXPECT_EQ(object->given, 1);
  expect_same(live, rich_state(object));
  for (const char* key : {"w", "tied"}) EXPECT_TRUE(live.at(key).as_tensor().is_same(handles.at(key).as_tensor()));
  EXPECT_TRUE(live.at("rows").as_dtensor().local().is_same(handles.at("rows").as_dtensor().local()));
  EXPECT_TRUE(live.at("tied").as_tensor().is_same(live.at("d").as_dict().at("t").as_tensor()));
}

TEST(RestoreInPlace, B2_WhatWentOrNoLongerFitsComesBackAsACopyInItsPlace) {
  const auto object = std::make_shared<Counting>();
  Dict live = rich_state(object);
  const Dict snapshot = clone(live);
  live.erase("w");
  live.at("d").as_dict().erase("t");
  live["w"] = counted({7}, at::kHalf);  // at the end now
  live["rows"] = on(pattern({5}), {2}, {Placement::replicate()});
  live["shards"] = counted({4});
  live.at("d").as_dict()["l"] = List{Value(1)};
  live["tied"] = at::zeros({3}, at::kDouble);
  live["none"] = 5;
  restore_in_place(live, snapshot);
  live["app"] = object;
  expect_same(live, rich_state(object));
  EXPECT_FALSE(live.at("w").as_tensor().is_alias_of(snapshot.at("w").as_tensor()));
  // Once more, from whatever is there.
  live = {};
  restore_in_place(live, snapshot);
  expect_same(live, snapshot);
  live = {{"x", 1}};
  restore_in_place(live, {});
  EXPECT_TRUE(live.empty());
}

TEST(RestoreInPlace, B2_WhatHasComeToShareMemoryComesApart) {
  Dict live = {{"a", counted({4})}, {"b", pattern({4})}, {"c", pattern({2})}, {"rows", rows_of(counted({4}))}};
  const Dict snapshot = clone(live);
  const at::Tensor a = live.at("a").as_tensor();
  live["b"] = a;
  live["c"] = a.narrow(0, 1, 2);
  live["rows"] = DTensor(a.narrow(0, 2, 2), DeviceMesh::make({2}, 1), {Placement::shard(0)}, {4});
  const FillReport report = restore_in_place(live, snapshot);
  expect_same(live, snapshot);
  EXPECT_EQ(report.copied, Keys{"a"});
  EXPECT_EQ(report.replaced, (Keys{"b", "c", "rows"}));
  EXPECT_TRUE(live.at("a").as_tensor().is_same(a));
  EXPECT_FALSE(live.at("b").as_tensor().is_alias_of(snapshot.at("b").as_tensor()));
}

TEST(RestoreInPlace, B2_ViewsOfOneMemoryStayThat) {
  const at::Tensor flat = counted({6});
  Dict live = {{"flat", flat}, {"row", flat.view({2, 3})[1]}, {"column", flat.view({2, 3}).t()[1]}, {"tied", flat}};
  const Dict handles = live;
  const Dict snapshot = clone(live);
  flat.zero_();
  const FillReport report = restore_in_place(live, snapshot);
  expect_same(live, snapshot);
  EXPECT_EQ(report.copied, (Keys{"flat", "row", "column", "tied"}));
  for (const char* key : {"flat", "row", "column", "tied"}) {
    EXPECT_TRUE(live.at(key).as_tensor().is_same(handles.at(key).as_tensor())) << key;
  }
}

TEST(RestoreInPlace, B2_GoesOnAfterObjectsThatFail) {
  const auto a = std::make_shared<Counting>();
  const auto b = std::make_shared<Counting>();
  const auto c = std::make_shared<Counting>();
  Dict live = {{"a", a}, {"b", b}, {"c", c}, {"w", counted({2})}};
  const Dict snapshot = clone(live);
  live.at("w").as_tensor().zero_();
  live["late"] = 1;
  b->number = 7;
  a->refuses = c->refuses = true;
  for (const char* text : {"2 faults", "key 'a': it refuses", "key 'c': it refuses", "when all else was restored"}) {
    expect_error(ErrorKind::kInternal, text, [&] { restore_in_place(live, snapshot); });
    EXPECT_EQ(b->number, 0);
    expect_same(live.at("w"), counted({2}));
    EXPECT_FALSE(live.contains("late"));
  }
}

}  // namespace
}  // namespace dcp

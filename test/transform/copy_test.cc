#include "torch_dcp/transform/copy.h"

#include "test/support/expect_error.h"
#include "test/transform/transform_support.h"
#include "torch_dcp/state_dict/tensor_copies.h"
#include "torch_dcp/transform/offload.h"
#include "torch_dcp/transform/similar.h"

namespace dcp {
namespace {

using namespace test;  // NOLINT: the support's names

DTensor rows_of(const at::Tensor& whole, int rank = 1) { return placed(whole, {2}, {Placement::shard(0)}, rank); }

ShardedTensor shards_of(const at::Tensor& whole) {
  return ShardedTensor(Sizes(whole.sizes()), whole.scalar_type(),
                       {{whole.narrow(0, 0, 1).clone(), {0}}, {whole.narrow(0, 2, 2).clone(), {2}}});
}

Dict example(const at::Tensor& four) {
  return {{"plain", four.clone()},
          {"rows", rows_of(four)},
          {"shards", shards_of(four)},
          {"nested", Dict{{"l", List{Value(four.clone()), Value(1)}}, {std::int64_t{2}, Tuple{Value("a")}}}},
          {"undefined", at::Tensor()},
          {"empty", Dict()}};
}

TEST(CopyInto, CopiesInPlaceAndTakesOtherValues) {
  const Dict source = example(counted({4}));
  Dict target = example(pattern({4}));
  target["rows"] = DTensor(pattern({2}), DeviceMesh::make({2}, 1), {Placement::shard(0)}, {4});
  target.at("nested").as_dict().at("l").as_list()[1] = "other kind";
  target.at("nested").as_dict()[std::int64_t{2}] = Tuple{Value()};
  const Dict before = target;
  EXPECT_TRUE(copy_into(source, target).empty());
  expect_same(target, source);
  EXPECT_TRUE(target.at("plain").as_tensor().is_same(before.at("plain").as_tensor()));
  EXPECT_TRUE(target.at("rows").as_dtensor().local().is_same(before.at("rows").as_dtensor().local()));
  EXPECT_FALSE(target.at("plain").as_tensor().is_alias_of(source.at("plain").as_tensor()));
}

TEST(CopyInto, DoesNotMindTheOrderOfKeysNorListsAgainstTuples) {
  const Dict source = {{"a", counted({2})}, {"s", Tuple{Value(counted({3})), Value(1)}}, {"t", List{Value(2)}}};
  Dict target = {{"t", Tuple{Value(0)}}, {"s", List{Value(pattern({3})), Value(0)}}, {"a", pattern({2})}};
  copy_into(source, target, {.non_blocking = true});
  expect_same(target, Dict{{"t", Tuple{Value(2)}}, {"s", List{Value(counted({3})), Value(1)}}, {"a", counted({2})}});
}

TEST(CopyInto, NamesEveryDifference) {
  const auto mesh = DeviceMesh::make({2}, 1);
  const Dict source = {{"missing", 1},
                       {"deep", Dict{{"l", List{Value(1), Value(Dict{{"gone", 2}})}}}},
                       {"length", List{Value(1), Value(2)}},
                       {"container", Dict{{"x", 1}}},
                       {"kind", counted({2})},
                       {"scalar", 3},
                       {"shape", counted({2, 3})},
                       {"dtype", counted({2}, at::kDouble)},
                       {"undefined", at::Tensor()},
                       {"global", rows_of(counted({4}))},
                       {"placement", rows_of(counted({4}))},
                       {"mesh", rows_of(counted({4}))},
                       {"count", shards_of(counted({4}))},
                       {"offset", shards_of(counted({4}))},
                       {"no shards", ShardedTensor({4}, at::kFloat, {})},
                       {"fine", counted({2})}};
  Dict target = {{"deep", Dict{{"l", List{Value(1), Value(Dict{{"added", 2}})}}}},
                 {"length", List{Value(1)}},
                 {"container", List{Value(1)}},
                 {"kind", rows_of(counted({4}))},
                 {"scalar", counted({1})},
                 {"shape", pattern({3, 2})},
                 {"dtype", pattern({2})},
                 {"undefined", pattern({2})},
                 {"global", rows_of(counted({5}))},
                 {"placement", placed(counted({4}), {2}, {Placement::replicate()}, 1)},
                 {"mesh", placed(counted({4}), {4}, {Placement::shard(0)}, 1)},
                 {"count", ShardedTensor({4}, at::kFloat, {})},
                 {"offset", ShardedTensor({4}, at::kFloat, {{pattern({1}), {0}}, {pattern({2}), {1}}})},
                 {"no shards", ShardedTensor({4}, at::kHalf, {})},
                 {"fine", pattern({2})},
                 {"only target", 1}};
  const auto call = [&] { copy_into(source, target); };
  for (const char* text :
       {"copy into another state dict, 17 faults:", "key 'missing': is in the source only",
        "key 'deep.l.1.gone': is in the source only", "key 'deep.l.1.added': is in the target only",
        "key 'length': the source has 2 elements, the target 1",
        "key 'container': the source has a dict, the target a list",
        "key 'kind': the source has a tensor, the target a DTensor",
        "key 'scalar': the source has a int, the target a tensor",
        "key 'shape': the given tensor has shape [2, 3], the current one [3, 2]",
        "key 'dtype': the given tensor is float64, the current one float32",
        "key 'undefined': the tensor is undefined in the source only",
        "key 'global': the source has shape [4], the target [5]",
        "key 'placement': the source is Shard(0), the target Replicate() in mesh dimension 0",
        "key 'mesh': the DTensors lie on different meshes", "key 'count': the source has 2 shards here, the target 0",
        "key 'offset': shard 1 of the source lies at [2], that of the target at [1]",
        "key 'no shards': the dtypes differ", "key 'only target': is in the target only"}) {
    expect_error(ErrorKind::kKey, text, call);
  }
  EXPECT_TRUE(is_pattern(target.at("fine").as_tensor())) << "nothing was copied";
  EXPECT_EQ(mesh->size(), 2);
}

TEST(CopyInto, TheKindOfTheErrorIsThatOfTheDifference) {
  const auto copy = [](Value source, Value target) {
    return [source = std::move(source), target = std::move(target)] {
      Dict into = {{"k", target}};
      copy_into({{"k", source}}, into);
    };
  };
  expect_error(ErrorKind::kShape, "key 'k'", copy(counted({2}), counted({3})));
  expect_error(ErrorKind::kType, "key 'k'", copy(counted({2}), counted({2}, at::kHalf)));
  expect_error(ErrorKind::kType, "key 'k'", copy(counted({2}), 1));
  expect_error(ErrorKind::kKey, "key 'k.0': is in", copy(Dict{{std::int64_t{0}, 1}}, Dict()));
  expect_error(ErrorKind::kUnsupported, "key 'k': a tensor on the meta device",
               copy(at::empty({2}, at::kMeta), counted({2})));
  expect_error(ErrorKind::kUnsupported, "key 'k': a tensor of layout Sparse",
               copy(counted({2}), counted({2}).to_sparse()));
  const at::Tensor nested = at::_nested_tensor_from_tensor_list({at::ones({2}), at::ones({3})});
  expect_error(ErrorKind::kUnsupported, "key 'k': nested", copy(nested, nested));
}

TEST(CopyInto, ConvertsAsThePolicyAllows) {
  const Dict source = {{"half", counted({3}, at::kHalf)}, {"d", Dict{{"rows", rows_of(counted({4}, at::kBFloat16))}}}};
  const auto fresh = [] { return Dict{{"half", pattern({3})}, {"d", Dict{{"rows", rows_of(pattern({4}))}}}}; };
  Dict target = fresh();
  const auto converted = copy_into(source, target);
  EXPECT_EQ(converted,
            (std::vector<DtypeConversion>{{"half", "float16", "float32"}, {"d.rows", "bfloat16", "float32"}}));
  expect_same(target, Dict{{"half", counted({3})}, {"d", Dict{{"rows", rows_of(counted({4}))}}}});
  target = fresh();
  expect_error(ErrorKind::kType, "2 faults", [&] { copy_into(source, target, {.dtype_policy = DtypePolicy::kExact}); });
  Dict narrow = {{"half", pattern({3}, at::kInt)}, {"d", Dict{{"rows", rows_of(pattern({4}, at::kHalf))}}}};
  expect_error(ErrorKind::kType, "key 'half'", [&] { copy_into(source, narrow); });
  EXPECT_EQ(copy_into(source, narrow, {.dtype_policy = DtypePolicy::kAny}).size(), 2u);
  expect_same(narrow.at("half"), counted({3}, at::kInt));
}

TEST(CopyInto, RefusesObjectsUnlessToldNotTo) {
  const auto object = std::make_shared<FixedState>(Dict{{"x", 1}});
  const Opaque opaque{std::make_shared<const Bytes>(Bytes{1}), "a.B"};
  const Dict source = {{"s", object}, {"o", opaque}};
  Dict target = {{"s", 0}, {"o", 0}};
  const auto call = [&] { copy_into(source, target); };
  expect_error(ErrorKind::kInvalidArgument, "key 's': a stateful object cannot be copied", call);
  expect_error(ErrorKind::kInvalidArgument, "key 'o': a opaque object of type a.B cannot be copied", call);
  copy_into(source, target, {.type_check = false});
  expect_same(target, Dict{{"s", Dict{{"x", 1}}}, {"o", opaque}});
}

TEST(CopyInto, LeavesNoTraceInAutograd) {
  at::Tensor leaf = at::ones({2}).set_requires_grad(true);
  at::Tensor source = counted({2}).set_requires_grad(true);
  Dict target = {{"w", leaf}};
  copy_into({{"w", source * 1}}, target);
  EXPECT_TRUE(leaf.is_leaf());
  EXPECT_FALSE(leaf.grad_fn());
  EXPECT_TRUE(bit_equal(leaf, counted({2})));
}

TEST(CopyInto, ReadsSourcesBeforeTheirMemoryIsWritten) {
  const at::Tensor both = counted({4});
  Dict target = {{"a", both.narrow(0, 0, 2)}, {"b", both.narrow(0, 2, 2)}};
  copy_into({{"a", both.narrow(0, 2, 2)}, {"b", both.narrow(0, 0, 2)}}, target);
  EXPECT_TRUE(bit_equal(both, at::tensor({2.0f, 3.0f, 0.0f, 1.0f})));
}

TEST(CopyInto, ComparesAddressesNotStorages) {
  at::Tensor memory = counted({4});
  const auto over = [&](int i) { return at::from_blob(memory.data_ptr<float>() + i * 2, {2}); };
  Dict target = {{"a", over(0)}, {"b", over(1)}};
  copy_into({{"a", over(1)}, {"b", over(0)}}, target);
  EXPECT_TRUE(bit_equal(memory, at::tensor({2.0f, 3.0f, 0.0f, 1.0f})));
  EXPECT_TRUE(is_same_memory(over(0), over(0)));
  EXPECT_FALSE(is_same_memory(over(0), over(1)));
}

TEST(MemoryRanges, JoinWhatTouchesAndTellWhatOverlaps) {
  const at::Tensor all = counted({10});
  const auto part = [&](std::int64_t begin, std::int64_t end) { return all.narrow(0, begin, end - begin); };
  MemoryRanges ranges;
  for (const at::Tensor& each : {part(6, 8), part(1, 2), part(3, 4), part(2, 4), part(7, 9)}) ranges.add(each);
  ranges.add(at::empty({5}, at::kMeta));
  ranges.add(part(5, 5));
  const bool is_written[] = {false, true, true, true, false, false, true, true, true, false};
  for (int i = 0; i < 10; ++i) EXPECT_EQ(ranges.overlaps(part(i, i + 1)), is_written[i]) << i;
  EXPECT_FALSE(ranges.overlaps(part(4, 6)));
  EXPECT_TRUE(ranges.overlaps(part(4, 7)));
  EXPECT_TRUE(ranges.overlaps(part(0, 2)));
  EXPECT_TRUE(ranges.overlaps(part(0, 10)));
  EXPECT_FALSE(ranges.overlaps(part(2, 2)));
  EXPECT_FALSE(ranges.overlaps(at::empty({5}, at::kMeta)));
}

TEST(CopyInto, NamesTargetsThatCannotBeWrittenBeforeAnythingChanges) {
  const auto one_scale = [](at::ScalarType dtype) { return at::quantize_per_tensor(at::zeros({2, 2}), 1, 0, dtype); };
  const at::Tensor channels =
      at::quantize_per_channel(counted({2, 2}), at::ones({2}, at::kDouble), at::zeros({2}, at::kLong), 0, at::kQInt8);
  const at::Tensor without = at::empty({2, 2}, at::TensorOptions(at::kQInt8));
  const at::Tensor row = at::zeros({1, 2}).expand({2, 2});
  const at::Tensor diagonals = at::zeros({3}).as_strided({2, 2}, {1, 1});
  const Dict source = {{"fine", counted({2, 2})}, {"alike", channels},
                       {"row", counted({2, 2})},  {"diagonals", counted({2, 2})},
                       {"scheme", channels},      {"dtype", one_scale(at::kQUInt8)},
                       {"from", channels},        {"into", counted({2, 2})},
                       {"without", without}};
  Dict target = {{"fine", pattern({2, 2})}, {"alike", channels.clone()},       {"row", row},
                 {"diagonals", diagonals},  {"scheme", one_scale(at::kQInt8)}, {"dtype", one_scale(at::kQInt8)},
                 {"from", pattern({2, 2})}, {"into", one_scale(at::kQInt8)},   {"without", one_scale(at::kQInt8)}};
  const auto call = [&] { copy_into(source, target, {.dtype_policy = DtypePolicy::kAny}); };
  for (const char* text :
       {"7 faults", "key 'row': a tensor that overlaps itself cannot be written", "key 'diagonals': a tensor that ov",
        "key 'scheme': a tensor with quantizer per_channel_affine cannot be copied into one with quantizer per_tensor",
        "key 'dtype': a tensor of quint8 cannot be copied into one of qint8",
        "key 'from': a tensor of qint8 cannot be copied into one of float32",
        "key 'into': a tensor of float32 cannot be copied into one of qint8",
        "key 'without': a tensor with quantizer none"}) {
    expect_error(ErrorKind::kUnsupported, text, call);
  }
  EXPECT_TRUE(is_pattern(target.at("fine").as_tensor()));
  target = {{"alike", target.at("alike")}};
  copy_into({{"alike", channels}}, target);
  expect_same(target.at("alike"), channels);
}

TEST(Similar, ComparesStructureSizesDtypesAndLayouts) {
  const Dict state = example(counted({4}));
  EXPECT_TRUE(similar(state, example(pattern({4}))));
  EXPECT_TRUE(similar({}, {}));
  const auto changed = [&](const char* key, Value value) {
    Dict other = state;
    other[key] = std::move(value);
    return similar(state, other) || similar(other, state);
  };
  EXPECT_TRUE(changed("plain", at::zeros({4})));
  EXPECT_FALSE(changed("plain", at::zeros({5})));
  EXPECT_FALSE(changed("plain", at::zeros({4}, at::kDouble)));
  EXPECT_FALSE(changed("plain", at::Tensor()));
  EXPECT_FALSE(changed("plain", 1));
  EXPECT_FALSE(changed("added", 1));
  EXPECT_FALSE(changed("empty", List()));
  EXPECT_FALSE(changed("rows", rows_of(counted({4}, at::kHalf))));
  EXPECT_FALSE(changed("rows", rows_of(counted({4}), 0).local()));
  EXPECT_FALSE(changed("rows", rows_of(counted({5}))));
  EXPECT_FALSE(changed("rows", placed(counted({4}), {2}, {Placement::replicate()}, 1)));
  EXPECT_FALSE(changed("rows", placed(counted({4}), {4}, {Placement::shard(0)}, 1)));
  EXPECT_FALSE(changed("shards", ShardedTensor({4}, at::kFloat, {})));
  EXPECT_FALSE(changed("shards", ShardedTensor({5}, at::kFloat, shards_of(counted({4})).local_shards())));
  EXPECT_FALSE(changed("nested", Dict()));
}

TEST(Similar, LooksAtNoElementsAndChangesNothing) {
  const Dict a = {{"w", counted({3})}, {"n", 1}, {"l", List{Value(2)}}};
  const Dict b = {{"l", Tuple{Value("text")}}, {"n", None()}, {"w", pattern({3})}};
  EXPECT_TRUE(similar(a, b)) << "plain values and the order of keys may differ";
  expect_same(a, Dict{{"w", counted({3})}, {"n", 1}, {"l", List{Value(2)}}});
  EXPECT_TRUE(is_pattern(b.at("w").as_tensor()));
  EXPECT_EQ(b.at("l").as_tuple().front().as_string(), "text");
}

TEST(Similar, TellsSizeAndDtypeOfAnyTensor) {
  EXPECT_EQ(tensor_info(counted({2, 3}, at::kHalf)), (TensorInfo{{2, 3}, at::kHalf}));
  EXPECT_EQ(tensor_info(rows_of(counted({5}))), (TensorInfo{{5}, at::kFloat}));
  EXPECT_EQ(tensor_info(ShardedTensor({9}, at::kLong, {})), (TensorInfo{{9}, at::kLong}));
  EXPECT_NE(tensor_info(counted({2})), tensor_info(counted({3})));
  expect_error(ErrorKind::kInvalidArgument, "undefined", [] { tensor_info(at::Tensor()); });
}

TEST(Offload, ReturnsWhatLiesOnTheCpuAsItIs) {
  const Dict state = example(counted({4}));
  const Dict offloaded = offload(state, {.non_blocking = true});
  expect_same(offloaded, state);
  EXPECT_TRUE(offloaded.at("plain").as_tensor().is_same(state.at("plain").as_tensor()));
  EXPECT_TRUE(offloaded.at("rows").as_dtensor().local().is_same(state.at("rows").as_dtensor().local()));
  EXPECT_TRUE(offloaded.at("shards").as_sharded_tensor().local_shards()[1].tensor.is_same(
      state.at("shards").as_sharded_tensor().local_shards()[1].tensor));
  EXPECT_TRUE(offloaded.at("rows").as_dtensor().mesh_ptr() == state.at("rows").as_dtensor().mesh_ptr());
}

TEST(Offload, GivesNothingToRanksThatAreLeftOut) {
  const Dict state = {{"w", counted({2})}, {"n", 1}};
  expect_same(offload(state, {.ranks = {0, 2}, .my_rank = 2}), state);
  expect_same(offload(state, {.ranks = {0, 2}, .my_rank = 1}), Dict());
  expect_same(offload_value(Tuple{Value(1)}, {.ranks = {0}, .my_rank = 1}), None());
  expect_same(offload_value(5, {.ranks = {0}}), 5);
  expect_error(ErrorKind::kInvalidArgument, "no rank -2", [&] { offload(state, {.ranks = {-2}}); });
}

TEST(Offload, NamesEveryTensorThatHasNoElements) {
  const Dict state = {{"m", at::empty({2}, at::kMeta)},
                      {
                          "l",
                          List{Value(meta_of(rows_of(counted({4}))))},
                      },
                      {"fine", counted({2})}};
  expect_error(ErrorKind::kUnsupported, "2 faults", [&] { offload(state); });
  expect_error(ErrorKind::kUnsupported, "key 'l.0': a tensor on the meta device", [&] { offload(state); });
}

TEST(Offload, TakesAStatefulForItsState) {
  const auto object = std::make_shared<FixedState>(Dict{{"w", counted({2})}});
  const auto outer = std::make_shared<FixedState>(Dict{{"inner", List{Value(object)}}});
  expect_same(offload({{"a", object}, {"b", Tuple{Value(outer)}}}),
              Dict{{"a", Dict{{"w", counted({2})}}},
                   {"b", Tuple{Value(Dict{{"inner", List{Value(Dict{{"w", counted({2})}})}}})}}});
  EXPECT_EQ(object->asked, 1);
}

TEST(Offload, AsksObjectsThatAreMadeByStateDict) {
  class Maker : public Stateful {
   public:
    explicit Maker(int number) : number_(number) {}
    Dict state_dict() override { return {{"inner", std::make_shared<FixedState>(Dict{{"n", number_}})}}; }
    void load_state_dict(const Dict&) override {}

   private:
    int number_;
  };
  List makers;
  List expected;
  for (int i = 0; i < 20; ++i) {
    makers.push_back(Value(std::make_shared<Maker>(i)));
    expected.push_back(Dict{{"inner", Dict{{"n", i}}}});
  }
  expect_same(offload({{"all", makers}}), Dict{{"all", expected}});
}

TEST(Offload, RefusesAStatefulWhoseStateHoldsIt) {
  class Loop : public Stateful, public std::enable_shared_from_this<Loop> {
   public:
    Dict state_dict() override { return {{"self", List{Value(shared_from_this())}}}; }
    void load_state_dict(const Dict&) override {}
  };
  const Dict state = {{"loop", std::make_shared<Loop>()}};
  expect_error(ErrorKind::kInvalidArgument, "['self'][0] is a Stateful whose own state holds it",
               [&] { offload(state); });
  expect_error(ErrorKind::kInvalidArgument, "['null'] holds a null Stateful",
               [] { offload({{"null", std::shared_ptr<Stateful>()}}); });
}

}  // namespace
}  // namespace dcp

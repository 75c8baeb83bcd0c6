#include "torch_dcp/transform/clone.h"

#include "test/support/expect_error.h"
#include "test/support/memory_counter.h"
#include "test/transform/transform_support.h"

namespace dcp {
namespace {

using namespace test;  // NOLINT: the support's names

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

TEST(Clone, HasTheSameBitsInOtherMemory) {
  const at::Tensor scalar = at::full({}, 2.0);
  const Dict state = {
      {"w", counted({3, 2})},      {"strided", counted({3, 2}).t()},
      {"scalar", scalar},          {"empty", at::empty({0, 2})},
      {"undefined", at::Tensor()}, {"l", List{Value(counted({2}, at::kLong)), Value(Tuple{Value("a"), Value(None())})}},
      {std::int64_t{3}, Dict()},   {"bytes", Bytes{1, 2}}};
  const Dict copy = clone(state);
  expect_same(copy, state);
  for (const char* key : {"w", "strided", "scalar"}) {
    EXPECT_FALSE(copy.at(key).as_tensor().is_alias_of(state.at(key).as_tensor())) << key;
  }
  scalar.fill_(9);
  EXPECT_EQ(copy.at("scalar").as_tensor().item<float>(), 2.0f);
}

TEST(Clone, AliasesStayAliases) {
  const at::Tensor shared = counted({4});
  const DTensor part(shared, DeviceMesh::make({1}, 0), {Placement::replicate()}, {4});
  const Dict copy = clone({{"a", shared}, {"b", List{Value(shared)}}, {"d", part}});
  const at::Tensor& a = copy.at("a").as_tensor();
  EXPECT_TRUE(a.is_same(copy.at("b").as_list()[0].as_tensor()));
  EXPECT_TRUE(a.is_same(copy.at("d").as_dtensor().local()));
  EXPECT_FALSE(a.is_alias_of(shared));
}

TEST(Clone, ViewsOfOneStorageShareOneNewStorage) {
  const at::Tensor flat = counted({kMiB});  // 4 MiB
  const at::Tensor matrix = flat.narrow(0, 100, 600).view({20, 30}).t().narrow(0, 3, 5);
  const Dict state = {
      {"flat", flat},
      {"matrix", matrix},
      {"rows", DTensor(flat.view({1024, 1024}), DeviceMesh::make({1}, 0), {Placement::shard(0)}, {1024, 1024})},
      {"shards", ShardedTensor({2 * kMiB}, at::kFloat, {{flat, {kMiB}}})},
      {"bits", flat.view(at::kInt)}};
  const testing::PeakMemory memory;
  const Dict copy = clone(state);
  EXPECT_GE(memory.allocated_bytes(), 4 * kMiB);
  EXPECT_LT(memory.allocated_bytes(), 5 * kMiB) << "one copy of the storage, whatever looks at it";
  expect_same(copy, state);
  const at::Tensor& new_flat = copy.at("flat").as_tensor();
  const at::Tensor& new_matrix = copy.at("matrix").as_tensor();
  EXPECT_EQ(new_matrix.strides(), matrix.strides());
  EXPECT_EQ(new_matrix.storage_offset(), matrix.storage_offset());
  EXPECT_TRUE(new_matrix.is_alias_of(new_flat));
  EXPECT_TRUE(copy.at("rows").as_dtensor().local().is_alias_of(new_flat));
  EXPECT_TRUE(copy.at("shards").as_sharded_tensor().local_shards()[0].tensor.is_alias_of(new_flat));
  EXPECT_TRUE(copy.at("bits").as_tensor().is_alias_of(new_flat));
  EXPECT_FALSE(new_flat.is_alias_of(flat));
  new_flat.fill_(-1);
  EXPECT_TRUE(bit_equal(new_matrix, at::full({5, 20}, -1.0f)));
  EXPECT_TRUE(bit_equal(flat, counted({kMiB})));
}

TEST(Clone, KeepsLayoutsOfDistributedTensors) {
  const auto mesh = DeviceMesh::make({2, 2}, 3, {"dp", "tp"});
  const DTensor part =
      DTensor::distribute(counted({5, 4}), mesh, {Placement::strided_shard(0, 2), Placement::shard(0)});
  const ShardedTensor shards({4}, at::kFloat, {{counted({1}), {3}}, {counted({2}), {0}}});
  const auto outside_mesh = std::make_shared<const DeviceMesh>(Sizes{1}, std::vector<std::int64_t>{5}, 0);
  const Dict state = {{"d", part},
                      {"s", shards},
                      {"p", DTensor(counted({2}), DeviceMesh::make({2}, 0), {Placement::partial()}, {2})},
                      {"outside", DTensor(at::Tensor(), outside_mesh, {Placement::shard(0)}, {2})}};
  const Dict copy = clone(state);
  expect_same(copy, state);
  EXPECT_EQ(copy.at("d").as_dtensor().mesh().dim_names(), (std::vector<std::string>{"dp", "tp"}));
  EXPECT_FALSE(copy.at("d").as_dtensor().local().is_alias_of(part.local()));
  for (std::size_t i = 0; i < 2; ++i) {
    const Shard& shard = copy.at("s").as_sharded_tensor().local_shards()[i];
    EXPECT_FALSE(shard.tensor.is_alias_of(shards.local_shards()[i].tensor));
    shard.tensor.fill_(-1);
  }
  EXPECT_TRUE(bit_equal(shards.local_shards()[1].tensor, counted({2})));
}

TEST(Clone, IsDetachedFromAutograd) {
  const at::Tensor leaf = at::ones({2}).set_requires_grad(true);
  const at::Tensor made = leaf * 2;
  const Dict copy = clone({{"leaf", leaf}, {"made", made}});
  for (const char* key : {"leaf", "made"}) {
    EXPECT_FALSE(copy.at(key).as_tensor().requires_grad()) << key;
    EXPECT_FALSE(copy.at(key).as_tensor().grad_fn()) << key;
    copy.at(key).as_tensor().add_(1);
  }
  EXPECT_TRUE(leaf.requires_grad() && made.requires_grad());
  EXPECT_TRUE(bit_equal(made, at::full({2}, 2.0f)));
}

TEST(Clone, KeepsQuantizersLazyConjugatesAndOtherKindsOfTensors) {
  const at::Tensor complex = at::complex(at::ones({2}), at::ones({2}));
  const Dict state = {{"q", at::quantize_per_tensor(counted({4}), 0.5, 1, at::kQInt8)},
                      {"c", at::quantize_per_channel(counted({2, 2}), at::ones({2}, at::kDouble),
                                                     at::zeros({2}, at::kLong), 0, at::kQUInt8)},
                      {"conj", complex.conj()}};
  const Dict copy = clone(state);
  expect_same(copy, state);
  EXPECT_TRUE(copy.at("conj").as_tensor().is_conj());
  EXPECT_FALSE(copy.at("q").as_tensor().is_alias_of(state.at("q").as_tensor()));
  const at::Tensor sparse = counted({3}).to_sparse();
  const at::Tensor meta = at::empty({3}, at::kMeta);
  const Dict others = clone({{"sparse", sparse}, {"again", sparse}, {"meta", meta}});
  EXPECT_TRUE(bit_equal(others.at("sparse").as_tensor().to_dense(), counted({3})));
  EXPECT_TRUE(others.at("sparse").as_tensor().is_same(others.at("again").as_tensor()));
  EXPECT_FALSE(others.at("sparse").as_tensor().is_same(sparse));
  EXPECT_TRUE(others.at("meta").as_tensor().is_meta());
}

TEST(Clone, TakesAStatefulForItsStateOnce) {
  const at::Tensor tensor = counted({2});
  const auto object = std::make_shared<FixedState>(Dict{{"w", tensor}});
  const Dict copy = clone({{"a", object}, {"b", Dict{{"c", object}}}});
  expect_same(copy, Dict{{"a", Dict{{"w", tensor}}}, {"b", Dict{{"c", Dict{{"w", tensor}}}}}});
  EXPECT_EQ(object->asked, 1);
  EXPECT_FALSE(copy.at("a").as_dict().at("w").as_tensor().is_alias_of(tensor));
  EXPECT_TRUE(
      copy.at("a").as_dict().at("w").as_tensor().is_same(copy.at("b").as_dict().at("c").as_dict().at("w").as_tensor()));
}

TEST(Clone, BoundsTheDepth) {
  Value deep = 1;
  for (int i = 0; i < 600; ++i) deep = List{std::move(deep)};
  expect_error(ErrorKind::kInvalidArgument, "nested more than 500 deep", [&] { clone({{"l", deep}}); });
}

TEST(Clone, TakesAnyValue) {
  const at::Tensor tensor = counted({2});
  const Value copy = clone_value(tensor);
  expect_same(copy, tensor);
  EXPECT_FALSE(copy.as_tensor().is_alias_of(tensor));
  expect_same(clone_value("text"), "text");
}

}  // namespace
}  // namespace dcp

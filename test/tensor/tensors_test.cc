#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "test/support/expect_error.h"
#include "torch_dcp/tensor/dtensor.h"
#include "torch_dcp/tensor/local_chunks.h"
#include "torch_dcp/tensor/sharded_tensor.h"

namespace dcp {
namespace {

using test::expect_error;

at::Tensor counted(at::IntArrayRef sizes) {
  return at::arange(c10::multiply_integers(sizes), at::kFloat).reshape(sizes);
}

TEST(DTensor, TakesALocalTensorOfTheRightShape) {
  const auto mesh = DeviceMesh::make({3}, 2);
  const DTensor tensor(counted({1, 2}), mesh, {Placement::shard(0)}, {7, 2});
  EXPECT_EQ(tensor.layout().offsets, (Sizes{6, 0}));
  EXPECT_EQ(tensor.global_sizes(), (Sizes{7, 2}));
  EXPECT_EQ(tensor.dtype(), at::kFloat);
  EXPECT_EQ(tensor.mesh_ptr(), mesh);
  EXPECT_TRUE(tensor.is_in_mesh());
  EXPECT_FALSE(tensor.is_partial());
  const DTensor copy = tensor;
  EXPECT_EQ(copy.local().data_ptr(), tensor.local().data_ptr());
}

TEST(DTensor, RefusesALocalTensorOfAnotherShape) {
  const auto mesh = DeviceMesh::make({3}, 2);
  const Placements rows = {Placement::shard(0)};
  expect_error(ErrorKind::kShape, "of sizes [7, 2] has sizes [3, 2] on rank 2, but mesh and placements give it [1, 2]",
               [&] { DTensor(counted({3, 2}), mesh, rows, {7, 2}); });
  expect_error(ErrorKind::kInvalidArgument, "undefined", [&] { DTensor(at::Tensor(), mesh, rows, {7, 2}); });
  expect_error(ErrorKind::kInvalidArgument, "needs a mesh", [&] { DTensor(counted({1}), nullptr, rows, {7}); });
  expect_error(ErrorKind::kInvalidArgument, "placements", [&] { DTensor(counted({7}), mesh, {}, {7}); });
}

TEST(DTensor, HoldsNothingOutsideOfTheMesh) {
  const auto mesh = DeviceMesh::make({2}, 5);
  const Placements rows = {Placement::shard(0)};
  for (const at::Tensor& local : {at::Tensor(), at::empty({0})}) {
    const DTensor tensor(local, mesh, rows, {7, 2});
    EXPECT_FALSE(tensor.is_in_mesh());
    EXPECT_TRUE(local_chunks(tensor).empty());
    EXPECT_FALSE(requires_grad(tensor));
    expect_error(ErrorKind::kState, "rank 5 is not in the mesh", [&] { tensor.layout(); });
  }
  expect_error(ErrorKind::kShape, "rank 5 is not in the mesh", [&] { DTensor(counted({7, 2}), mesh, rows, {7, 2}); });
  expect_error(ErrorKind::kInvalidArgument, "Shard(4)",
               [&] { DTensor(at::Tensor(), mesh, {Placement::shard(4)}, {7, 2}); });
  EXPECT_EQ(DTensor::distribute(counted({7, 2}), mesh, rows).local().numel(), 0);
  EXPECT_EQ(DTensor::empty({7, 2}, at::kHalf, mesh, rows).dtype(), at::kHalf);
}

TEST(DTensor, DistributesACopyOfItsPart) {
  at::Tensor whole = counted({7, 2});
  const auto tensor = DTensor::distribute(whole, DeviceMesh::make({3}, 1), {Placement::shard(0)});
  whole.zero_();
  EXPECT_TRUE(tensor.local().equal(counted({7, 2}).narrow(0, 3, 3)));
  EXPECT_TRUE(tensor.local().is_contiguous());
}

TEST(DTensor, DistributesRunsThatLieApart) {
  const auto mesh = DeviceMesh::make({2, 2}, 2);  // coordinate [1, 0]
  const auto tensor =
      DTensor::distribute(counted({8, 4}), mesh, {Placement::strided_shard(0, 2), Placement::strided_shard(1, 2)});
  const at::Tensor rows = at::tensor({2, 3, 6, 7}, at::kLong);
  const at::Tensor columns = at::tensor({0, 2}, at::kLong);
  EXPECT_TRUE(tensor.local().equal(counted({8, 4}).index_select(0, rows).index_select(1, columns)));
}

TEST(DTensor, DistributesAReplicaAndKeepsRequiresGrad) {
  const auto mesh = DeviceMesh::make({2}, 1);
  const at::Tensor whole = counted({3, 2}).t().set_requires_grad(true);
  const auto tensor = DTensor::distribute(whole, mesh, {Placement::replicate()});
  EXPECT_TRUE(tensor.local().equal(whole.detach()));
  EXPECT_TRUE(tensor.local().is_contiguous());
  EXPECT_NE(tensor.local().data_ptr(), whole.data_ptr());
  EXPECT_TRUE(tensor.local().requires_grad());
  EXPECT_TRUE(tensor.local().is_leaf());
  EXPECT_TRUE(requires_grad(tensor));
  EXPECT_FALSE(requires_grad(DTensor::distribute(counted({2}), mesh, {Placement::replicate()})));
}

TEST(DTensor, DistributesDtypesOfOneByte) {
  const at::Tensor whole = counted({8}).to(at::kFloat8_e5m2);
  const auto mesh = DeviceMesh::make({2}, 1);
  const auto tensor = DTensor::distribute(whole, mesh, {Placement::strided_shard(0, 2)});
  EXPECT_EQ(tensor.dtype(), at::kFloat8_e5m2);
  EXPECT_TRUE(tensor.local().to(at::kFloat).equal(at::tensor({2.f, 3.f, 6.f, 7.f})));
}

TEST(DTensor, MakesAnEmptyPart) {
  const auto tensor = DTensor::empty({7, 2}, at::kBFloat16, DeviceMesh::make({3}, 0), {Placement::shard(0)});
  EXPECT_EQ(tensor.local().sizes(), (at::IntArrayRef{3, 2}));
  EXPECT_EQ(tensor.dtype(), at::kBFloat16);
}

TEST(DTensor, KnowsPartialsButDoesNotCutThem) {
  const auto mesh = DeviceMesh::make({2}, 0);
  const DTensor tensor(counted({4}), mesh, {Placement::partial()}, {4});
  EXPECT_TRUE(tensor.is_partial());
  expect_error(ErrorKind::kUnsupported, "Partial", [&] { local_chunks(tensor); });
  expect_error(ErrorKind::kUnsupported, "Partial(avg)",
               [&] { DTensor::distribute(counted({4}), mesh, {Placement::partial("avg")}); });
  expect_error(ErrorKind::kInvalidArgument, "undefined",
               [&] { DTensor::distribute(at::Tensor(), mesh, {Placement::replicate()}); });
}

TEST(ShardedTensor, TakesShardsInAnyOrder) {
  const ShardedTensor tensor({4, 4}, at::kFloat, {{counted({2, 2}), {2, 2}}, {counted({2, 4}), {0, 0}}});
  EXPECT_EQ(tensor.local_shards()[0].offsets, (Sizes{2, 2}));
  const auto chunks = local_chunks(tensor);
  ASSERT_EQ(chunks.size(), 2u);
  EXPECT_EQ(chunks[0].box, (Box{{0, 0}, {2, 4}}));
  EXPECT_EQ(chunks[1].box, (Box{{2, 2}, {2, 2}}));
  EXPECT_EQ(chunks[1].view.data_ptr(), tensor.local_shards()[0].tensor.data_ptr());
}

TEST(ShardedTensor, MayHoldNothingOrEmptyShards) {
  EXPECT_TRUE(local_chunks(ShardedTensor({4}, at::kHalf, {})).empty());
  EXPECT_EQ(dtype_of(ShardedTensor({4}, at::kHalf, {})), at::kHalf);
  const ShardedTensor tensor({4}, at::kFloat, {{counted({0}), {2}}, {counted({4}), {0}}, {counted({0}), {4}}});
  EXPECT_EQ(local_chunks(tensor).size(), 3u);
  EXPECT_EQ(local_chunks(ShardedTensor({}, at::kFloat, {{at::scalar_tensor(1.f), {}}})).size(), 1u);
}

TEST(ShardedTensor, RefusesWrongShards) {
  const auto make = [](Sizes sizes, std::vector<Shard> shards) {
    return [=] { ShardedTensor(sizes, at::kFloat, shards); };
  };
  expect_error(ErrorKind::kShape, "shard 0 at [3] + [2] leaves a ShardedTensor of sizes [4]",
               make({4}, {{counted({2}), {3}}}));
  expect_error(ErrorKind::kShape, "offsets [0, 0] and sizes [2]", make({4}, {{counted({2}), {0, 0}}}));
  expect_error(ErrorKind::kShape, "sizes [2, 1]", make({4}, {{counted({2, 1}), {0}}}));
  expect_error(ErrorKind::kType, "shard 0 of a ShardedTensor of dtype float32 has dtype int32",
               make({4}, {{counted({2}).to(at::kInt), {0}}}));
  const auto kind = ErrorKind::kInvalidArgument;
  expect_error(kind, "shard 0 of a ShardedTensor is undefined", make({4}, {{at::Tensor(), {0}}}));
  expect_error(kind, "out of range", make({4}, {{counted({2}), {-1}}}));
  expect_error(kind, "out of range", make({-4}, {}));
  expect_error(kind, "shards 1 and 0 of a ShardedTensor overlap at [1, 1] + [1, 1]",
               make({4, 4}, {{counted({2, 2}), {1, 1}}, {counted({2, 2}), {0, 0}}}));
  expect_error(kind, "overlap", make({}, {{at::scalar_tensor(1.f), {}}, {at::scalar_tensor(2.f), {}}}));
  ShardedTensor({4, 4}, at::kFloat, {{counted({2, 2}), {0, 2}}, {counted({4, 2}), {0, 0}}, {counted({2, 2}), {2, 2}}});
}

TEST(LocalChunks, RefusesTensorsWithoutPlainElements) {
  expect_error(ErrorKind::kInvalidArgument, "undefined", [] { local_chunks(at::Tensor()); });
  expect_error(ErrorKind::kInvalidArgument, "undefined", [] { global_sizes(at::Tensor()); });
  expect_error(ErrorKind::kUnsupported, "layout Sparse", [] { local_chunks(counted({2, 2}).to_sparse()); });
  expect_error(ErrorKind::kUnsupported, "layout SparseCsr", [] { local_chunks(counted({2, 2}).to_sparse_csr()); });
  expect_error(ErrorKind::kUnsupported, "meta", [] { local_chunks(at::empty({2}, at::kMeta)); });
  const at::Tensor nested = at::_nested_tensor_from_tensor_list({counted({2}), counted({3})});
  expect_error(ErrorKind::kUnsupported, "nested", [&] { local_chunks(nested); });
  expect_error(ErrorKind::kUnsupported, "nested", [&] { global_sizes(nested); });
  const DTensor on_meta(at::empty({2}, at::kMeta), DeviceMesh::make({1}, 0), {Placement::replicate()}, {2});
  expect_error(ErrorKind::kUnsupported, "meta", [&] { local_chunks(on_meta); });
  const ShardedTensor sharded({2}, at::kFloat, {{at::empty({2}, at::kMeta), {0}}});
  expect_error(ErrorKind::kUnsupported, "meta", [&] { local_chunks(sharded); });
}

TEST(LocalChunks, KeepsStridesOfAView) {
  const at::Tensor turned = counted({3, 2}).t();
  const auto chunks = local_chunks(turned);
  ASSERT_EQ(chunks.size(), 1u);
  EXPECT_EQ(chunks[0].view.strides(), turned.strides());
  EXPECT_EQ(chunks[0].view.data_ptr(), turned.data_ptr());
}

}  // namespace
}  // namespace dcp

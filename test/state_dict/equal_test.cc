#include "torch_dcp/state_dict/equal.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <bit>
#include <limits>

#include "test/support/expect_error.h"
#include "torch_dcp/state_dict/stateful.h"

namespace dcp {
namespace {

using test::expect_error;

void expect_equal(const Value& a, const Value& b) {
  EXPECT_TRUE(bit_equal(a, b));
  EXPECT_EQ(first_difference(a, b), "");
}

void expect_differ(const Value& a, const Value& b, const std::string& text) {
  EXPECT_FALSE(bit_equal(a, b)) << text;
  EXPECT_FALSE(bit_equal(b, a)) << text;
  EXPECT_EQ(first_difference(a, b), text);
}

TEST(BitEqual, ComparesPlainValues) {
  expect_equal(Value(), Value());
  expect_equal(3, 3);
  expect_equal("a", std::string("a"));
  expect_equal(Bytes{1}, Bytes{1});
  expect_differ(1, 2, "the root: values 1 and 2");
  expect_differ(true, false, "the root: values true and false");
  expect_differ(true, 1, "the root: kinds bool and int");
  expect_differ(1, 1.0, "the root: kinds int and double");
  expect_differ("a", "b", "the root: strings 'a' and 'b'");
  expect_differ(std::string(300, 'a'), "b", "the root: strings of lengths 300 and 1");
  expect_differ(Bytes{1}, Bytes{2}, "the root: bytes of lengths 1 and 1");
  expect_differ(List(), Tuple(), "the root: kinds list and tuple");
}

TEST(BitEqual, ComparesDoublesByTheirBits) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double other_nan = std::bit_cast<double>(std::bit_cast<std::uint64_t>(nan) + 1);
  expect_equal(nan, nan);
  EXPECT_FALSE(bit_equal(nan, other_nan));
  EXPECT_FALSE(bit_equal(0.0, -0.0));
}

TEST(BitEqual, ComparesStructureAndNamesThePath) {
  const Dict state = {{"a", Dict{{"x.y", List{1, 2}}}}, {"b", Tuple{Value("s")}}};
  expect_equal(state, Dict(state));
  Dict other = state;
  other.at("a").as_dict().at("x.y").as_list()[1] = 3;
  expect_differ(state, other, "['a']['x.y'][1]: values 2 and 3");
  other.at("a").as_dict().at("x.y").as_list().pop_back();
  expect_differ(state, other, "['a']['x.y']: lengths 2 and 1");
  expect_differ(state, Dict{{"a", state.at("a")}}, "the root: key ['b'] is in the first only");
  expect_differ(Dict{{"a", state.at("a")}}, state, "the root: key ['b'] is in the second only");
  expect_differ(Dict{{"a", 1}, {"b", 2}}, Dict{{"b", 2}, {"a", 1}}, "the root: keys ['a'] and ['b'] at the same place");
  expect_differ(Dict{{"1", 1}}, Dict{{std::int64_t{1}, 1}}, "the root: keys ['1'] and [1] at the same place");
}

TEST(BitEqual, ComparesTensorsByTheirBits) {
  const at::Tensor matrix = at::arange(6, at::kFloat).reshape({2, 3});
  expect_equal(matrix, matrix.clone());
  expect_equal(matrix, matrix.t().contiguous().t());
  expect_equal(at::Tensor(), at::Tensor());
  expect_equal(at::empty({0, 3}), at::empty({0, 3}));
  at::Tensor changed = matrix.clone();
  changed[1][0] = 9;
  expect_differ(matrix, changed, "the root: bits, first in element 3 of 6 (row-major)");
  expect_differ(matrix, at::Tensor(), "the root: an undefined tensor and a defined one");
  expect_differ(matrix, matrix.reshape({3, 2}), "the root: sizes [2, 3] and [3, 2]");
  expect_differ(matrix, matrix.to(at::kDouble), "the root: dtypes float32 and float64");
  expect_differ(at::zeros({1}), -at::zeros({1}), "the root: bits, first in element 0 of 1 (row-major)");
  const at::Tensor nan = at::full({1}, std::numeric_limits<float>::quiet_NaN());
  expect_equal(nan, nan.clone());
  EXPECT_FALSE(bit_equal(nan, (nan.view(at::kInt) + 1).view(at::kFloat)));
}

TEST(BitEqual, SeesThroughConjugatesAndRequiresGrad) {
  const at::Tensor numbers = at::complex(at::ones({2}), at::ones({2}));
  expect_equal(numbers.conj(), numbers.conj().resolve_conj());
  EXPECT_FALSE(bit_equal(numbers, numbers.conj()));
  expect_equal(at::ones({2}).set_requires_grad(true), at::ones({2}));
}

TEST(BitEqual, ComparesQuantizers) {
  const at::Tensor values = at::arange(4, at::kFloat);
  const auto per_tensor = [&](double scale) { return at::quantize_per_tensor(values, scale, 0, at::kQInt8); };
  const auto per_channel = [&](double scale) {
    return at::quantize_per_channel(values.reshape({2, 2}), at::full({2}, scale, at::kDouble),
                                    at::zeros({2}, at::kLong), 0, at::kQInt8);
  };
  expect_equal(per_tensor(1), per_tensor(1));
  EXPECT_FALSE(bit_equal(at::zeros({4}), per_tensor(1)));
  EXPECT_EQ(first_difference(per_tensor(1), at::quantize_per_tensor(values * 2, 2, 0, at::kQInt8)),
            "the root: quantizers");
  expect_equal(per_channel(1), per_channel(1));
  expect_differ(per_channel(1), per_channel(2), "the root: quantizers");
  expect_differ(per_channel(1), per_tensor(1).reshape({2, 2}), "the root: quantization schemes");
}

TEST(BitEqual, ComparesDistributedTensorsByLayoutAndLocalBits) {
  const auto mesh = DeviceMesh::make({2}, 0);
  const at::Tensor whole = at::arange(4, at::kFloat);
  const auto rows = DTensor::distribute(whole, mesh, {Placement::shard(0)});
  expect_equal(rows, DTensor::distribute(whole, DeviceMesh::make({2}, 0), {Placement::shard(0)}));
  expect_differ(rows, DTensor::distribute(whole, mesh, {Placement::replicate()}),
                "the root: placements Shard(0) and Replicate()");
  expect_differ(rows, DTensor::distribute(whole, DeviceMesh::make({4}, 0), {Placement::shard(0)}), "the root: meshes");
  expect_differ(rows, DTensor::distribute(at::zeros({3}), mesh, {Placement::shard(0)}),
                "the root: global sizes [4] and [3]");
  expect_differ(rows, DTensor::distribute(whole + 1, mesh, {Placement::shard(0)}),
                "the root: local tensor: bits, first in element 0 of 2 (row-major)");
}

TEST(BitEqual, ComparesShardedTensorsByShards) {
  const auto make = [](Sizes sizes, std::int64_t offset, double value) {
    return ShardedTensor(std::move(sizes), at::kFloat, {{at::full({2}, value), {offset}}});
  };
  expect_equal(make({8}, 2, 1), make({8}, 2, 1));
  expect_differ(make({8}, 2, 1), make({9}, 2, 1), "the root: global sizes [8] and [9]");
  expect_differ(make({8}, 2, 1), make({8}, 3, 1), "the root: shard 0: offsets [2] and [3]");
  expect_differ(make({8}, 2, 1), make({8}, 2, 2), "the root: shard 0: bits, first in element 0 of 2 (row-major)");
  expect_differ(make({8}, 2, 1), ShardedTensor({8}, at::kFloat, {}), "the root: local shard counts 1 and 0");
  expect_differ(ShardedTensor({8}, at::kHalf, {}), ShardedTensor({8}, at::kFloat, {}),
                "the root: dtypes float16 and float32");
}

TEST(BitEqual, ComparesObjects) {
  class Nothing : public Stateful {
   public:
    Dict state_dict() override { return {}; }
    void load_state_dict(const Dict&) override {}
  };
  const auto one = std::make_shared<Nothing>();
  expect_equal(one, one);
  expect_differ(one, std::make_shared<Nothing>(), "the root: two stateful objects");
  const auto opaque = [](Bytes bytes, std::string name) {
    return Opaque{std::make_shared<const Bytes>(std::move(bytes)), std::move(name)};
  };
  expect_equal(opaque({1}, "a.B"), opaque({1}, "a.B"));
  expect_equal(Opaque(), Opaque());
  expect_differ(opaque({1}, "a.B"), opaque({2}, "a.B"), "the root: stored bytes of an object of type a.B");
  expect_differ(opaque({1}, "a.B"), opaque({1}, "a.C"), "the root: types 'a.B' and 'a.C'");
  EXPECT_FALSE(bit_equal(opaque({1}, "a.B"), Opaque{nullptr, "a.B"}));
}

TEST(BitEqual, RefusesTensorsWithoutPlainElements) {
  const auto compare = [](at::Tensor tensor) { return [tensor = std::move(tensor)] { bit_equal(tensor, tensor); }; };
  const at::Tensor nested = at::_nested_tensor_from_tensor_list({at::ones({2}), at::ones({3})});
  expect_error(ErrorKind::kUnsupported, "sparse", compare(at::ones({2}).to_sparse()));
  expect_error(ErrorKind::kUnsupported, "nested", compare(nested));
  expect_error(ErrorKind::kUnsupported, "meta", compare(at::empty({2}, at::kMeta)));
}

}  // namespace
}  // namespace dcp

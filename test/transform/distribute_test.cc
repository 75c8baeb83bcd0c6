#include "torch_dcp/transform/distribute.h"

#include "test/support/expect_error.h"
#include "test/transform/transform_support.h"

namespace dcp {
namespace {

using namespace test;  // NOLINT: the support's names

using Keys = std::vector<std::string>;

TEST(Distribute, CutsEveryRanksPartsWithoutTraffic) {
  const at::Tensor whole = counted({7, 5});
  const std::vector<Placements> all = {
      {Placement::shard(0), Placement::shard(1)},
      {Placement::shard(0), Placement::shard(0)},
      {Placement::replicate(), Placement::shard(1)},
      {Placement::strided_shard(0, 3), Placement::shard(0)},
      {Placement::strided_shard(1, 3), Placement::shard(1)},
  };
  // No ranks run: one process plays each of them in turn.
  for (int rank = 0; rank < 6; ++rank) {
    for (const Placements& placements : all) {
      const auto mesh = DeviceMesh::make({2, 3}, rank);
      const DTensor live = pattern_on(mesh, placements, {7, 5});
      Dict local = {{"live", live}, {"meta", meta_of(live)}};
      const TransferReport report = distribute_state({{"live", whole}, {"meta", whole}}, local);
      EXPECT_EQ(report, TransferReport());
      const DTensor expected = DTensor::distribute(whole, mesh, placements);
      expect_same(local, Dict{{"live", expected}, {"meta", expected}});
      EXPECT_TRUE(local.at("live").as_dtensor().local().is_same(live.local())) << "written in place";
    }
  }
}

TEST(Distribute, FillsEveryOtherKindOfTarget) {
  const at::Tensor whole = counted({4, 2});
  const at::Tensor plain = pattern({2, 4}).t();
  std::vector<Shard> shards = {{pattern({1, 2}), {3, 0}}, {pattern({2, 1}), {0, 1}}};
  const at::Tensor outside = at::Tensor();
  const auto mesh = std::make_shared<const DeviceMesh>(Sizes{2}, std::vector<std::int64_t>{1, 2}, 0);
  Dict local = {{"plain", plain},
                {"undefined", at::Tensor()},
                {"meta", at::empty({4, 2}, at::kMeta)},
                {"scalar", at::Tensor()},
                {"empty", pattern({0})},
                {"shards", ShardedTensor({4, 2}, at::kFloat, shards)},
                {"outside", DTensor(outside, mesh, {Placement::shard(0)}, {4, 2})},
                {"n", 0},
                {"nested", List{Value(Tuple{Value(at::Tensor())})}}};
  const Dict full = {{"plain", whole},
                     {"undefined", whole},
                     {"meta", whole},
                     {"scalar", at::full({}, 2.0)},
                     {"empty", at::empty({0})},
                     {"shards", whole},
                     {"outside", whole},
                     {"n", "text"},
                     {"nested", List{Value(Tuple{Value(whole)})}}};
  distribute_state(full, local, {.device = at::kCPU});
  shards[0].tensor = whole.narrow(0, 3, 1);
  shards[1].tensor = whole.narrow(0, 0, 2).narrow(1, 1, 1);
  Dict expected = full;
  expected["shards"] = ShardedTensor({4, 2}, at::kFloat, shards);
  expected["outside"] = local.at("outside");
  expect_same(local, expected);
  EXPECT_TRUE(local.at("plain").as_tensor().is_same(plain));
  for (const char* key : {"undefined", "meta", "scalar"}) {
    EXPECT_FALSE(local.at(key).as_tensor().is_alias_of(full.at(key).as_tensor())) << key;
  }
}

TEST(Distribute, ReportsAndRemovesWhatTheFullStateLacks) {
  const Dict full = {{"a", counted({2})}, {"new", Dict{{"x", counted({1})}}}};
  for (bool strict : {false, true}) {
    Dict local = {{"old", pattern({2})}, {"a", pattern({2})}};
    const TransferReport report = distribute_state(full, local, {.strict = strict});
    EXPECT_EQ(report.dropped, Keys{"new.x"});
    EXPECT_EQ(report.removed, strict ? Keys{"old"} : Keys());
    EXPECT_EQ(report.untouched, strict ? Keys() : Keys{"old"});
    EXPECT_EQ(local.contains("old"), !strict);
    expect_same(local.at("a"), counted({2}));
  }
}

TEST(Distribute, NamesEveryMismatchAndChangesNothing) {
  const DTensor rows = pattern_on(DeviceMesh::make({2}, 0), {Placement::shard(0)}, {4});
  Dict local = {{"fine", pattern({3})},
                {"shape", pattern({2})},
                {"rows", rows},
                {"dtype", pattern({3}, at::kInt)},
                {"kind", None()},
                {"n", 1},
                {"undefined", at::Tensor()}};
  const Dict full = {{"fine", counted({3})},     {"shape", counted({3})}, {"rows", counted({3})},
                     {"dtype", counted({3})},    {"kind", counted({3})},  {"n", 2},
                     {"undefined", counted({3})}};
  const auto call = [&] { distribute_state(full, local); };
  expect_error(ErrorKind::kShape, "4 faults", call);
  expect_error(ErrorKind::kShape, "key 'shape': the full state has shape [3], this rank has [2]", call);
  expect_error(ErrorKind::kShape, "key 'rows': the full state has shape [3], this rank has [4]", call);
  expect_error(ErrorKind::kShape, "key 'dtype': the full state has float32, this rank has int32", call);
  expect_error(ErrorKind::kShape, "key 'kind': the full state has a tensor, this rank has a None", call);
  EXPECT_TRUE(is_pattern(local.at("fine").as_tensor()));
  EXPECT_FALSE(local.at("undefined").as_tensor().defined());
  EXPECT_EQ(local.at("n").as_int(), 1);
  expect_error(ErrorKind::kType, "key 'd': a DTensor in the full state",
               [&] { distribute_state({{"d", rows}}, local); });
}

TEST(Distribute, ReadsSourcesBeforeTheirMemoryIsWritten) {
  const at::Tensor both = counted({4});
  Dict local = {{"first", both.narrow(0, 0, 2)}, {"second", both.narrow(0, 2, 2)}};
  distribute_state({{"first", both.narrow(0, 2, 2)}, {"second", both.narrow(0, 0, 2)}}, local);
  EXPECT_TRUE(bit_equal(both, at::tensor({2.0f, 3.0f, 0.0f, 1.0f})));
}

TEST(Distribute, NamesTargetsThatOverlapThemselvesAndChangesNothing) {
  const at::Tensor rows = at::zeros({1, 3}).expand({2, 3});
  const at::Tensor diagonals = at::zeros({5}).as_strided({2, 3}, {1, 1});
  const at::Tensor apart = at::zeros({8}).as_strided({2, 3}, {3, 2});  // Elements 0 2 4 and 3 5 7.
  const at::Tensor whole = counted({2, 3});
  Dict local = {{"fine", pattern({2, 3})}, {"rows", rows}, {"diagonals", diagonals}, {"apart", apart}};
  const Dict full = {{"fine", whole}, {"rows", whole}, {"diagonals", whole}, {"apart", whole}};
  const auto call = [&] { distribute_state(full, local); };
  expect_error(ErrorKind::kUnsupported, "2 faults", call);
  expect_error(ErrorKind::kUnsupported, "key 'rows': a tensor that overlaps itself cannot be written", call);
  expect_error(ErrorKind::kUnsupported, "key 'diagonals': a tensor that overlaps itself cannot be written", call);
  EXPECT_TRUE(is_pattern(local.at("fine").as_tensor()));
  local = {{"apart", apart}};
  distribute_state({{"apart", whole}}, local);
  expect_same(local.at("apart"), whole);
}

TEST(Distribute, ReplacesNoTargetUnlessAllElementsAreThere) {
  const at::Tensor target = at::empty({3}, at::kMeta);
  Dict local = {{"a", target}, {"b", at::Tensor()}};
  // More memory than can be had.
  const Dict full = {{"a", counted({3})}, {"b", at::zeros({1}).expand({std::int64_t{1} << 50})}};
  EXPECT_THROW(distribute_state(full, local), c10::Error);
  EXPECT_TRUE(local.at("a").as_tensor().is_same(target));
  EXPECT_FALSE(local.at("b").as_tensor().defined());
}

TEST(Distribute, ATensorThatIsThereTwiceBecomesOne) {
  const at::Tensor tied = at::empty({3}, at::kMeta);
  Dict local = {{"a", tied}, {"b", List{Value(tied)}}, {"c", at::empty({3}, at::kMeta)}};
  distribute_state({{"a", counted({3})}, {"b", List{Value(counted({3}))}}, {"c", counted({3})}}, local);
  expect_same(local.at("a"), counted({3}));
  EXPECT_TRUE(local.at("a").as_tensor().is_same(local.at("b").as_list()[0].as_tensor()));
  EXPECT_FALSE(local.at("a").as_tensor().is_same(local.at("c").as_tensor()));
}

}  // namespace
}  // namespace dcp

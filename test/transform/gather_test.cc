#include "torch_dcp/transform/gather.h"

#include <functional>
#include <stdexcept>

#include "test/support/expect_error.h"
#include "test/transform/transform_support.h"
#include "torch_dcp/transform/gather_plan_internal.h"

namespace dcp {
namespace {

using namespace test;  // NOLINT: the support's names

using Run = std::function<void(RankContext&, Communicator&)>;

void on_ranks(int world_size, const Run& run) {
  run_ranks(world_size, [&](RankContext& ranks) {
    Communicator comm = ranks.communicator();
    run(ranks, comm);
  });
}

TEST(Gather, MakesWholesOfUnevenAndEmptyPartsAtAnyDepth) {
  on_ranks(4, [](RankContext& ranks, Communicator& comm) {
    const auto part = [&](c10::IntArrayRef sizes, std::int64_t dim, at::ScalarType dtype = at::kFloat) {
      return split(counted(sizes, dtype), ranks, dim);
    };
    const DTensor scalar = placed(at::full({}, 2.5), {4}, {Placement::replicate()}, ranks.rank());
    const Dict state = {{"uneven", part({10, 3}, 0)},
                        {"few rows", part({2, 5}, 0, at::kLong)},
                        {"columns", Dict{{"inner", List{Value(part({3, 7}, 1)), Value(4)}}}},
                        {"no elements", Tuple{Value(part({0, 4}, 0)), Value(part({4, 0}, 0))}},
                        {"scalar", scalar},
                        {"bool", part({5}, 0, at::kBool)},
                        {std::int64_t{3}, "text"},
                        {"empty", Dict()}};
    const Dict expected = {{"uneven", counted({10, 3})},
                           {"few rows", counted({2, 5}, at::kLong)},
                           {"columns", Dict{{"inner", List{Value(counted({3, 7})), Value(4)}}}},
                           {"no elements", Tuple{Value(at::empty({0, 4})), Value(at::empty({4, 0}))}},
                           {"scalar", at::full({}, 2.5)},
                           {"bool", counted({5}, at::kBool)},
                           {std::int64_t{3}, "text"},
                           {"empty", Dict()}};
    expect_same(gather(state, comm), expected);
    // In pieces of a few elements, and several tensors to a step.
    for (std::int64_t bucket_bytes : {1, 20, 64, 200}) {
      expect_same(gather(state, comm, {.bucket_bytes = bucket_bytes}), expected);
    }
  });
}

TEST(Gather, FollowsTwoDimensionalMeshesAndStridedShards) {
  on_ranks(6, [](RankContext& ranks, Communicator& comm) {
    const at::Tensor whole = counted({7, 5});
    const std::vector<Placements> all = {
        {Placement::shard(0), Placement::shard(1)},
        {Placement::shard(1), Placement::shard(0)},
        {Placement::shard(0), Placement::shard(0)},
        {Placement::replicate(), Placement::shard(0)},
        {Placement::shard(1), Placement::replicate()},
        {Placement::strided_shard(0, 3), Placement::shard(0)},
        {Placement::strided_shard(1, 3), Placement::shard(1)},
        {Placement::replicate(), Placement::replicate()},
    };
    Dict state;
    Dict expected;
    for (std::size_t i = 0; i < all.size(); ++i) {
      const Key key = static_cast<std::int64_t>(i);
      state[key] = placed(whole, {2, 3}, all[i], ranks.rank());
      expected[key] = whole;
    }
    expect_same(gather(state, comm), expected);
    expect_same(gather(state, comm, {.bucket_bytes = 24}), expected);
  });
}

TEST(Gather, GivesTheWholeToRanksOutsideOfTheMesh) {
  on_ranks(4, [](RankContext& ranks, Communicator& comm) {
    const auto mesh = std::make_shared<const DeviceMesh>(Sizes{2}, std::vector<std::int64_t>{3, 1}, ranks.rank());
    const at::Tensor whole = counted({5, 2}, at::kDouble);
    Dict state = {{"w", DTensor::distribute(whole, mesh, {Placement::shard(0)})},
                  {"r", DTensor::distribute(whole, mesh, {Placement::replicate()})}};
    if (ranks.rank() == 0) state["w"] = DTensor(at::Tensor(), mesh, {Placement::shard(0)}, {5, 2});
    expect_same(gather(state, comm), Dict{{"w", whole}, {"r", whole}});
  });
}

TEST(Gather, TheLowestHoldersBitsCount) {
  on_ranks(3, [](RankContext& ranks, Communicator& comm) {
    const auto mesh = std::make_shared<const DeviceMesh>(Sizes{2}, std::vector<std::int64_t>{2, 1}, ranks.rank());
    const DTensor different = DTensor::distribute(at::full({3}, ranks.rank() * 1.0), mesh, {Placement::replicate()});
    expect_same(gather({{"r", different}}, comm), Dict{{"r", at::full({3}, 1.0)}});
  });
}

TEST(Gather, PutsTogetherShardedTensorsWithAnyNumberOfShards) {
  on_ranks(3, [](RankContext& ranks, Communicator& comm) {
    const at::Tensor whole = counted({4, 6});
    const auto shard = [&](std::int64_t row, std::int64_t column, std::int64_t rows, std::int64_t columns) {
      return Shard{whole.narrow(0, row, rows).narrow(1, column, columns), {row, column}};
    };
    std::vector<Shard> shards;
    if (ranks.rank() == 0) shards = {shard(3, 0, 1, 6), shard(0, 0, 3, 2)};
    if (ranks.rank() == 2) shards = {shard(0, 2, 3, 1), shard(1, 3, 2, 3), shard(0, 3, 1, 3)};
    std::vector<Shard> scalar;
    if (ranks.rank() == 1) scalar = {{at::full({}, 7.0), {}}};
    const Dict state = {{"boxes", ShardedTensor({4, 6}, at::kFloat, shards)},
                        {"scalar", ShardedTensor({}, at::kFloat, scalar)},
                        {"nothing", ShardedTensor({0, 2}, at::kFloat, {})}};
    const Dict expected = {{"boxes", whole}, {"scalar", at::full({}, 7.0)}, {"nothing", at::empty({0, 2})}};
    expect_same(gather(state, comm), expected);
    expect_same(gather(state, comm, {.bucket_bytes = 8}), expected);
  });
}

/// The same summands on each mesh dimension's places, by rank.
DTensor partial(const at::Tensor& local, Sizes mesh_shape, Placements placements, Sizes sizes, int rank) {
  return DTensor(local, DeviceMesh::make(std::move(mesh_shape), rank), std::move(placements), std::move(sizes));
}

TEST(Gather, ReducesPartialPartsInTheOrderOfRanks) {
  on_ranks(4, [](RankContext& ranks, Communicator& comm) {
    // In float32 each order of these has another sum.
    const float kSummands[] = {1e8f, 3.0f, -1e8f, 5.0f};
    const float expected = ((kSummands[0] + kSummands[1]) + kSummands[2]) + kSummands[3];
    const at::Tensor mine = at::full({3}, kSummands[ranks.rank()]);
    const auto with = [&](const char* op) { return partial(mine, {4}, {Placement::partial(op)}, {3}, ranks.rank()); };
    const at::Tensor logical = at::full({2}, ranks.rank() == 2, at::kBool);
    const Dict state = {
        {"sum", with("sum")},         {"avg", with("avg")},
        {"max", with("max")},         {"min", with("min")},
        {"product", with("product")}, {"bool", partial(logical, {4}, {Placement::partial()}, {2}, ranks.rank())}};
    const Dict wholes = gather(state, comm);
    expect_same(wholes.at("sum"), at::full({3}, expected));
    expect_same(wholes.at("avg"), at::full({3}, expected / 4));
    expect_same(wholes.at("max"), at::full({3}, 1e8f));
    expect_same(wholes.at("min"), at::full({3}, -1e8f));
    expect_same(wholes.at("product"), at::full({3}, ((kSummands[0] * kSummands[1]) * kSummands[2]) * kSummands[3]));
    expect_same(wholes.at("bool"), at::full({2}, true, at::kBool));
    expect_same(gather(state, comm, {.bucket_bytes = 10}), wholes);
    expect_same(mine, at::full({3}, kSummands[ranks.rank()]));
  });
}

TEST(Gather, ReducesPartialPartsOfShardsAndCountsReplicasOnce) {
  on_ranks(6, [](RankContext& ranks, Communicator& comm) {
    const int row = ranks.rank() / 3;
    const int column = ranks.rank() % 3;
    const Dict state = {
        {"shards of sums", partial(at::full({2, 2}, row + 1.0), {2, 3}, {Placement::partial(), Placement::shard(0)},
                                   {6, 2}, ranks.rank())},
        {"replicas", partial(at::full({2}, column + 1.0), {2, 3}, {Placement::replicate(), Placement::partial()}, {2},
                             ranks.rank())},
        {"both", partial(at::full({2}, 1.0), {2, 3}, {Placement::partial(), Placement::partial()}, {2}, ranks.rank())}};
    const Dict expected = {
        {"shards of sums", at::full({6, 2}, 3.0)}, {"replicas", at::full({2}, 6.0)}, {"both", at::full({2}, 6.0)}};
    expect_same(gather(state, comm), expected);
  });
}

TEST(Gather, GivesNothingToRanksThatAreLeftOut) {
  on_ranks(3, [](RankContext& ranks, Communicator& comm) {
    const DTensor part = split(counted({5}), ranks);
    const Dict state = {{"w", part}, {"n", 1}};
    const Dict expected = {{"w", counted({5})}, {"n", 1}};
    for (const std::vector<int>& chosen : std::vector<std::vector<int>>{{0}, {1}, {0, 2}, {2, 1, 0}}) {
      const bool is_chosen = std::find(chosen.begin(), chosen.end(), ranks.rank()) != chosen.end();
      expect_same(gather(state, comm, {.ranks = chosen}), is_chosen ? expected : Dict());
      expect_same(gather_value(part, comm, {.ranks = chosen}), is_chosen ? Value(counted({5})) : Value());
      const Value list = List{Value(part)};
      expect_same(gather_value(list, comm, {.ranks = chosen}), is_chosen ? Value(List{Value(counted({5}))}) : Value());
    }
  });
}

TEST(Gather, LeavesOtherValuesAsTheyAreAndMakesNewWholes) {
  on_ranks(2, [](RankContext& ranks, Communicator& comm) {
    const at::Tensor plain = at::ones({2});
    const DTensor replicated = placed(at::ones({2}), {2}, {Placement::replicate()}, ranks.rank());
    at::Tensor leaf = at::ones({4}).set_requires_grad(true);
    const Dict state = {{"plain", plain},
                        {"replicated", replicated},
                        {"leaf", split(leaf, ranks)},
                        {"none", None()},
                        {"undefined", at::Tensor()}};
    for (bool cpu_offload : {false, true}) {
      const Dict whole = gather(state, comm, {.cpu_offload = cpu_offload});
      EXPECT_TRUE(whole.at("plain").as_tensor().is_same(plain)) << "it lies on the CPU already";
      EXPECT_FALSE(whole.at("replicated").as_tensor().is_alias_of(replicated.local()));
      EXPECT_FALSE(whole.at("leaf").as_tensor().requires_grad());
      EXPECT_TRUE(whole.at("leaf").as_tensor().is_contiguous());
      EXPECT_FALSE(whole.at("undefined").as_tensor().defined());
    }
    EXPECT_TRUE(state.at("leaf").as_dtensor().local().requires_grad());
  });
}

TEST(Gather, ReadsStridedPartsAndTakesStatefulObjectsForTheirStates) {
  on_ranks(2, [](RankContext& ranks, Communicator& comm) {
    const at::Tensor whole = counted({6, 4});
    const at::Tensor columns = whole.t().contiguous().t().narrow(0, ranks.rank() * 3, 3);
    ASSERT_FALSE(columns.is_contiguous());
    const DTensor strided(columns, mesh_of(ranks), {Placement::shard(0)}, {6, 4});
    const auto object = std::make_shared<FixedState>(Dict{{"w", strided}});
    const Dict state = {{"first", object}, {"again", List{Value(object)}}};
    expect_same(gather(state, comm), Dict{{"first", Dict{{"w", whole}}}, {"again", List{Value(Dict{{"w", whole}})}}});
    EXPECT_EQ(object->asked, 1);
  });
}

TEST(Gather, KeepsTheQuantizerOfAWhole) {
  on_ranks(2, [](RankContext& ranks, Communicator& comm) {
    const at::Tensor whole = at::quantize_per_tensor(counted({5}), 0.5, 3, at::kQInt8);
    const Dict state = {{"q", split(whole, ranks)}};
    expect_same(gather(state, comm), Dict{{"q", whole}});
  });
}

TEST(Gather, DoesNotMindTheOrderOfKeys) {
  on_ranks(2, [](RankContext& ranks, Communicator& comm) {
    const std::pair<Key, Value> a = {"a", split(counted({5}), ranks)};
    const std::pair<Key, Value> b = {"b", split(counted({3, 2}), ranks)};
    const Dict state = ranks.rank() == 0 ? Dict{a, b} : Dict{b, a};
    const std::pair<Key, Value> whole_a = {"a", counted({5})};
    const std::pair<Key, Value> whole_b = {"b", counted({3, 2})};
    expect_same(gather(state, comm, {.bucket_bytes = 16}),
                ranks.rank() == 0 ? Dict{whole_a, whole_b} : Dict{whole_b, whole_a});
  });
}

TEST(Gather, WhatIsThereTwiceIsOneWholeInBothPlaces) {
  on_ranks(3, [](RankContext& ranks, Communicator& comm) {
    const at::Tensor whole = counted({7, 2});
    const DTensor part = split(whole, ranks);
    const DTensor copy(part.local().clone(), part.mesh_ptr(), part.placements(), part.global_sizes());
    const DTensor everywhere = placed(counted({3}), {3}, {Placement::replicate()}, ranks.rank());
    // Rank 1 has nothing of it, and cannot tell.
    std::vector<Shard> shards;
    if (ranks.rank() == 0) shards = {{whole.narrow(0, 0, 4), {0, 0}}};
    if (ranks.rank() == 2) shards = {{whole.narrow(0, 4, 3), {4, 0}}};
    const ShardedTensor sharded({7, 2}, at::kFloat, shards);
    const auto outer_mesh = std::make_shared<const DeviceMesh>(Sizes{2}, std::vector<std::int64_t>{0, 2}, ranks.rank());
    const auto of_two = [&] {
      if (ranks.rank() == 1) return DTensor(at::empty({0, 2}), outer_mesh, {Placement::shard(0)}, {7, 2});
      return DTensor::distribute(whole, outer_mesh, {Placement::shard(0)});
    };
    const DTensor outside = of_two();
    const Dict values = {{"part", part},       {"everywhere", everywhere},
                         {"sharded", sharded}, {"outside", outside},
                         {"copy", copy},       {"elsewhere", ranks.rank() == 1 ? copy : part}};
    Dict first = values;
    first.erase("copy");
    first.erase("elsewhere");
    // The order of keys is each rank's own affair.
    Dict state = ranks.rank() == 2 ? Dict{{"deep", List{Value(first)}}, {"values", values}}
                                   : Dict{{"values", values}, {"deep", List{Value(first)}}};
    if (ranks.rank() == 1) {
      // Outside of the mesh there is no telling which part this is not.
      state.at("deep").as_list().at(0).as_dict()["outside"] = of_two();
    }
    for (const std::int64_t bucket_bytes : {16, 1000}) {
      for (const std::vector<int>& chosen : std::vector<std::vector<int>>{{}, {0}, {1, 2}}) {
        const Dict wholes = gather(state, comm, {.ranks = chosen, .bucket_bytes = bucket_bytes});
        if (!chosen.empty() && std::find(chosen.begin(), chosen.end(), ranks.rank()) == chosen.end()) continue;
        const Dict& got = wholes.at("values").as_dict();
        const Dict& again = wholes.at("deep").as_list().at(0).as_dict();
        for (const auto& [key, value] : got) {
          const bool is_short = key == Key("everywhere");
          expect_same(value, is_short ? counted({3}) : whole);
          if (!again.contains(key)) continue;
          EXPECT_TRUE(value.as_tensor().is_same(again.at(key).as_tensor())) << to_string(key);
        }
        for (const char* other : {"sharded", "outside", "copy", "elsewhere"}) {
          EXPECT_FALSE(got.at("part").as_tensor().is_alias_of(got.at(other).as_tensor())) << other;
        }
      }
    }
  });
}

TEST(Gather, OneLocalTensorInTwoLayoutsIsTwoWholes) {
  on_ranks(2, [](RankContext& ranks, Communicator& comm) {
    const at::Tensor local = at::full({2, 2}, static_cast<double>(ranks.rank()));
    const auto of = [&](std::int64_t dim, Sizes sizes) {
      return DTensor(local, mesh_of(ranks), {Placement::shard(dim)}, std::move(sizes));
    };
    const auto shard_at = [&](std::int64_t row) { return ShardedTensor({4, 2}, at::kFloat, {{local, {row, 0}}}); };
    const int rank = ranks.rank();
    const Dict state = {{"rows", of(0, {4, 2})},
                        {"columns", of(1, {2, 4})},
                        {"shards", shard_at(2 * rank)},
                        {"turned", shard_at(2 - 2 * rank)}};
    const at::Tensor none = at::zeros({2, 2}), one = at::ones({2, 2});
    expect_same(gather(state, comm), Dict{{"rows", at::cat({none, one})},
                                          {"columns", at::cat({none, one}, 1)},
                                          {"shards", at::cat({none, one})},
                                          {"turned", at::cat({one, none})}});
  });
}

TEST(Gather, WorksInAWorldOfOne) {
  Communicator comm = Communicator::single();
  const at::Tensor whole = counted({4, 2});
  std::vector<Shard> shards = {{whole.narrow(0, 0, 1), {0, 0}}, {whole.narrow(0, 1, 3), {1, 0}}};
  const Dict state = {{"d", placed(whole, {1}, {Placement::shard(0)}, 0)},
                      {"s", ShardedTensor({4, 2}, at::kFloat, std::move(shards))}};
  expect_same(gather(state, comm), Dict{{"d", whole}, {"s", whole}});
}

TEST(Gather, NamesEveryDisagreementOnEveryRank) {
  ErrorsByRank errors(3);
  on_ranks(3, [&](RankContext& ranks, Communicator& comm) {
    const bool is_odd = ranks.rank() == 1;
    Dict state = {
        {"kind", is_odd ? Value(at::ones({2})) : Value(split(counted({3}), ranks))},
        {"plain kind", is_odd ? Value(1) : Value("text")},
        {"shape", split(counted({is_odd ? 4 : 3}), ranks)},
        {"dtype", split(counted({3}, is_odd ? at::kHalf : at::kFloat), ranks)},
        {"layout", is_odd ? placed(counted({3}), {3}, {Placement::replicate()}, 1) : split(counted({3}), ranks)},
        {"mesh", placed(counted({3}), is_odd ? Sizes{3, 1} : Sizes{1, 3},
                        {Placement::replicate(), Placement::replicate()}, ranks.rank())},
        {"fine", split(counted({3}), ranks)}};
    if (is_odd) state["deep"] = Dict{{"missing", 1}};
    const bool is_second = ranks.rank() == 2;
    const std::int64_t begin = is_second ? 2 : 0;
    state["overlap"] = ShardedTensor({4}, at::kFloat, {{at::ones({is_second ? 2 : 3}), {begin}}});
    state["hole"] = ShardedTensor({4}, at::kFloat, {{at::ones({is_second ? 1 : 2}), {begin}}});
    errors.run(ranks.rank(), [&] { gather(state, comm); });
    // The group is as good as before.
    expect_same(gather({{"w", split(counted({3}), ranks)}}, comm), Dict{{"w", counted({3})}});
  });
  errors.expect({0},
                {
                    "9 faults",
                    "key 'kind': the ranks differ in its kind: DTensor on ranks [0, 2], tensor on rank [1]",
                    "key 'plain kind': the ranks differ in its kind: string on ranks [0, 2], int on rank [1]",
                    "key 'shape': the ranks differ in its shape: [3] on ranks [0, 2], [4] on rank [1]",
                    "key 'dtype': the ranks differ in its dtype: float32 on ranks [0, 2], float16 on rank [1]",
                    "key 'layout': the ranks differ in its layout: mesh [3] of ranks [0, 1, 2], placements Shard(0)",
                    "key 'mesh': the ranks differ in its layout: mesh [1, 3]",
                    "key 'deep.missing': the ranks differ in whether they have it: missing on ranks [0, 2], there "
                    "on rank [1]",
                    "key 'overlap': the parts of rank [0] at [0] + [3] and of rank [2] at [2] + [2] overlap",
                    "key 'hole': the ranks that take part hold 3 of its 4 elements",
                });
}

TEST(Gather, RefusesWhatItCannotPutTogether) {
  ErrorsByRank errors(2);
  on_ranks(2, [&](RankContext& ranks, Communicator& comm) {
    const DTensor fine = split(counted({4}), ranks);
    const at::Tensor channels =
        at::quantize_per_channel(counted({2, 2}), at::ones({2}, at::kDouble), at::zeros({2}, at::kLong), 0, at::kQInt8);
    const auto larger = std::make_shared<const DeviceMesh>(Sizes{3}, std::vector<std::int64_t>{0, 1, 2}, ranks.rank());
    const Dict state = {{"meta", meta_of(fine)},
                        {"sparse", DTensor(at::ones({2}).to_sparse(), mesh_of(ranks), {Placement::shard(0)}, {4})},
                        {"channels", DTensor(channels, mesh_of(ranks), {Placement::replicate()}, {2, 2})},
                        {"two", partial(at::ones({2}), {2, 1}, {Placement::partial("sum"), Placement::partial("max")},
                                        {2}, ranks.rank())},
                        {"plain", at::empty({2}, at::kMeta)}};
    errors.run(ranks.rank(), [&] { gather(state, comm, {.cpu_offload = true}); });
    EXPECT_TRUE(gather({{"plain", state.at("plain")}}, comm).at("plain").as_tensor().is_meta()) << "it stays there";
    const auto refused = [&](const Dict& one, ErrorKind kind, const std::string& text) {
      ranks.note(text);
      expect_error(kind, text, [&] { gather(one, comm); });
    };
    refused({{"op", partial(at::ones({2}), {2}, {Placement::partial("norm")}, {2}, ranks.rank())}},
            ErrorKind::kUnsupported, "the reduction 'norm'");
    refused({{"avg", partial(at::ones({2}, at::kLong), {2}, {Placement::partial("avg")}, {2}, ranks.rank())}},
            ErrorKind::kUnsupported, "the reduction 'avg' of Partial parts of dtype int64");
    const auto sum_of = [&](at::ScalarType dtype) {
      return partial(at::empty({2}, dtype), {2}, {Placement::partial()}, {2}, ranks.rank());
    };
    refused({{"eight", sum_of(at::kFloat8_e4m3fn)}, {"wide", sum_of(at::kUInt32)}, {"half", sum_of(at::kHalf)}},
            ErrorKind::kUnsupported, "2 faults");
    refused({{"eight", sum_of(at::kFloat8_e5m2)}}, ErrorKind::kUnsupported,
            "key 'eight': the reduction 'sum' of Partial parts of dtype float8_e5m2");
    refused({{"q", split(at::quantize_per_tensor(counted({4}), 1 + ranks.rank(), 0, at::kQInt8), ranks)}},
            ErrorKind::kUnsupported, "its quantizer");
    refused({{"larger", DTensor::distribute(counted({6}), larger, {Placement::shard(0)})}}, ErrorKind::kInvalidArgument,
            "key 'larger': the ranks that take part hold 4 of its 6 elements");
    refused({{"summand", DTensor(at::ones({2}), larger, {Placement::partial()}, {2})}}, ErrorKind::kInvalidArgument,
            "only ranks [0, 1] of 3 that hold summands take part");
  });
  errors.expect({0, 1}, {"5 faults", "key 'meta': a tensor on the meta device cannot be gathered",
                         "key 'sparse': a tensor of layout Sparse cannot be gathered",
                         "key 'channels': a tensor with a quantizer for each channel",
                         "key 'two': a DTensor with Partial placements of two reductions, sum and max",
                         "key 'plain': a tensor on the meta device cannot be moved to the CPU"});
  EXPECT_EQ(errors.kind(), ErrorKind::kUnsupported);
}

TEST(Gather, RefusesOptionsThatDifferOrCannotBe) {
  on_ranks(2, [](RankContext& ranks, Communicator& comm) {
    const Dict state = {{"w", split(counted({4}), ranks)}};
    const auto refused = [&](const GatherOptions& options, const std::string& text) {
      expect_error(ErrorKind::kInvalidArgument, text, [&] { gather(state, comm, options); });
    };
    refused({.ranks = {ranks.rank()}}, "the options ranks and bucket_bytes of rank 1 are not those of rank 0");
    refused({.bucket_bytes = 100 + ranks.rank()}, "bucket_bytes of rank 1");
    refused({.bucket_bytes = 0}, "bucket_bytes is 0");
    refused({.ranks = {2}}, "no rank 2 can be chosen");
    refused({.ranks = {-1}}, "no rank -1 can be chosen");
  });
}

TEST(Gather, FailsAlikeIfOneRanksObjectThrows) {
  class Throws : public Stateful {
   public:
    Dict state_dict() override { throw std::runtime_error("no state today"); }
    void load_state_dict(const Dict&) override {}
  };
  ErrorsByRank errors(3);
  on_ranks(3, [&](RankContext& ranks, Communicator& comm) {
    Dict state = {{"o", std::make_shared<FixedState>(Dict{{"w", 1}})}};
    if (ranks.rank() == 2) state["o"] = std::make_shared<Throws>();
    errors.run(ranks.rank(), [&] { gather(state, comm); });
  });
  errors.expect({2}, {"no state today", "['o']"});
}

TEST(Gather, AMessageThatTakesATensorForALaterOneIsRefused) {
  for (const std::uint64_t same_as : {0, 1, 2, 9}) {
    GatherPlan plan;
    plan.tensors.resize(2);
    plan.tensors[1].same_as = same_as;
    ByteWriter out;
    encode(out, plan);
    const Bytes bytes = std::move(out).take();
    ByteReader in(bytes);
    GatherPlan received;
    if (same_as == 0) {
      decode(in, received);
      EXPECT_EQ(received.tensors[1].same_as, 0u);
    } else {
      expect_error(ErrorKind::kCorruptData, "does not come before it", [&] { decode(in, received); });
    }
  }
}

}  // namespace
}  // namespace dcp

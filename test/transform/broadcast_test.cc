#include "torch_dcp/transform/broadcast.h"

#include <functional>

#include "test/support/expect_error.h"
#include "test/transform/transform_support.h"
#include "torch_dcp/transform/outline.h"

namespace dcp {
namespace {

using namespace test;  // NOLINT: the support's names

using Run = std::function<void(RankContext&, Communicator&)>;

void on_ranks(int world_size, const Run& run, CommunicatorOptions options = {}) {
  run_ranks(world_size, [&](RankContext& ranks) {
    Communicator comm = ranks.communicator(options);
    run(ranks, comm);
  });
}

/// What only the coordinator has.
Dict full_for(const Communicator& comm, const Dict& full) { return comm.is_coordinator() ? full : Dict(); }

using Keys = std::vector<std::string>;

TEST(Broadcast, FillsEveryKindOfTarget) {
  const at::Tensor matrix = counted({7, 3});
  const Dict full = {{"plain", matrix},
                     {"strided", matrix},
                     {"rows", matrix},
                     {"grid", matrix},
                     {"boxes", matrix},
                     {"undefined", counted({4}, at::kLong)},
                     {"meta", counted({2, 2}, at::kHalf)},
                     {"meta rows", matrix},
                     {"scalar", at::full({}, 3.5)},
                     {"empty", at::empty({0, 3})},
                     {"empty undefined", at::empty({2, 0})},
                     {"double", counted({3}, at::kDouble)},
                     {"nested", Dict{{"l", List{Value(matrix), Value(Tuple{Value(at::full({}, 1.0)), Value(5)})}}}},
                     {"int", 7},
                     {"none", None()},
                     {"bytes", Bytes{1, 2}},
                     {std::int64_t{4}, 0.5},
                     {"object", Opaque{std::make_shared<const Bytes>(Bytes{9}), "a.B"}}};
  for (std::int64_t bucket_bytes : {std::int64_t{1} << 26, std::int64_t{40}, std::int64_t{1}}) {
    on_ranks(4, [&](RankContext& ranks, Communicator& comm) {
      const at::Tensor plain = pattern({7, 3});
      const at::Tensor strided = pattern({3, 7}).t();
      const DTensor rows = split_pattern({7, 3}, ranks);
      const DTensor grid =
          pattern_on(DeviceMesh::make({2, 2}, ranks.rank()), {Placement::shard(1), Placement::shard(0)}, {7, 3});
      std::vector<Shard> shards;
      if (ranks.rank() == 1) shards = {{pattern({2, 3}), {5, 0}}, {pattern({1, 1}), {2, 2}}};
      const DTensor meta_rows = meta_of(split_pattern({7, 3}, ranks));
      Dict local = {{"plain", plain},
                    {"strided", strided},
                    {"rows", rows},
                    {"grid", grid},
                    {"boxes", ShardedTensor({7, 3}, at::kFloat, shards)},
                    {"undefined", at::Tensor()},
                    {"meta", at::empty({2, 2}, at::TensorOptions(at::kHalf).device(at::kMeta))},
                    {"meta rows", meta_rows},
                    {"scalar", pattern({})},
                    {"empty", pattern({0, 3})},
                    {"empty undefined", at::Tensor()},
                    {"double", pattern({3}, at::kDouble)},
                    {"nested", Dict{{"l", List{Value(pattern({7, 3})), Value(Tuple{Value(pattern({})), Value(0)})}}}},
                    {"int", "old"},
                    {"none", 1},
                    {"bytes", None()},
                    {std::int64_t{4}, 0},
                    {"object", 0}};
      const BroadcastReport report = broadcast_state(full_for(comm, full), local, comm, {.bucket_bytes = bucket_bytes});
      EXPECT_EQ(report, BroadcastReport());

      Dict expected = full;
      expected["rows"] = split(matrix, ranks);
      expected["grid"] = placed(matrix, {2, 2}, {Placement::shard(1), Placement::shard(0)}, ranks.rank());
      for (Shard& shard : shards) {
        shard.tensor =
            matrix.narrow(0, shard.offsets[0], shard.tensor.size(0)).narrow(1, shard.offsets[1], shard.tensor.size(1));
      }
      expected["boxes"] = ShardedTensor({7, 3}, at::kFloat, shards);
      expected["meta rows"] = split(matrix, ranks);
      expect_same(local, expected);
      EXPECT_TRUE(local.at("plain").as_tensor().is_same(plain)) << "written in place";
      EXPECT_TRUE(local.at("strided").as_tensor().is_same(strided));
      EXPECT_TRUE(local.at("rows").as_dtensor().local().is_same(rows.local()));
    });
  }
}

TEST(Broadcast, TheSourceIsTheCoordinatorOfTheGroup) {
  // Ranks of the group throughout: rank 2 of 4 is rank 1 of the group.
  run_ranks(4, [](RankContext& ranks) {
    if (ranks.rank() % 2 == 1) return;
    CommunicatorOptions options;
    options.coordinator = 1;
    Communicator comm = ranks.sub_communicator({0, 2}, "even", options);
    const Dict full = {
        {"w", at::full({100}, ranks.rank() * 1.0)}, {"x", ranks.rank()}, {"y", at::full({3}, ranks.rank() * 1.0)}};
    Dict local = {{"w", at::Tensor()}, {"x", 0}, {"y", pattern({3})}};
    broadcast_state(full, local, comm, {.bucket_bytes = 64});
    expect_same(local, Dict{{"w", at::full({100}, 2.0)}, {"x", 2}, {"y", at::full({3}, 2.0)}});
  });
}

TEST(Broadcast, ReportsWhatLocalLacksAndWhatTheFullStateLacks) {
  const Dict full = {{"a", counted({3})},
                     {"deep", Dict{{"x", counted({2})}, {"y", 4}, {"z", Dict()}}},
                     {"only full", List{Value(counted({5})), Value(6)}}};
  for (bool strict : {false, true}) {
    on_ranks(3, [&](RankContext& ranks, Communicator& comm) {
      const bool is_last = ranks.rank() == 2;
      Dict local = {{"mine", Dict{{"p", pattern({2})}, {"q", List{Value(1), Value(Dict())}}}},
                    {"a", pattern({3})},
                    {"deep", Dict{{"x", pattern({2})}, {"other", 9}}}};
      if (is_last) local.erase("a");
      const Dict before = local;
      const BroadcastReport report = broadcast_state(full_for(comm, full), local, comm, {.strict = strict});
      Keys dropped = {"deep.y", "deep.z", "only full.0", "only full.1"};
      if (is_last) dropped.insert(dropped.begin(), "a");
      const Keys unknown = {"deep.other", "mine.p", "mine.q.0", "mine.q.1"};
      EXPECT_EQ(report.dropped, dropped);
      EXPECT_EQ(report.removed, strict ? unknown : Keys());
      EXPECT_EQ(report.untouched, strict ? Keys() : unknown);
      Dict expected;
      if (!strict) expected["mine"] = before.at("mine");
      if (!is_last) expected["a"] = counted({3});
      expected["deep"] = Dict{{"x", counted({2})}};
      if (!strict) expected.at("deep").as_dict()["other"] = 9;
      expect_same(local, expected);
      if (!strict) {
        EXPECT_TRUE(is_pattern(local.at("mine").as_dict().at("p").as_tensor()));
      }
    });
  }
}

TEST(Broadcast, NewTensorsKeepStridesAndRequiresGrad) {
  on_ranks(2, [](RankContext& ranks, Communicator& comm) {
    const Dict full = {{"w", counted({4, 6})}, {"d", counted({4, 6})}};
    at::Tensor target = at::empty({6, 4}, at::kMeta).t();
    target.set_requires_grad(true);
    const DTensor columns(at::empty({6, 2}, at::kMeta).t(), mesh_of(ranks), {Placement::shard(0)}, {4, 6});
    Dict local = {{"w", target}, {"d", columns}};
    broadcast_state(full_for(comm, full), local, comm, {.device = at::kCPU, .bucket_bytes = 30});
    expect_same(local, Dict{{"w", counted({4, 6})}, {"d", split(counted({4, 6}), ranks)}});
    EXPECT_EQ(local.at("w").as_tensor().strides(), target.strides());
    EXPECT_TRUE(local.at("w").as_tensor().requires_grad());
    EXPECT_EQ(local.at("d").as_dtensor().local().strides(), columns.local().strides());
  });
}

TEST(Broadcast, WritesIntoLeavesThatRequireGradAndPartsOutsideOfTheMesh) {
  on_ranks(3, [](RankContext& ranks, Communicator& comm) {
    const auto mesh = std::make_shared<const DeviceMesh>(Sizes{2}, std::vector<std::int64_t>{1, 2}, ranks.rank());
    at::Tensor leaf = at::ones({3}).set_requires_grad(true);
    const DTensor half = DTensor::distribute(pattern({4}, at::kHalf), mesh, {Placement::shard(0)});
    Dict local = {{"leaf", leaf}, {"half", half}};
    if (ranks.rank() == 0) local["half"] = DTensor(at::Tensor(), mesh, {Placement::shard(0)}, {4});
    const Dict full = {{"leaf", counted({3})}, {"half", counted({4}, at::kHalf)}};
    broadcast_state(full_for(comm, full), local, comm);
    EXPECT_TRUE(bit_equal(leaf, counted({3})));
    EXPECT_TRUE(leaf.requires_grad() && leaf.is_leaf());
    if (ranks.rank() > 0) {
      expect_same(local.at("half"), DTensor::distribute(counted({4}, at::kHalf), mesh, {Placement::shard(0)}));
    }
  });
}

TEST(Broadcast, TakesTheQuantizerAndStatefulObjectsAlong) {
  on_ranks(2, [](RankContext&, Communicator& comm) {
    const at::Tensor quantized = at::quantize_per_tensor(counted({3, 2}), 0.5, 2, at::kQUInt8);
    const Dict full = {{"o", std::make_shared<FixedState>(Dict{{"q", quantized}})}, {"p", quantized}};
    Dict local = {{"o", Dict{{"q", at::Tensor()}}},
                  {"p", at::quantize_per_tensor(at::zeros({3, 2}), 1.0, 0, at::kQUInt8)}};
    broadcast_state(full_for(comm, full), local, comm);
    expect_same(local, Dict{{"o", Dict{{"q", quantized}}}, {"p", quantized}});
  });
}

TEST(Broadcast, TheCoordinatorsStateMayBeItsOwnFullState) {
  on_ranks(2, [](RankContext& ranks, Communicator& comm) {
    Dict state = {{"w", at::full({50}, ranks.rank() + 1.0)}, {"n", ranks.rank()}};
    broadcast_state(state, state, comm, {.bucket_bytes = 48});
    expect_same(state, Dict{{"w", at::full({50}, 1.0)}, {"n", 0}});
  });
}

TEST(Broadcast, ReadsSourcesBeforeTheirMemoryIsWritten) {
  on_ranks(2, [](RankContext&, Communicator& comm) {
    const at::Tensor square = counted({4, 4});
    const at::Tensor both = counted({4});
    // Storages of their own that stand for the same memory.
    at::Tensor memory = counted({4});
    const auto over = [&](int i) { return at::from_blob(memory.data_ptr<float>() + i * 2, {2}); };
    const Dict full = {{"w", square.t()},
                       {"first", both.narrow(0, 2, 2)},
                       {"second", both.narrow(0, 0, 2)},
                       {"x", over(1)},
                       {"y", over(0)}};
    Dict local = {{"w", square},
                  {"first", both.narrow(0, 0, 2)},
                  {"second", both.narrow(0, 2, 2)},
                  {"x", over(0)},
                  {"y", over(1)}};
    const at::Tensor low = at::tensor({0.0f, 1.0f});
    const at::Tensor high = at::tensor({2.0f, 3.0f});
    broadcast_state(full_for(comm, full), local, comm, {.bucket_bytes = 8});
    expect_same(local, Dict{{"w", counted({4, 4}).t()}, {"first", high}, {"second", low}, {"x", high}, {"y", low}});
  });
}

TEST(Broadcast, ReplacesNoTargetBeforeAllItsElementsAreThere) {
  ErrorsByRank errors(2);
  on_ranks(2, [&](RankContext& ranks, Communicator& comm) {
    const bool is_last = ranks.rank() == 1;
    // Of "a" most comes in the first step, the rest in the second, in which rank 0 cannot have memory for "b".
    const at::Tensor target = at::empty({10}, at::kMeta);
    Dict local = {{"a", is_last ? target : pattern({10})}, {"b", is_last ? pattern({3}) : at::Tensor()}};
    const BroadcastOptions options{.device = c10::Device(is_last ? at::kCPU : at::kXLA), .bucket_bytes = 32};
    errors.run(ranks.rank(), [&] {
      broadcast_state(full_for(comm, {{"a", counted({10})}, {"b", counted({3})}}), local, comm, options);
    });
    if (is_last) {
      EXPECT_TRUE(local.at("a").as_tensor().is_same(target));
    } else {
      EXPECT_TRUE(bit_equal(local.at("a").as_tensor().narrow(0, 0, 8), counted({8}))) << "the first step was done";
    }
  });
  errors.expect({0});
}

TEST(Broadcast, ATensorThatIsThereTwiceBecomesOne) {
  on_ranks(2, [](RankContext&, Communicator& comm) {
    const Dict full = {{"a", counted({3})}, {"b", counted({3})}, {"c", counted({3})}};
    Dict local = {{"a", at::empty({3}, at::kMeta)}, {"b", Value()}, {"c", at::empty({3}, at::kMeta)}};
    local["b"] = local.at("a");
    broadcast_state(full_for(comm, full), local, comm, {.bucket_bytes = 4});
    expect_same(local, full);
    EXPECT_TRUE(local.at("a").as_tensor().is_same(local.at("b").as_tensor()));
    EXPECT_FALSE(local.at("a").as_tensor().is_same(local.at("c").as_tensor()));
  });
}

TEST(BroadcastOutline, GivesEveryRankTheStructureWithoutElements) {
  on_ranks(3, [](RankContext&, Communicator& comm) {
    const auto object = std::make_shared<FixedState>(Dict{{"w", counted({2, 3}, at::kHalf)}});
    const Dict full = {{"o", object},
                       {std::int64_t{4}, List{Value(counted({5})), Value(Tuple{Value(at::ones({})), Value("text")})}},
                       {"n", 1.5},
                       {"empty", Dict()}};
    const Dict outline = broadcast_outline(full_for(comm, full), comm);
    const auto meta = [](c10::IntArrayRef sizes, at::ScalarType dtype = at::kFloat) {
      return at::empty(sizes, at::TensorOptions(dtype).device(at::kMeta));
    };
    ASSERT_EQ(outline.size(), 4u);
    const at::Tensor& inner = outline.at("o").as_dict().at("w").as_tensor();
    EXPECT_TRUE(inner.is_meta() && inner.scalar_type() == at::kHalf && inner.sizes() == meta({2, 3}).sizes());
    const List& list = outline.at(std::int64_t{4}).as_list();
    EXPECT_TRUE(list.at(0).as_tensor().is_meta() && list.at(0).as_tensor().sizes() == meta({5}).sizes());
    EXPECT_TRUE(list.at(1).as_tuple().at(0).as_tensor().is_meta());
    EXPECT_EQ(list.at(1).as_tuple().at(0).as_tensor().dim(), 0);
    EXPECT_EQ(list.at(1).as_tuple().at(1).as_string(), "text");
    EXPECT_EQ(outline.at("n").as_double(), 1.5);
    EXPECT_TRUE(outline.at("empty").as_dict().empty());
    // Its use: what elements are sent into.
    Dict local = outline;
    broadcast_state(full_for(comm, full), local, comm);
    Dict expected = full;
    expected["o"] = Dict{{"w", counted({2, 3}, at::kHalf)}};
    expect_same(local, expected);
  });
}

TEST(BroadcastOutline, NamesEverythingThatHasNone) {
  ErrorsByRank errors(2);
  on_ranks(2, [&](RankContext& ranks, Communicator& comm) {
    const at::Tensor quantized = at::quantize_per_tensor(counted({2}), 0.5, 1, at::kQInt8);
    const Dict full = {{"q", quantized}, {"fine", counted({2})}, {"l", List{Value(1), Value(quantized)}}};
    errors.run(ranks.rank(), [&] { broadcast_outline(full_for(comm, full), comm); });
    expect_error(ErrorKind::kType, "key 'rows': a DTensor in the full state",
                 [&] { broadcast_outline(full_for(comm, {{"rows", split(counted({3}), ranks)}}), comm); });
    expect_error(ErrorKind::kUnsupported, "key 'meta': a tensor on the meta device in the full state",
                 [&] { broadcast_outline(full_for(comm, {{"meta", at::empty({2}, at::kMeta)}}), comm); });
  });
  errors.expect({0}, {"2 faults", "key 'q': a quantized tensor has no outline", "key 'l.1': a quantized tensor"});
}

TEST(Broadcast, NamesEveryMismatchOfEveryRankBeforeAnythingMoves) {
  const Dict full = {{"shape", counted({3})},
                     {"dtype", counted({3})},
                     {"kind", counted({3})},
                     {"number", 5},
                     {"length", List{Value(1), Value(2)}},
                     {"container", Dict{{"x", 1}}},
                     {"sequence", Tuple{Value(1)}},
                     {"rows", counted({4, 2})},
                     {"rows dtype", counted({4, 2})},
                     {"partial", counted({2})},
                     {"sparse", counted({2})},
                     {"fine", counted({3})}};
  ErrorsByRank errors(3);
  on_ranks(3, [&](RankContext& ranks, Communicator& comm) {
    const DTensor sums(pattern({2}), mesh_of(ranks), {Placement::partial()}, {2});
    const Dict wrong = {{"shape", pattern({4})},
                        {"dtype", pattern({3}, at::kHalf)},
                        {"kind", 3},
                        {"number", pattern({1})},
                        {"length", List{Value(1)}},
                        {"container", 3},
                        {"sequence", List{Value(1)}},
                        {"rows", split_pattern({5, 2}, ranks)},
                        {"rows dtype", split_pattern({4, 2}, ranks, 0, at::kDouble)},
                        {"partial", sums},
                        {"sparse", at::ones({2}).to_sparse()},
                        {"fine", pattern({3})}};
    Dict local = wrong;
    if (ranks.rank() == 1) local = {{"fine", pattern({3})}, {"number", 1}, {"undefined", at::Tensor()}};
    errors.run(ranks.rank(), [&] { broadcast_state(full_for(comm, full), local, comm); });
    EXPECT_TRUE(is_pattern(local.at("fine").as_tensor())) << "nothing has moved";
    if (ranks.rank() == 1) {
      EXPECT_EQ(local.at("number").as_int(), 1);
    }
    // The group is as good as before.
    Dict again = {{"fine", pattern({3})}};
    broadcast_state(full_for(comm, {{"fine", counted({3})}}), again, comm);
    expect_same(again, Dict{{"fine", counted({3})}});
  });
  errors.expect({0, 2}, {"11 faults", "key 'shape': the full state has shape [3], this rank has [4]",
                         "key 'dtype': the full state has float32, this rank has float16",
                         "key 'kind': the full state has a tensor, this rank has a int",
                         "key 'number': the full state has a int, this rank has a tensor",
                         "key 'length': the full state has 2 elements, this rank has 1",
                         "key 'container': the full state has a dict, this rank has a int",
                         "key 'sequence': the full state has a tuple, this rank has a list",
                         "key 'rows': the full state has shape [4, 2], this rank has [5, 2]",
                         "key 'rows dtype': the full state has float32, this rank has float64",
                         "key 'partial': the parts of a Partial DTensor", "key 'sparse': a tensor of layout Sparse"});
}

TEST(Broadcast, SaysHowFarItCameIfAStepFails) {
  const Dict full = {{"a", counted({4})}, {"b", counted({4})}, {"c", counted({4})}};
  for (bool is_batched : {false, true}) {
    ErrorsByRank errors(2);
    on_ranks(2, [&](RankContext& ranks, Communicator& comm) {
      Dict local = {{"a", pattern({4})}, {"b", pattern({4})}, {"c", ranks.rank() == 1 ? at::Tensor() : pattern({4})}};
      // No memory of this device can be had.
      const BroadcastOptions options{.device = c10::Device(at::kXLA), .bucket_bytes = is_batched ? 1 << 20 : 16};
      errors.run(ranks.rank(), [&] { broadcast_state(full_for(comm, full), local, comm, options); });
      if (is_batched) {
        EXPECT_TRUE(is_pattern(local.at("a").as_tensor())) << "it travels in the same step as the one that failed";
      } else {
        expect_same(local.at("a"), counted({4}));
        expect_same(local.at("b"), counted({4}));
      }
    });
    errors.expect({1});
    const std::string text =
        is_batched ? "0 of 3 tensors have their new values; 'a' and" : "2 of 3 tensors have their new values; 'c' and";
    EXPECT_NE(errors.text().find(text), std::string::npos) << errors.text();
  }
}

TEST(Broadcast, RefusesAFullStateThatIsNone) {
  on_ranks(2, [](RankContext& ranks, Communicator& comm) {
    const Dict full = {{"parts", split(counted({3}), ranks)},
                       {"shards", ShardedTensor({2}, at::kFloat, {})},
                       {"undefined", at::Tensor()},
                       {"meta", at::empty({2}, at::kMeta)}};
    Dict local = full;
    const auto broadcast = [&] { broadcast_state(full_for(comm, full), local, comm); };
    expect_error(ErrorKind::kType, "key 'parts': a DTensor in the full state", broadcast);
    expect_error(ErrorKind::kType, "key 'shards': a ShardedTensor in the full state", broadcast);
    expect_error(ErrorKind::kType, "key 'undefined': an undefined tensor in the full state", broadcast);
    expect_error(ErrorKind::kType, "key 'meta': a tensor on the meta device in the full state", broadcast);
  });
}

TEST(Broadcast, RefusesOptionsThatDifferOrCannotBe) {
  on_ranks(2, [](RankContext& ranks, Communicator& comm) {
    Dict local = {{"w", pattern({2})}};
    const auto refused = [&](const BroadcastOptions& options, const std::string& text) {
      expect_error(ErrorKind::kInvalidArgument, text,
                   [&] { broadcast_state({{"w", counted({2})}}, local, comm, options); });
    };
    refused({.strict = ranks.rank() == 1}, "the options strict and bucket_bytes of rank 1 are not those of rank 0");
    refused({.bucket_bytes = 10 + ranks.rank()}, "bucket_bytes of rank 1");
    refused({.bucket_bytes = -1}, "bucket_bytes is -1");
  });
}

TEST(Broadcast, WorksInAWorldOfOne) {
  Communicator comm = Communicator::single();
  Dict local = {{"w", at::Tensor()}, {"n", 0}};
  broadcast_state({{"w", counted({5})}, {"n", 3}}, local, comm, {.bucket_bytes = 8});
  expect_same(local, Dict{{"w", counted({5})}, {"n", 3}});
}

}  // namespace
}  // namespace dcp

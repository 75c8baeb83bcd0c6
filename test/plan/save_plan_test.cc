#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <random>
#include <set>

#include "test/plan/plan_support.h"
#include "torch_dcp/plan/dedup.h"
#include "torch_dcp/plan/default_save_planner.h"
#include "torch_dcp/plan/validate_internal.h"
#include "torch_dcp/plan/write_items.h"

namespace dcp {
namespace {

using test::expect_error_with;
using Plans = std::vector<SavePlan>;
using StateOfRank = std::function<StateDict(int rank)>;

SavePlannerContext context_of(int rank, int world_size) {
  return {StorageMeta{"here", "save", std::nullopt}, rank, world_size, rank == 0, true};
}

SavePlan local_plan(const StateDict& state, int rank, int world_size, SavePlannerOptions options = {}) {
  DefaultSavePlanner planner(options);
  planner.set_up(state, context_of(rank, world_size));
  return planner.create_local_plan();
}

Plans local_plans(int world_size, const StateOfRank& state_of) {
  Plans plans;
  for (int rank = 0; rank < world_size; ++rank) plans.push_back(local_plan(state_of(rank), rank, world_size));
  return plans;
}

std::pair<Plans, Metadata> global_plan(Plans plans, SavePlannerOptions options = {}, bool use_collectives = true) {
  DefaultSavePlanner planner(options);
  SavePlannerContext context = context_of(0, static_cast<int>(plans.size()));
  context.use_collectives = use_collectives;
  const StateDict state;
  planner.set_up(state, context);
  return planner.create_global_plan(std::move(plans));
}

const TensorStorageMetadata& tensor_of(const Metadata& metadata, const std::string& key) {
  return std::get<TensorStorageMetadata>(*metadata.state_dict_metadata.find(key));
}

std::vector<std::string> keys_of(const SavePlan& plan) {
  std::vector<std::string> keys;
  for (const WriteItem& item : plan.items) keys.push_back(item.index.fqn);
  return keys;
}

std::vector<std::int64_t> bytes_of(const Plans& plans) {
  std::vector<std::int64_t> bytes;
  for (const SavePlan& plan : plans) {
    std::int64_t sum = 0;
    for (const WriteItem& item : plan.items) sum += item.byte_size();
    bytes.push_back(sum);
  }
  return bytes;
}

double balance(const Plans& plans) {
  const std::vector<std::int64_t> bytes = bytes_of(plans);
  const double mean = static_cast<double>(std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0})) /
                      static_cast<double>(bytes.size());
  return static_cast<double>(*std::max_element(bytes.begin(), bytes.end())) / mean;
}

/// Every chunk of the metadata is the item of exactly one plan, and its hint says which chunk it is.
void expect_each_written_once(const Plans& plans, const Metadata& metadata) {
  std::size_t item_count = 0;
  std::set<std::pair<std::string, std::int64_t>> seen;
  for (const SavePlan& plan : plans) {
    for (const WriteItem& item : plan.items) {
      ++item_count;
      EXPECT_TRUE(seen.emplace(item.index.fqn, item.index.index.value_or(-1)).second) << to_string(item.index);
      if (!item.is_tensor()) continue;
      const TensorStorageMetadata& tensor = tensor_of(metadata, item.index.fqn);
      ASSERT_TRUE(item.index.index);
      EXPECT_EQ(tensor.chunks.at(static_cast<std::size_t>(*item.index.index)), item.chunk);
      EXPECT_EQ(find_chunk(metadata, item.index), tensor.chunks[static_cast<std::size_t>(*item.index.index)]);
    }
  }
  std::size_t chunk_count = 0;
  for (const auto& [key, entry] : metadata.state_dict_metadata) {
    const auto* tensor = std::get_if<TensorStorageMetadata>(&entry);
    chunk_count += tensor == nullptr ? 1 : tensor->chunks.size();
  }
  EXPECT_EQ(item_count, chunk_count);
}

DTensor sharded(Sizes sizes, Sizes mesh_shape, Placements placements, int rank) {
  return DTensor::empty(std::move(sizes), at::kFloat, DeviceMesh::make(std::move(mesh_shape), rank),
                        std::move(placements));
}

WriteItem shard_item(std::string key, Sizes size, Box chunk) {
  WriteItem item;
  item.index = {std::move(key), chunk.offsets, std::nullopt};
  item.type = WriteItemType::kShard;
  item.chunk = std::move(chunk);
  item.size = std::move(size);
  return item;
}

SavePlan plan_of(std::vector<WriteItem> items) { return {std::move(items), {}, {}}; }

TEST(WriteItems, OnePerLocalChunkAndOnePerObject) {
  const at::Tensor weight = at::arange(12, at::kFloat).view({3, 4}).t().set_requires_grad(true);
  const auto plain = create_write_items("w", weight);
  ASSERT_EQ(plain.size(), 1u);
  EXPECT_EQ(plain[0].item.type, WriteItemType::kTensor);
  EXPECT_EQ(plain[0].item.index, (MetadataIndex{"w", Sizes{0, 0}, {}}));
  EXPECT_EQ(plain[0].item.size, (Sizes{4, 3}));
  EXPECT_TRUE(plain[0].item.properties.requires_grad);
  EXPECT_EQ(plain[0].view.data_ptr(), weight.data_ptr());
  EXPECT_EQ(plain[0].item.byte_size(), 48);

  const auto shard = create_write_items("d", sharded({10, 3}, {4}, {Placement::shard(0)}, 3));
  ASSERT_EQ(shard.size(), 1u);
  EXPECT_EQ(shard[0].item.type, WriteItemType::kShard);
  EXPECT_EQ(shard[0].item.chunk, (Box{{9, 0}, {1, 3}}));
  EXPECT_EQ(shard[0].item.byte_size(), 12);  // Of the chunk, not of the whole tensor.

  const auto object = create_write_items("o", Value("text"));
  ASSERT_EQ(object.size(), 1u);
  EXPECT_EQ(object[0].item.type, WriteItemType::kByteIo);
  EXPECT_FALSE(object[0].item.index.offset);
  EXPECT_FALSE(object[0].view.defined());
}

TEST(WriteItems, EmptyShardsDoNotHideARealOneAtTheirOffset) {
  const ShardedTensor tensor({4}, at::kFloat, {{at::empty({0}), {1}}, {at::ones({3}), {1}}, {at::empty({0}), {1}}});
  const auto items = create_write_items("s", tensor);
  ASSERT_EQ(items.size(), 1u);
  EXPECT_EQ(items[0].item.chunk, (Box{{1}, {3}}));
  EXPECT_TRUE(items[0].view.equal(at::ones({3})));
}

TEST(WriteItems, ErrorsNameTheKey) {
  expect_error_with(ErrorKind::kInvalidArgument, {"'gone'"}, [] { create_write_items("gone", at::Tensor()); });
  expect_error_with(ErrorKind::kUnsupported, {"'sparse'"},
                    [] { create_write_items("sparse", at::ones({2, 2}).to_sparse()); });
  expect_error_with(ErrorKind::kType, {"'app'"}, [] { create_write_items("app", std::shared_ptr<Stateful>()); });
}

TEST(SavePlanner, ResolvesLiveTensorsAndObjects) {
  const at::Tensor weight = at::ones({2});
  const StateDict state = {{"m", Dict{{"w", weight}, {"n", 7}}}};
  DefaultSavePlanner planner;
  planner.set_up(state, context_of(0, 1));
  auto [plans, metadata] = planner.create_global_plan({planner.create_local_plan()});
  const SavePlan plan = planner.finish_plan(std::move(plans[0]));
  ASSERT_EQ(keys_of(plan), (std::vector<std::string>{"m.w", "m.n"}));
  EXPECT_EQ(planner.resolve_tensor(plan.items[0]).data_ptr(), weight.data_ptr());
  EXPECT_EQ(planner.resolve_object(plan.items[1]).as_int(), 7);
  expect_error_with(ErrorKind::kKey, {"'m.x at [0]'"},
                    [&] { planner.resolve_tensor(shard_item("m.x", {1}, {{0}, {1}})); });
}

TEST(SavePlanner, MetadataSaysWhatPythonsDoes) {
  const StateDict state = {
      {"m", Dict{{"w", at::ones({2, 3}, at::kDouble)}, {"l", List{at::ones({}), 3}}, {"e", Dict()}}}};
  const auto [plans, metadata] = global_plan({local_plan(state, 0, 1)});
  std::vector<std::string> keys;
  for (const auto& entry : metadata.state_dict_metadata) keys.push_back(entry.first);
  EXPECT_EQ(keys, (std::vector<std::string>{"m.w", "m.l.0", "m.l.1", "m.e"}));
  EXPECT_EQ(tensor_of(metadata, "m.w").properties.dtype, at::kDouble);
  EXPECT_EQ(tensor_of(metadata, "m.w").size, (Sizes{2, 3}));
  EXPECT_EQ(plans[0].items[0].index.index, 0);
  EXPECT_EQ(plans[0].items[2].index.index, std::nullopt);
  EXPECT_EQ(metadata.version, "1.0.0");
  EXPECT_EQ(metadata.storage_meta->save_id, "save");
  ASSERT_TRUE(metadata.planner_data);
  EXPECT_EQ(*metadata.planner_data->find("m.l.0"),
            (Path{PathItem::dict_key("m"), PathItem::dict_key("l"), PathItem::list_index(0)}));
  EXPECT_TRUE(metadata.storage_data.empty());

  const SavePlannerOptions top_level{FlattenRule::kTopLevel, false};
  const auto unflattened = global_plan({local_plan(state, 0, 1, top_level)}, top_level);
  EXPECT_FALSE(unflattened.second.planner_data);
  EXPECT_EQ(keys_of(unflattened.first[0]), std::vector<std::string>{"m"});
}

TEST(SavePlanner, KeysOfAllRanksInOrderOfFirstAppearance) {
  const auto [plans, metadata] = global_plan(local_plans(3, [](int rank) {
    StateDict state = {{"shared", 1}};
    state["cursor.rank" + std::to_string(rank)] = rank;
    return state;
  }));
  std::vector<std::string> paths;
  for (const auto& entry : *metadata.planner_data) paths.push_back(entry.first);
  EXPECT_EQ(paths, (std::vector<std::string>{"shared", "cursor.rank0", "cursor.rank1", "cursor.rank2"}));
  EXPECT_EQ(metadata.state_dict_metadata.size(), 4u);
  expect_each_written_once(plans, metadata);
}

TEST(SavePlanner, RanksOutsideOfTheMeshOfferNothing) {
  const auto [plans, metadata] = global_plan(
      local_plans(3, [](int rank) { return StateDict{{"w", sharded({4, 2}, {2}, {Placement::shard(0)}, rank)}}; }));
  EXPECT_TRUE(plans[2].items.empty());
  EXPECT_EQ(tensor_of(metadata, "w").chunks.size(), 2u);
}

TEST(SavePlanner, RanksThatDisagreeAreNamed) {
  const auto plans_of = [](const std::vector<Value>& values) {
    return local_plans(static_cast<int>(values.size()),
                       [&](int rank) { return StateDict{{"a", 1}, {"w", values[static_cast<std::size_t>(rank)]}}; });
  };
  expect_error_with(ErrorKind::kInvalidArgument, {"'w'", "rank 0 has a float32 tensor of size [2]", "rank 2 an object"},
                    [&] { global_plan(plans_of({at::ones({2}), at::ones({2}), 5})); });
  expect_error_with(ErrorKind::kInvalidArgument, {"'w'", "size [2]", "rank 1 a float32 tensor of size [3]"},
                    [&] { global_plan(plans_of({at::ones({2}), at::ones({3})})); });
  expect_error_with(ErrorKind::kInvalidArgument, {"'w'", "rank 1 a float64 tensor"},
                    [&] { global_plan(plans_of({at::ones({2}), at::ones({2}, at::kDouble)})); });
}

TEST(SavePlanner, OneKeyAtTwoPathsIsAnError) {
  expect_error_with(ErrorKind::kKey, {"'a.b'", "['a']['b']", "['a.b']"}, [] {
    global_plan(local_plans(2, [](int rank) {
      return rank == 0 ? StateDict{{"a", Dict{{"b", at::ones({1})}}}} : StateDict{{"a.b", at::ones({1})}};
    }));
  });
}

TEST(SavePlanner, O17_TwoPathsOneFlatName) {
  const at::Tensor t = at::ones({1});
  const std::vector<StateDict> states = {
      {{"a", Dict{{"b", t}}}, {"a.b", t}},
      {{"a", Dict{{"b", Dict{{"c", t}}}}}, {"a.b", Dict{{"c", t}}}},
      {{"l", List{t}}, {"l.0", t}},
  };
  const std::vector<std::vector<const char*>> names = {
      {"a.b", "['a']['b']", "['a.b']"}, {"a.b.c", "['a']['b']['c']", "['a.b']['c']"}, {"l.0", "['l'][0]", "['l.0']"}};
  for (std::size_t i = 0; i < states.size(); ++i) {
    for (const char* name : names[i]) {
      expect_error_with(ErrorKind::kKey, {name}, [&] { local_plan(states[i], 0, 1); });
    }
  }
  EXPECT_EQ(keys_of(local_plan({{"a.b", Dict{{"c", t}}}}, 0, 1)), std::vector<std::string>{"a.b.c"});
}

TEST(Dedup, O02_EmptyPiecesNeverPushOutRealOnes) {
  const Plans in_order =
      local_plans(8, [](int rank) { return StateDict{{"w", sharded({10, 3}, {8}, {Placement::shard(0)}, rank)}}; });
  std::vector<Plans> orders = {in_order, Plans(in_order.rbegin(), in_order.rend())};
  for (unsigned seed = 0; seed < 10; ++seed) {
    std::mt19937 random(seed);
    orders.push_back(in_order);
    std::shuffle(orders.back().begin(), orders.back().end(), random);
  }
  for (const Plans& order : orders) {
    const auto [plans, metadata] = global_plan(order);
    expect_each_written_once(plans, metadata);
    std::vector<std::int64_t> rows;
    std::int64_t numel = 0;
    for (const Box& chunk : tensor_of(metadata, "w").chunks) {
      numel += chunk.numel();
      if (!chunk.empty()) rows.push_back(chunk.offsets[0]);
    }
    std::sort(rows.begin(), rows.end());
    EXPECT_EQ(rows, (std::vector<std::int64_t>{0, 2, 4, 6, 8}));
    EXPECT_EQ(numel, 30);
  }
}

TEST(Dedup, O02_EmptyPiecesAtTheOffsetOfARealOneAreDropped) {
  const WriteItem empty = shard_item("w", {4}, {{2}, {0}});
  const WriteItem first = shard_item("w", {4}, {{0}, {2}});
  const WriteItem second = shard_item("w", {4}, {{2}, {2}});
  Plans plans = {plan_of({empty}), plan_of({first}), plan_of({empty}), plan_of({second})};
  std::sort(plans.begin(), plans.end(), [](const SavePlan& a, const SavePlan& b) {
    return std::pair(a.items[0].chunk.offsets[0], a.items[0].chunk.sizes[0]) <
           std::pair(b.items[0].chunk.offsets[0], b.items[0].chunk.sizes[0]);
  });
  const auto less = [](const SavePlan& a, const SavePlan& b) {
    return std::pair(a.items[0].chunk.offsets[0], a.items[0].chunk.sizes[0]) <
           std::pair(b.items[0].chunk.offsets[0], b.items[0].chunk.sizes[0]);
  };
  int order_count = 0;
  do {
    const auto [kept, metadata] = global_plan(plans);
    expect_each_written_once(kept, metadata);
    EXPECT_EQ(tensor_of(metadata, "w").chunks.size(), 2u);
    ++order_count;
  } while (std::next_permutation(plans.begin(), plans.end(), less));
  EXPECT_EQ(order_count, 12);
}

TEST(Dedup, O01_OneEmptyPieceAtTheEndIsKept) {
  const auto [plans, metadata] = global_plan(
      local_plans(5, [](int rank) { return StateDict{{"t", sharded({6}, {5}, {Placement::shard(0)}, rank)}}; }));
  EXPECT_EQ(tensor_of(metadata, "t").chunks, (std::vector<Box>{{{0}, {2}}, {{2}, {2}}, {{4}, {2}}, {{6}, {0}}}));
}

TEST(Dedup, O05_SameDimensionSplitTwice) {
  const auto [plans, metadata] = global_plan(local_plans(8, [](int rank) {
    return StateDict{{"t", sharded({10}, {2, 4}, {Placement::shard(0), Placement::shard(0)}, rank)}};
  }));
  std::vector<Box> real;
  for (const Box& chunk : tensor_of(metadata, "t").chunks) {
    if (!chunk.empty()) real.push_back(chunk);
  }
  EXPECT_EQ(real, (std::vector<Box>{{{0}, {2}}, {{2}, {2}}, {{4}, {1}}, {{5}, {2}}, {{7}, {2}}, {{9}, {1}}}));
  expect_each_written_once(plans, metadata);
}

TEST(Dedup, OtherSizesAtOneOffsetAreAnError) {
  expect_error_with(
      ErrorKind::kInvalidArgument, {"'w'", "rank 0 offers chunk [0] + [2]", "rank 2 chunk [0] + [3]"}, [] {
        dedup_save_plans({plan_of({shard_item("w", {4}, {{0}, {2}})}), plan_of({shard_item("w", {4}, {{0}, {2}})}),
                          plan_of({shard_item("w", {4}, {{0}, {3}})})},
                         false);
      });
}

TEST(Dedup, O07_HybridMeshWritesEachElementOnceAndSharesTheWork) {
  const auto [plans, metadata] = global_plan(local_plans(4, [](int rank) {
    StateDict state;
    for (int i = 0; i < 8; ++i) {
      state["t" + std::to_string(i)] = sharded({4, 2}, {2, 2}, {Placement::replicate(), Placement::shard(0)}, rank);
    }
    return state;
  }));
  expect_each_written_once(plans, metadata);
  for (const SavePlan& plan : plans) EXPECT_EQ(plan.items.size(), 4u);
  EXPECT_EQ(bytes_of(plans), (std::vector<std::int64_t>(4, 64)));
}

TEST(Dedup, O07_PlainReplicatedTensorsAreSharedToo) {
  const StateOfRank state_of = [](int) {
    StateDict state;
    for (int i = 0; i < 8; ++i) state["t" + std::to_string(i)] = at::ones({4, 2});
    for (int i = 0; i < 8; ++i) state["o" + std::to_string(i)] = i;
    return state;
  };
  const auto [plans, metadata] = global_plan(local_plans(4, state_of));
  expect_each_written_once(plans, metadata);
  EXPECT_EQ(plans[0].items.size(), 10u);  // Two tensors, and the objects: the lowest holder's value is saved.
  for (std::size_t rank = 1; rank < 4; ++rank) EXPECT_EQ(plans[rank].items.size(), 2u);
  EXPECT_EQ(bytes_of(plans), (std::vector<std::int64_t>(4, 64)));

  const auto [lowest, same] = global_plan(local_plans(4, state_of), {FlattenRule::kCurrent, true});
  EXPECT_EQ(lowest[0].items.size(), 16u);
  EXPECT_TRUE(lowest[1].items.empty() && lowest[2].items.empty() && lowest[3].items.empty());
}

TEST(Dedup, BalancesReplicatedTensorsAsFarAsTheLargestAllows) {
  const auto [plans, metadata] = global_plan(local_plans(3, [](int) {
    return StateDict{{"a", at::ones({64})},
                     {"b", at::ones({2})},
                     {"c", at::ones({30})},
                     {"d", at::ones({4})},
                     {"e", at::ones({1})},
                     {"f", at::ones({90})},
                     {"g", 1},
                     {"h", at::ones({0})}};
  }));
  expect_each_written_once(plans, metadata);
  EXPECT_EQ(bytes_of(plans), (std::vector<std::int64_t>{90 * 4, 64 * 4, 37 * 4}));
}

TEST(Dedup, BalancesWithinFivePercent) {
  const auto rows = [](int i) { return 17 + (i * 7919) % 401; };
  const StateOfRank even = [](int rank) {
    StateDict state;
    for (int i = 0; i < 60; ++i) {
      state["s" + std::to_string(i)] = sharded({64, 8}, {8}, {Placement::shard(0)}, rank);
      state["r" + std::to_string(i)] = at::empty({16, 8});
    }
    return state;
  };
  const StateOfRank hybrid = [&](int rank) {
    StateDict state;
    for (int i = 0; i < 60; ++i) {
      state["h" + std::to_string(i)] =
          sharded({rows(i), 8}, {2, 4}, {Placement::replicate(), Placement::shard(0)}, rank);
      state["r" + std::to_string(i)] = at::empty({rows(i + 60) / 4, 8});
    }
    return state;
  };
  const StateOfRank replicated = [&](int) {
    StateDict state;
    for (int i = 0; i < 120; ++i) state["r" + std::to_string(i)] = at::empty({rows(i), 3});
    return state;
  };
  for (const StateOfRank& state_of : {even, hybrid, replicated}) {
    const auto [plans, metadata] = global_plan(local_plans(8, state_of));
    expect_each_written_once(plans, metadata);
    EXPECT_LE(balance(plans), 1.05);
  }
}

TEST(Dedup, PlansKeepTheirOrderAndGiveTheSameEveryTime) {
  const StateOfRank state_of = [](int) {
    StateDict state;
    for (int i = 0; i < 50; ++i) state["k" + std::to_string((i * 37) % 50)] = at::empty({1 + i % 7});
    return state;
  };
  const Plans offered = local_plans(3, state_of);
  const Plans kept = dedup_save_plans(offered, false);
  const Plans again = dedup_save_plans(offered, false);
  std::size_t kept_count = 0;
  for (std::size_t rank = 0; rank < kept.size(); ++rank) {
    EXPECT_EQ(keys_of(kept[rank]), keys_of(again[rank]));
    kept_count += kept[rank].items.size();
    std::size_t at = 0;
    for (const std::string& key : keys_of(offered[rank])) {
      if (at < kept[rank].items.size() && kept[rank].items[at].index.fqn == key) ++at;
    }
    EXPECT_EQ(at, kept[rank].items.size());
  }
  EXPECT_EQ(kept_count, 50u);
}

/// `tensor_count` tensors of two rows for each rank, cut by rows.
Plans made_up_plans(int tensor_count, int world_size) {
  Plans plans(static_cast<std::size_t>(world_size));
  for (int rank = 0; rank < world_size; ++rank) {
    for (int i = 0; i < tensor_count; ++i) {
      plans[static_cast<std::size_t>(rank)].items.push_back(
          shard_item("layer" + std::to_string(i), {2 * world_size, 4}, {{2 * rank, 0}, {2, 4}}));
    }
  }
  return plans;
}

TEST(GlobalPlan, O30_ThousandTensorsOnManyRanks) {
  const auto [plans, metadata] = global_plan(made_up_plans(1000, 256));
  ASSERT_EQ(metadata.state_dict_metadata.size(), 1000u);
  SweepCounters counters;
  for (const auto& [key, entry] : metadata.state_dict_metadata) {
    const ChunkCheck check = check_chunks(std::get<TensorStorageMetadata>(entry), &counters);
    ASSERT_FALSE(check.fault);
    ASSERT_TRUE(check.covers_all());
  }
  EXPECT_LE(counters.pair_tests, 1000u * 256u);
  EXPECT_LE(counters.sort_comparisons, 1000u * 256u * 8u);  // log2 of 256 chunks is 8.
  EXPECT_EQ(plans[255].items.size(), 1000u);
  EXPECT_EQ(plans[255].items[999].index.index, 255);
}

TEST(GlobalPlan, O30_OneTensorOfManyChunks) {
  const auto [plans, metadata] = global_plan(made_up_plans(1, 16384));
  EXPECT_EQ(tensor_of(metadata, "layer0").chunks.size(), 16384u);
}

TEST(GlobalPlan, O30_BrokenPlansNameTheKey) {
  const Plans whole = made_up_plans(3, 4);
  Plans hole = whole;
  hole[2].items.erase(hole[2].items.begin() + 1);
  expect_error_with(ErrorKind::kInvalidArgument, {"'layer1'", "24 of 32", "[4, 0] + [2, 4]"},
                    [&] { global_plan(hole); });
  Plans shifted = whole;
  shifted[2].items[1] = shard_item("layer1", {8, 4}, {{3, 0}, {2, 4}});
  expect_error_with(ErrorKind::kInvalidArgument, {"'layer1'", "[2, 0] + [2, 4]", "[3, 0] + [2, 4]", "overlap"},
                    [&] { global_plan(shifted); });
  Plans out = whole;
  out[3].items[0] = shard_item("layer0", {8, 4}, {{7, 0}, {2, 4}});
  expect_error_with(ErrorKind::kInvalidArgument, {"'layer0'", "[7, 0] + [2, 4]", "out of bounds"},
                    [&] { global_plan(out); });
  Plans negative = whole;
  negative[0].items[2] = shard_item("layer2", {8, 4}, {{-2, 0}, {2, 4}});
  expect_error_with(ErrorKind::kInvalidArgument, {"'layer2'", "[-2, 0] + [2, 4]", "negative offset"},
                    [&] { global_plan(negative); });
  Plans two = hole;
  two[0].items.erase(two[0].items.begin());
  expect_error_with(ErrorKind::kInvalidArgument, {"'layer0'", "'layer1'"}, [&] { global_plan(two); });
}

TEST(GlobalPlan, O30_AnEmptyPlanIsFine) {
  Plans plans = made_up_plans(3, 4);
  plans.insert(plans.begin() + 1, SavePlan{});
  const auto [kept, metadata] = global_plan(plans);
  EXPECT_EQ(kept.size(), 5u);
  EXPECT_TRUE(kept[1].items.empty());
  EXPECT_EQ(metadata.state_dict_metadata.size(), 3u);
}

TEST(GlobalPlan, HolesAreAllowedWithoutCollectivesAndForOneProcess) {
  Plans plans = made_up_plans(1, 2);
  EXPECT_NO_THROW(global_plan({plans[1]}));
  plans[1].items.clear();
  EXPECT_NO_THROW(global_plan(plans, {}, /*use_collectives=*/false));
  expect_error_with(ErrorKind::kInvalidArgument, {"'layer0'"}, [&] { global_plan(plans); });
}

}  // namespace
}  // namespace dcp

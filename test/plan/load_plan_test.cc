#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <random>

#include "test/plan/plan_support.h"
#include "torch_dcp/plan/default_load_planner.h"
#include "torch_dcp/plan/default_save_planner.h"
#include "torch_dcp/state_dict/equal.h"

namespace dcp {
namespace {

using test::expect_error_with;
using test::random_tiling;

/// A checkpoint that was never written: metadata, and the values it stands for.
struct MadeUp {
  Metadata metadata;
  std::map<std::string, at::Tensor> tensors;  ///< by key, whole
  std::map<std::string, Value> objects;

  void add_tensor(const std::string& key, const at::Tensor& whole, std::vector<Box> chunks, Path path = {}) {
    TensorStorageMetadata entry;
    entry.properties.dtype = whole.scalar_type();
    entry.size = Sizes(whole.sizes());
    entry.chunks = std::move(chunks);
    for (std::size_t i = 0; i < entry.chunks.size(); ++i) {
      metadata.storage_data.insert({key, entry.chunks[i].offsets, static_cast<std::int64_t>(i)}, {"file", 0, 1, {}});
    }
    metadata.state_dict_metadata.insert(key, std::move(entry));
    add_path(key, std::move(path));
    tensors[key] = whole;
  }

  void add_tensor(const std::string& key, const at::Tensor& whole) {
    add_tensor(key, whole, {whole_box(whole.sizes())});
  }

  void add_object(const std::string& key, Value value, Path path = {}) {
    metadata.state_dict_metadata.insert(key, BytesStorageMetadata{});
    metadata.storage_data.insert({key, std::nullopt, std::nullopt}, {"file", 0, 1, {}});
    add_path(key, std::move(path));
    objects[key] = std::move(value);
  }

  void add_path(const std::string& key, Path path) {
    if (!metadata.planner_data) metadata.planner_data.emplace();
    metadata.planner_data->insert(key, path.empty() ? Path{PathItem::dict_key(key)} : std::move(path));
  }
};

/// What a save of `state` by one rank stores.
MadeUp saved(const StateDict& state, FlattenRule rule = FlattenRule::kCurrent) {
  DefaultSavePlanner planner({rule, false});
  planner.set_up(state, {});
  auto [plans, metadata] = planner.create_global_plan({planner.create_local_plan()});
  MadeUp made;
  for (const WriteItem& item : plans[0].items) {
    metadata.storage_data.insert(item.index, {"file", 0, 1, {}});
    if (item.is_tensor()) {
      made.tensors[item.index.fqn] = planner.resolve_tensor(item).clone();
    } else {
      made.objects[item.index.fqn] = planner.resolve_object(item);
    }
  }
  made.metadata = std::move(metadata);
  return made;
}

void read_tensor(LoadPlanner& planner, const ReadItem& item, const MadeUp& source) {
  at::Tensor from = source.tensors.at(item.storage_index.fqn);
  for (std::size_t dim = 0; dim < item.lengths.size(); ++dim) {
    from = from.narrow(static_cast<std::int64_t>(dim), (*item.storage_index.offset)[dim] + item.storage_offsets[dim],
                       item.lengths[dim]);
  }
  const at::Tensor to = planner.resolve_tensor(item);
  ASSERT_EQ(Sizes(to.sizes()), item.lengths);
  to.copy_(from);
  planner.commit_tensor(item, to);
}

void run_load(LoadPlanner& planner, StateDict& state, const MadeUp& source) {
  planner.set_up(state, source.metadata, {});
  std::vector<LoadPlan> plans = planner.create_global_plan({planner.create_local_plan()});
  const LoadPlan plan = planner.finish_plan(std::move(plans[0]));
  for (const ReadItem& item : plan.items) {
    if (item.type == ReadItemType::kTensor) {
      read_tensor(planner, item, source);
    } else {
      planner.load_object(item, source.objects.at(item.storage_index.fqn));
    }
  }
  planner.commit_objects();
}

LoadReport load(StateDict& state, const MadeUp& source, LoadPlannerOptions options = {}) {
  DefaultLoadPlanner planner(options);
  run_load(planner, state, source);
  return planner.report();
}

at::Tensor pattern(at::IntArrayRef sizes, at::ScalarType dtype = at::kFloat) {
  at::Tensor tensor = at::empty(sizes, dtype);
  std::memset(tensor.data_ptr(), 0xAB, static_cast<std::size_t>(tensor.nbytes()));
  return tensor;
}

bool is_pattern(const at::Tensor& tensor) {
  const auto* bytes = static_cast<const unsigned char*>(tensor.data_ptr());
  return std::all_of(bytes, bytes + tensor.nbytes(), [](unsigned char byte) { return byte == 0xAB; });
}

TEST(LoadPlanner, FillsLiveTensorsAndReplacesObjects) {
  const StateDict state = {{"m", Dict{{"w", at::arange(6, at::kFloat).view({2, 3})}, {"l", List{at::ones({}), 3}}}},
                           {"epoch", 7},
                           {"lr", 1e-3},
                           {"name", "run"},
                           {"flag", true},
                           {"betas", Tuple{0.9, 0.999}},
                           {"empty", Dict()},
                           {"none", Value()}};
  const at::Tensor live = pattern({3, 2}).t();
  StateDict destination = {{"m", Dict{{"w", live}, {"l", List{pattern({}), 0}}}},
                           {"epoch", 0},
                           {"lr", 0.0},
                           {"name", ""},
                           {"flag", false},
                           {"betas", Tuple{0.0, 0.0}},
                           {"empty", Dict()},
                           {"none", Value()}};
  const LoadReport report = load(destination, saved(state));
  EXPECT_EQ(first_difference(state, destination), "");
  EXPECT_TRUE(live.equal(at::arange(6, at::kFloat).view({2, 3})));
  EXPECT_TRUE(report.missing.empty() && report.unexpected.empty() && report.converted.empty());
}

TEST(LoadPlanner, ReshardsRandomTilings) {
  std::mt19937 random(7);
  for (int round = 0; round < 60; ++round) {
    const Sizes sizes(1 + random() % 3, 6);
    const at::Tensor whole = at::rand(sizes);
    MadeUp source;
    source.add_tensor("t", whole, random_tiling(whole_box(sizes), 10, random));
    std::vector<Shard> shards;
    for (const Box& box : random_tiling(whole_box(sizes), 10, random))
      shards.push_back({pattern(box.sizes), box.offsets});
    StateDict destination = {{"t", ShardedTensor(sizes, at::kFloat, shards)}};
    load(destination, source);
    for (const Shard& shard : shards) {
      at::Tensor expected = whole;
      for (std::size_t dim = 0; dim < sizes.size(); ++dim) {
        const auto d = static_cast<std::int64_t>(dim);
        expected = expected.narrow(d, shard.offsets[dim], shard.tensor.size(d));
      }
      ASSERT_TRUE(shard.tensor.equal(expected)) << "round " << round;
    }
  }
}

TEST(LoadPlanner, O01_O04_RanksWithoutRowsSucceed) {
  const at::Tensor whole = at::arange(6, at::kFloat);
  MadeUp source;
  source.add_tensor("t", whole, {{{0}, {2}}, {{2}, {2}}, {{4}, {2}}, {{6}, {0}}});
  source.add_tensor("one", at::ones({1, 6}));
  for (const int world : {1, 2, 3, 4, 5, 8}) {
    std::vector<at::Tensor> parts;
    for (int rank = 0; rank < world; ++rank) {
      const auto mesh = DeviceMesh::make({world}, rank);
      const auto t = DTensor::empty({6}, at::kFloat, mesh, {Placement::shard(0)});
      StateDict destination = {{"t", t}, {"one", DTensor::empty({1, 6}, at::kFloat, mesh, {Placement::shard(0)})}};
      const LoadReport report = load(destination, source);
      EXPECT_TRUE(report.missing.empty() && report.unexpected.empty());
      parts.push_back(t.local());
    }
    EXPECT_TRUE(at::cat(parts).equal(whole)) << "world " << world;
  }
}

TEST(LoadPlanner, RanksOutsideOfTheMeshReadNothing) {
  MadeUp source;
  source.add_tensor("t", at::arange(6, at::kFloat));
  StateDict destination = {{"t", DTensor(at::Tensor(), DeviceMesh::make({2}, 5), {Placement::shard(0)}, {6})}};
  DefaultLoadPlanner planner;
  planner.set_up(destination, source.metadata, {});
  EXPECT_TRUE(planner.create_local_plan().items.empty());
}

TEST(LoadPlanner, O14_MissingAndUnexpectedKeys) {
  const MadeUp source = saved({{"a", at::ones({4})}, {"b", at::ones({2})}, {"x", at::ones({1})}});
  const at::Tensor a = pattern({4});
  const at::Tensor b = pattern({2});
  const at::Tensor c = pattern({2});
  StateDict asked = {{"a", a}, {"b", b}, {"c", c}, {"d", 5}};
  expect_error_with(ErrorKind::kKey, {"2 faults", "'c': missing", "'d': missing"}, [&] { load(asked, source); });
  EXPECT_TRUE(is_pattern(a) && is_pattern(b) && is_pattern(c));

  LoadPlannerOptions partial;
  partial.partial = true;
  const LoadReport report = load(asked, source, partial);
  EXPECT_EQ(report.missing, (std::vector<std::string>{"c", "d"}));
  EXPECT_EQ(report.unexpected, std::vector<std::string>{"x"});
  EXPECT_TRUE(a.equal(at::ones({4})) && b.equal(at::ones({2})) && is_pattern(c));
  EXPECT_EQ(asked.at("d").as_int(), 5);

  StateDict fewer = {{"a", a}, {"b", b}};
  EXPECT_EQ(load(fewer, source).unexpected, std::vector<std::string>{"x"});
}

TEST(LoadPlanner, O15_SizesDiffer) {
  const MadeUp source = saved({{"m", at::ones({4, 3})}, {"v", at::ones({5})}, {"s", at::ones({})}});
  LoadPlannerOptions partial;
  partial.partial = true;
  for (const std::vector<std::int64_t>& size : std::vector<std::vector<std::int64_t>>{{3, 4}, {12}, {4}, {4, 3, 1}}) {
    const at::Tensor m = pattern(size);
    const std::string spelled = to_string(c10::IntArrayRef(size));
    StateDict asked = {{"m", m}};
    for (const LoadPlannerOptions& options : {LoadPlannerOptions(), partial}) {
      expect_error_with(ErrorKind::kShape, {"'m'", "stored size [4, 3]", spelled.c_str()},
                        [&] { load(asked, source, options); });
    }
    EXPECT_TRUE(is_pattern(m));
  }
  const at::Tensor v = pattern({});
  const at::Tensor s = pattern({5});
  StateDict asked = {{"v", v}, {"s", s}, {"m", pattern({1})}};
  expect_error_with(ErrorKind::kShape, {"3 faults", "'v': stored size [5]", "'s': stored size []", "'m': stored"},
                    [&] { load(asked, source); });
  EXPECT_TRUE(is_pattern(v) && is_pattern(s));
}

TEST(LoadPlanner, O16_DtypesDiffer) {
  const MadeUp source = saved({{"a", at::rand({3})},
                               {"b", at::full({1}, 16777217, at::kLong)},
                               {"c", at::full({1}, 7.5, at::kFloat)},
                               {"d", at::ones({2}, at::kBool)},
                               {"e", at::rand({3}).to(at::kBFloat16)},
                               {"f", at::rand({3})}});
  const std::map<std::string, at::ScalarType> wanted = {{"a", at::kBFloat16}, {"b", at::kFloat}, {"c", at::kChar},
                                                        {"d", at::kByte},     {"e", at::kFloat}, {"f", at::kDouble}};
  const auto destination_of = [&](const std::string& keys) {
    StateDict state;
    for (char key : keys) {
      const std::string name(1, key);
      state[name] = pattern(source.tensors.at(name).sizes(), wanted.at(name));
    }
    return state;
  };
  StateDict all = destination_of("abcdef");
  expect_error_with(ErrorKind::kType,
                    {"3 faults", "'a': stored dtype float32, dtype of the destination bfloat16",
                     "'b': stored dtype int64", "'c': stored dtype float32, dtype of the destination int8"},
                    [&] { load(all, source); });
  for (const auto& entry : all) EXPECT_TRUE(is_pattern(entry.second.as_tensor()));

  StateDict lossless = destination_of("def");
  const std::vector<DtypeConversion> conversions = {
      {"d", "bool", "uint8"}, {"e", "bfloat16", "float32"}, {"f", "float32", "float64"}};
  EXPECT_EQ(load(lossless, source).converted, conversions);

  LoadPlannerOptions exact;
  exact.dtype_policy = DtypePolicy::kExact;
  expect_error_with(ErrorKind::kType, {"6 faults", "'a'", "'b'", "'c'", "'d'", "'e'", "'f'"},
                    [&] { load(all, source, exact); });

  LoadPlannerOptions any;
  any.dtype_policy = DtypePolicy::kAny;
  EXPECT_EQ(load(all, source, any).converted.size(), 6u);
  for (const auto& [key, value] : all) {
    const std::string& name = std::get<std::string>(key);
    EXPECT_TRUE(value.as_tensor().equal(source.tensors.at(name).to(wanted.at(name)))) << name;
  }
}

TEST(LoadPlanner, BitsOfADtypeThatThisLibTorchLacksAreKeptAsIntegers) {
  MadeUp source = saved({{"w", at::arange(5).to(at::kByte)}, {"x", at::rand({2})}});
  auto& entry = std::get<TensorStorageMetadata>(*source.metadata.state_dict_metadata.find("w"));
  entry.properties.newer_dtype = NewerDtype::kFloat8E8m0fnu;

  StateDict integers = {{"w", pattern({5}, at::kByte)}, {"x", pattern({2})}};
  const std::vector<DtypeConversion> conversions = {{"w", "float8_e8m0fnu", "uint8"}};
  LoadPlannerOptions bits;
  bits.missing_dtypes_as_bits = true;
  EXPECT_EQ(load(integers, source, bits).converted, conversions);
  EXPECT_TRUE(integers.at("w").as_tensor().equal(source.tensors.at("w")));

  // They are no numbers, nobody gets them unasked, and nothing else is unreadable for them.
  bits.dtype_policy = DtypePolicy::kAny;
  StateDict numbers = {{"w", pattern({5})}};
  expect_error_with(ErrorKind::kUnsupported, {"1 fault", "'w'", "float8_e8m0fnu", "uint8", "float32"},
                    [&] { load(numbers, source, bits); });
  EXPECT_TRUE(is_pattern(numbers.at("w").as_tensor()));
  LoadPlannerOptions any;
  any.dtype_policy = DtypePolicy::kAny;
  StateDict unasked = {{"w", pattern({5}, at::kByte)}};
  expect_error_with(ErrorKind::kUnsupported, {"1 fault", "'w'", "float8_e8m0fnu", "missing_dtypes_as_bits"},
                    [&] { load(unasked, source, any); });
  EXPECT_TRUE(is_pattern(unasked.at("w").as_tensor()));
  StateDict rebuilt;
  RebuildLoadPlanner planner;
  expect_error_with(ErrorKind::kUnsupported, {"1 fault", "'w'", "float8_e8m0fnu"},
                    [&] { run_load(planner, rebuilt, source); });
  StateDict other = {{"x", pattern({2})}};
  EXPECT_TRUE(load(other, source).converted.empty());
}

TEST(LoadPlanner, O18_ContainersThatChangedShape) {
  const StateDict state = {
      {"log", List{Dict{{"k", 1}}, Dict{{"k", 2}}}}, {"names", Dict()}, {"pair", List{at::zeros({2}), at::ones({2})}}};
  const MadeUp source = saved(state);
  const at::Tensor first = pattern({2});
  StateDict shorter = {{"log", List()}, {"names", Dict()}, {"pair", List{first, pattern({2})}}};
  expect_error_with(ErrorKind::kKey, {"1 fault", "'log'", "2 children", "'log.0.k'", "'log.1.k'"},
                    [&] { load(shorter, source); });
  EXPECT_TRUE(is_pattern(first));

  // The reverse: stored as one value, asked for in parts.
  StateDict longer = {{"log", List{Dict{{"k", pattern({1})}}}}};
  expect_error_with(ErrorKind::kKey, {"'log.0.k'", "'log' is stored as one object"},
                    [&] { load(longer, saved({{"log", List()}})); });

  RebuildLoadPlanner planner;
  StateDict rebuilt;
  run_load(planner, rebuilt, source);
  EXPECT_EQ(first_difference(state, rebuilt), "");
}

TEST(LoadPlanner, EmptyDictsNeedNothingStored) {
  const MadeUp source = saved({{"a", 1}});
  StateDict destination = {{"a", 0}, {"empty", Dict()}};
  const LoadReport report = load(destination, source);
  EXPECT_TRUE(report.missing.empty());
  EXPECT_EQ(destination.at("a").as_int(), 1);
}

TEST(LoadPlanner, KindsMustAgree) {
  const MadeUp source = saved({{"tensor", at::ones({})}, {"object", 5}});
  StateDict destination = {{"tensor", 1.0}, {"object", pattern({1})}};
  expect_error_with(ErrorKind::kType,
                    {"2 faults", "'tensor': a tensor of size [] is stored", "'object': an object is stored"},
                    [&] { load(destination, source); });
  StateDict none = {{"tensor", Value()}};
  expect_error_with(ErrorKind::kType, {"'tensor'"}, [&] { load(none, source); });
}

TEST(LoadPlanner, ObjectsOfOtherKindsAreRefusedBeforeAnyIsSet) {
  const auto expect_refused = [](const Value& stored, const Value& wanted) {
    StateDict destination = {{"first", 0}, {"k", wanted}};
    expect_error_with(ErrorKind::kType, {"'k'", value_kind_name(stored.kind()), value_kind_name(wanted.kind())},
                      [&] { load(destination, saved({{"first", 1}, {"k", stored}})); });
    EXPECT_EQ(destination.at("first").as_int(), 0);
    EXPECT_TRUE(bit_equal(destination.at("k"), wanted));
  };
  const Opaque opaque{std::make_shared<Bytes>(Bytes{1}), "collections.deque"};
  expect_refused(1.5, 1);
  expect_refused(true, 1);
  expect_refused(1, true);
  expect_refused("text", 1);
  expect_refused(Tuple{1}, List{1});
  expect_refused(List{1}, Tuple{1});
  expect_refused(opaque, "text");
  expect_refused("text", opaque);
  expect_refused(Value(), 1);
  expect_refused((std::int64_t{1} << 53) + 1, 0.0);

  const auto expect_accepted = [](const Value& stored, const Value& wanted, const Value& result) {
    StateDict destination = {{"k", wanted}};
    load(destination, saved({{"k", stored}}));
    EXPECT_TRUE(bit_equal(destination.at("k"), result)) << first_difference(destination.at("k"), result);
  };
  expect_accepted(opaque, Value(), opaque);
  expect_accepted(opaque, Opaque{nullptr, "x"}, opaque);
  expect_accepted(7, Value(), 7);
  expect_accepted(7, 0.5, 7.0);
  expect_accepted((std::int64_t{1} << 53) + 1, 0, (std::int64_t{1} << 53) + 1);
  expect_accepted(List{1, 2, 3}, List(), List{1, 2, 3});
}

TEST(LoadPlanner, UncoveredElementsAreCorruptDataUnlessAllowed) {
  MadeUp source;
  source.add_tensor("t", at::arange(8, at::kFloat), {{{0}, {3}}, {{5}, {3}}});
  const at::Tensor whole = pattern({8});
  StateDict asked = {{"t", whole}};
  expect_error_with(ErrorKind::kCorruptData, {"'t'", "6 of the 8", "none holds [3] + [2]"},
                    [&] { load(asked, source); });
  EXPECT_TRUE(is_pattern(whole));

  // What this rank wants is there.
  StateDict part = {{"t", ShardedTensor({8}, at::kFloat, {{pattern({2}), {1}}, {pattern({2}), {6}}})}};
  load(part, source);
  EXPECT_TRUE(part.at("t").as_sharded_tensor().local_shards()[1].tensor.equal(at::arange(6, 8, at::kFloat)));

  LoadPlannerOptions allowed;
  allowed.allow_uncovered = true;
  load(asked, source, allowed);
  EXPECT_TRUE(is_pattern(whole.slice(0, 3, 5)));
  EXPECT_TRUE(whole.slice(0, 5, 8).equal(at::arange(5, 8, at::kFloat)));
}

TEST(LoadPlanner, FaultyChunksAndLostItemsAreCorruptData) {
  MadeUp source;
  source.add_tensor("overlap", at::ones({4}), {{{0}, {3}}, {{2}, {2}}});
  source.add_tensor("out", at::ones({4}), {{{0}, {4}}, {{4}, {1}}});
  source.add_tensor("lost", at::ones({4}));
  source.metadata.storage_data.erase({"lost", Sizes{0}, std::nullopt});
  source.add_object("gone", 1);
  source.metadata.storage_data.erase({"gone", std::nullopt, std::nullopt});
  const at::Tensor overlap = pattern({4});
  StateDict asked = {{"overlap", overlap}, {"out", pattern({4})}, {"lost", pattern({4})}, {"gone", 0}, {"missing", 0}};
  expect_error_with(ErrorKind::kCorruptData,
                    {"5 faults", "'overlap': chunks [0] + [3] and [2] + [2] overlap",
                     "'out': chunk [4] + [1] is out of", "'lost at [0]'", "'gone'", "'missing': missing"},
                    [&] { load(asked, source); });
  EXPECT_TRUE(is_pattern(overlap));
  // Faults of keys that nobody asks for do not matter.
  MadeUp fine = source;
  fine.add_object("fine", 3);
  StateDict other = {{"fine", 0}};
  load(other, fine);
  EXPECT_EQ(other.at("fine").as_int(), 3);
}

TEST(LoadPlanner, BadDestinationsAreNamedWithAllElse) {
  const MadeUp source = saved({{"a", at::ones({2, 2})}, {"b", at::ones({1})}});
  StateDict asked = {{"a", at::ones({2, 2}).to_sparse()}, {"b", pattern({2})}};
  expect_error_with(ErrorKind::kUnsupported, {"2 faults", "'a'", "'b'"}, [&] { load(asked, source); });
}

TEST(LoadPlanner, OldKeysAreRecognised) {
  // Up to 2.3 a mapping without tensors was one object.
  const StateDict state = {
      {"optim", Dict{{"state", Dict{{"m", at::ones({2})}}}, {"group", Dict{{"lr", 0.1}, {"wd", 0.5}}}}}};
  const MadeUp source = saved(state, FlattenRule::kUpTo2_3);
  ASSERT_TRUE(source.metadata.state_dict_metadata.contains("optim.group"));
  StateDict destination = {
      {"optim", Dict{{"state", Dict{{"m", pattern({2})}}}, {"group", Dict{{"lr", 0.0}, {"wd", 0.0}}}}}};
  const LoadReport report = load(destination, source);
  EXPECT_EQ(first_difference(state, destination), "");
  EXPECT_TRUE(report.unexpected.empty());

  StateDict more = {{"optim", Dict{{"state", Dict{{"m", pattern({2})}}}, {"group", Dict{{"lr", 0.0}}}, {"extra", 1}}}};
  expect_error_with(ErrorKind::kKey, {"1 fault", "'optim.extra'"}, [&] { load(more, source); });
}

TEST(LoadPlanner, UnflattenedStateDicts) {
  const StateDict state = {{"w", at::ones({2})}, {"d", Dict{{"t", at::ones({1})}}}};
  LoadPlannerOptions options;
  options.flatten = FlattenRule::kTopLevel;
  StateDict destination = {{"w", pattern({2})}, {"d", Dict()}};
  load(destination, saved(state, FlattenRule::kTopLevel), options);
  EXPECT_EQ(first_difference(state, destination), "");
}

TEST(LoadPlanner, MisuseIsAnError) {
  DefaultLoadPlanner planner;
  expect_error_with(ErrorKind::kState, {"set_up"}, [&] { planner.create_local_plan(); });
  StateDict state = {{"a", pattern({2})}};
  const MadeUp source = saved({{"a", at::ones({2})}});
  planner.set_up(state, source.metadata, {});
  LoadPlan plan = planner.create_local_plan();
  plan.items[0].dest_index.fqn = "other";
  expect_error_with(ErrorKind::kKey, {"'other at [0]'"}, [&] { planner.resolve_tensor(plan.items[0]); });
  expect_error_with(ErrorKind::kKey, {"'other'"}, [&] { planner.load_object(plan.items[0], 1); });
}

Path dict_path(std::initializer_list<const char*> keys) {
  Path path;
  for (const char* key : keys) path.push_back(PathItem::dict_key(std::string(key)));
  return path;
}

TEST(Rebuild, MakesTheNestedStateDict) {
  const StateDict state = {
      {"m", Dict{{"0.weight", at::rand({2, 3})}, {"l", List{at::ones({}), 3, List{at::zeros({2})}}}}},
      {"step", 5},
      {"none", Value()},
      {"betas", Tuple{0.9, at::ones({1})}}};
  RebuildLoadPlanner planner;
  StateDict rebuilt;
  run_load(planner, rebuilt, saved(state));
  EXPECT_EQ(first_difference(state, rebuilt), "");
}

TEST(Rebuild, JoinsChunksAndTakesKeysWithoutPaths) {
  MadeUp source;
  source.add_tensor("a.b", at::arange(6, at::kFloat), {{{4}, {2}}, {{0}, {4}}, {{6}, {0}}});
  source.metadata.planner_data.reset();
  RebuildLoadPlanner planner;
  StateDict rebuilt;
  run_load(planner, rebuilt, source);
  EXPECT_TRUE(rebuilt.at("a.b").as_tensor().equal(at::arange(6, at::kFloat)));
}

TEST(Rebuild, TakesOnlyTheKeysAskedFor) {
  const StateDict state = {{"m", Dict{{"0.weight", at::rand({2})}, {"1.weight", at::rand({2})}}},
                           {"optim", Dict{{"lr", 0.1}, {"list", List{at::ones({1}), 7}}}}};
  const MadeUp source = saved(state);
  const auto rebuild = [&](std::set<std::string> keys) {
    RebuildLoadPlanner planner(std::move(keys));
    StateDict rebuilt;
    run_load(planner, rebuilt, source);
    return rebuilt;
  };
  const StateDict some = rebuild({"m.0", "optim.list.1"});
  EXPECT_EQ(first_difference(some, StateDict{{"m", Dict{{"0.weight", state.at("m").as_dict().at("0.weight")}}},
                                             {"optim", Dict{{"list", List{Value(), 7}}}}}),
            "");
  EXPECT_EQ(first_difference(rebuild({"m", "optim.lr", "optim.list"}),
                             state.at("m").is_dict()
                                 ? Value(StateDict{{"m", state.at("m")},
                                                   {"optim", Dict{{"lr", 0.1}, {"list", List{at::ones({1}), 7}}}}})
                                 : Value()),
            "");
  expect_error_with(ErrorKind::kKey, {"'m.2'", "'nothing'"}, [&] { rebuild({"m.0", "m.2", "nothing"}); });
}

TEST(Rebuild, ChecksAllBeforeItAllocates) {
  constexpr std::int64_t kHuge = std::int64_t{1} << 60;
  MadeUp source;
  const auto add = [&](const std::string& key, Sizes size, std::vector<Box> chunks, at::ScalarType dtype) {
    source.metadata.state_dict_metadata.insert(key, TensorStorageMetadata{{dtype}, std::move(size), std::move(chunks)});
  };
  add("hole", {kHuge}, {{{0}, {5}}}, at::kFloat);
  add("packed", {2}, {{{0}, {2}}}, at::kQUInt4x2);
  add("bits", {kHuge, kHuge}, {}, at::kFloat);
  add("bytes", {kHuge * 4}, {{{0}, {kHuge * 4}}}, at::kDouble);
  RebuildLoadPlanner planner;
  StateDict rebuilt;
  expect_error_with(
      ErrorKind::kCorruptData,
      {"4 faults", "'hole': chunks hold 5 of", "'packed': a tensor of dtype QUInt4x2", "'bits': size", "'bytes'"},
      [&] { planner.set_up(rebuilt, source.metadata, {}); });
  EXPECT_TRUE(rebuilt.empty());
  MadeUp packed;
  packed.metadata.state_dict_metadata.insert("q", TensorStorageMetadata{{at::kQUInt2x4}, {1}, {{{0}, {1}}}});
  expect_error_with(ErrorKind::kUnsupported, {"'q'"}, [&] { planner.set_up(rebuilt, packed.metadata, {}); });
  StateDict full = {{"a", 1}};
  expect_error_with(ErrorKind::kInvalidArgument, {"empty"}, [&] { planner.set_up(full, packed.metadata, {}); });
}

TEST(Rebuild, ContradictingPathsNameTheKeys) {
  const auto expect_refused = [](const Path& a, const Path& b, ErrorKind kind,
                                 std::initializer_list<const char*> texts) {
    MadeUp source;
    source.add_tensor("first", at::ones({1}), {{{0}, {1}}}, a);
    source.add_tensor("second", at::ones({1}), {{{0}, {1}}}, b);
    RebuildLoadPlanner planner;
    StateDict rebuilt;
    expect_error_with(kind, texts, [&] { planner.set_up(rebuilt, source.metadata, {}); });
    EXPECT_TRUE(rebuilt.empty());
  };
  const Path list = {PathItem::dict_key(std::string("a")), PathItem::list_index(0)};
  expect_refused(dict_path({"a"}), dict_path({"a"}), ErrorKind::kKey, {"'first'", "'second'", "['a']"});
  expect_refused(dict_path({"a"}), dict_path({"a", "b"}), ErrorKind::kKey, {"'first'", "'second'", "['a']"});
  expect_refused(dict_path({"a", "b"}), dict_path({"a"}), ErrorKind::kKey, {"'first'", "'second'"});
  expect_refused(dict_path({"a", "b"}), list, ErrorKind::kKey, {"'first'", "'second'", "list", "dict"});
  expect_refused(dict_path({"a"}), {PathItem::list_index(0)}, ErrorKind::kCorruptData, {"'second'"});
  expect_refused(dict_path({"b"}), {PathItem::dict_key(std::string("a")), PathItem::list_index(1'000'000'000)},
                 ErrorKind::kCorruptData, {"'second'", "1000000000"});
  expect_refused(dict_path({"b"}), {PathItem::dict_key(std::string("a")), PathItem::list_index(-1)},
                 ErrorKind::kCorruptData, {"'second'", "-1"});
  expect_refused(dict_path({"b"}), Path(501, PathItem::dict_key(std::string("a"))), ErrorKind::kCorruptData,
                 {"'second'", "501 steps"});
}

TEST(Rebuild, AnEmptyDictOfOneRankMayHaveEntriesOfAnother) {
  for (const bool is_empty : {true, false}) {
    MadeUp source;
    source.add_object("state", is_empty ? Value(Dict()) : Value(5), dict_path({"state"}));
    source.add_tensor("state.m", at::ones({2}), {{{0}, {2}}}, dict_path({"state", "m"}));
    RebuildLoadPlanner planner;
    StateDict rebuilt;
    if (is_empty) {
      run_load(planner, rebuilt, source);
      EXPECT_EQ(first_difference(rebuilt, StateDict{{"state", Dict{{"m", at::ones({2})}}}}), "");
    } else {
      expect_error_with(ErrorKind::kKey, {"'state'", "'state.m'"}, [&] { run_load(planner, rebuilt, source); });
    }
  }
}

}  // namespace
}  // namespace dcp

#include "torch_dcp/plan/wire.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "test/plan/plan_support.h"
#include "test/support/expect_error.h"

namespace dcp {
namespace {

class RandomPlans {
 public:
  explicit RandomPlans(unsigned seed) : random_(seed) {}

  std::size_t below(std::size_t end) { return random_() % end; }

  std::int64_t integer() {
    const std::int64_t edges[] = {
        0, 1, -1, 63, 64, 127, 128, std::numeric_limits<std::int64_t>::max(), std::numeric_limits<std::int64_t>::min()};
    return edges[below(std::size(edges))];
  }

  std::string text() {
    static const std::string texts[] = {
        "", "model.0.weight", "a.b", std::string("nul\0in", 6), "__0_0.distcp", std::string(300, 'x')};
    return texts[below(std::size(texts))];
  }

  Sizes sizes() {
    Sizes sizes(below(6));
    for (std::int64_t& size : sizes) size = integer();
    return sizes;
  }

  Box box() { return {sizes(), sizes()}; }

  MetadataIndex index() {
    MetadataIndex index;
    index.fqn = text();
    if (below(2) == 0) index.offset = sizes();
    if (below(2) == 0) index.index = integer();
    return index;
  }

  Path path() {
    Path path;
    for (std::size_t left = below(4); left > 0; --left) {
      const std::size_t step = below(3);
      if (step == 0) path.push_back(PathItem::dict_key(text()));
      if (step == 1) path.push_back(PathItem::dict_key(Key(integer())));
      if (step == 2) path.push_back(PathItem::list_index(integer()));
    }
    return path;
  }

  std::optional<OrderedMap<std::string, Path>> paths() {
    if (below(4) == 0) return std::nullopt;
    OrderedMap<std::string, Path> paths;
    for (std::size_t left = below(5); left > 0; --left) paths.insert(text(), path());
    return paths;
  }

  TensorProperties properties() {
    return {below(2) == 0 ? c10::ScalarType::BFloat16 : c10::ScalarType::Float8_e4m3fn,
            static_cast<NewerDtype>(below(4)), below(2) == 0, static_cast<MemoryFormat>(below(3)), below(2) == 0};
  }

  StorageInfo storage_info() {
    StorageInfo info{text(), integer(), integer(), {}};
    for (std::size_t left = below(3); left > 0; --left) info.transform_descriptors.push_back(text());
    return info;
  }

  /// As planners make them: items in the order of the paths, some keys several times.
  SavePlan usual_save_plan() {
    SavePlan plan;
    TensorProperties same = properties();
    for (std::size_t i = 0; i < 6; ++i) {
      const Path path = {PathItem::dict_key("model"), PathItem::dict_key(std::to_string(i))};
      const std::string key = below(2) == 0 ? flat_key(path) : "other key " + std::to_string(i);
      plan.planner_data.edit().insert(key, path);
      for (std::size_t left = below(3); left > 0; --left) {
        WriteItem item;
        item.index.fqn = key;
        item.type = static_cast<WriteItemType>(below(3));
        if (item.is_tensor()) {
          const std::int64_t rows = integer();
          item.chunk = {{rows, 0}, {1, 3}};
          item.size = below(2) == 0 ? Sizes{1, 3} : Sizes{rows, 3};
          if (below(4) == 0) same = properties();
          item.properties = same;
        }
        if (below(4) != 0) item.index.offset = item.chunk.offsets;
        if (below(2) == 0) item.index.index = integer();
        plan.items.push_back(std::move(item));
      }
    }
    return plan;
  }

  SavePlan save_plan() {
    SavePlan plan;
    if (auto map = paths()) plan.planner_data = PlannerPaths(*std::move(map));
    plan.storage_data = text();
    for (std::size_t left = below(5); left > 0; --left) {
      WriteItem item;
      item.index = index();
      item.type = static_cast<WriteItemType>(below(3));
      if (item.is_tensor()) {
        item.chunk = box();
        item.size = sizes();
        item.properties = properties();
      }
      plan.items.push_back(std::move(item));
    }
    return plan;
  }

  LoadPlan load_plan() {
    LoadPlan plan;
    plan.storage_data = text();
    for (std::size_t left = below(5); left > 0; --left) {
      plan.items.push_back({static_cast<ReadItemType>(below(2)), index(), sizes(), index(), sizes(), sizes()});
    }
    return plan;
  }

  std::vector<WriteResult> write_results() {
    std::vector<WriteResult> results;
    for (std::size_t left = below(5); left > 0; --left) results.push_back(write_result());
    return results;
  }

  WriteResult write_result() {
    WriteResult result{index(), integer(), storage_info()};
    for (std::size_t left = below(5); left > 0; --left) {
      result.block_sums.push_back(static_cast<std::uint32_t>(integer()));
    }
    return result;
  }

  Metadata metadata() {
    Metadata metadata;
    for (std::size_t left = below(4); left > 0; --left) {
      if (below(2) == 0) {
        metadata.state_dict_metadata.insert(text(), BytesStorageMetadata{});
      } else {
        TensorStorageMetadata tensor{properties(), sizes(), {}};
        for (std::size_t chunks = below(4); chunks > 0; --chunks) tensor.chunks.push_back(box());
        metadata.state_dict_metadata.insert(text(), std::move(tensor));
      }
    }
    metadata.planner_data = paths();
    for (std::size_t left = below(4); left > 0; --left) metadata.storage_data.insert(index(), storage_info());
    if (below(2) == 0) metadata.storage_meta = StorageMeta{text(), std::nullopt, text()};
    if (below(2) == 0) metadata.version = text();
    return metadata;
  }

 private:
  std::mt19937 random_;
};

template <typename T>
Bytes encoded(const T& value) {
  ByteWriter out;
  encode(out, value);
  return std::move(out).take();
}

template <typename T>
T decoded(ByteSpan bytes) {
  ByteReader in(bytes);
  T value;
  decode(in, value);
  in.expect_end();
  return value;
}

bool same(const MetadataIndex& a, const MetadataIndex& b) { return a == b && a.index == b.index; }

void expect_same(const StorageMeta& a, const StorageMeta& b) {
  EXPECT_EQ(a.checkpoint_id, b.checkpoint_id);
  EXPECT_EQ(a.save_id, b.save_id);
  EXPECT_EQ(a.load_id, b.load_id);
}

void expect_same(const std::optional<OrderedMap<std::string, Path>>& a,
                 const std::optional<OrderedMap<std::string, Path>>& b) {
  ASSERT_EQ(a.has_value(), b.has_value());
  EXPECT_TRUE(!a || std::equal(a->begin(), a->end(), b->begin(), b->end()));
}

void expect_same(const SavePlan& a, const SavePlan& b) {
  EXPECT_TRUE(a.planner_data == b.planner_data);
  EXPECT_EQ(a.storage_data, b.storage_data);
  ASSERT_EQ(a.items.size(), b.items.size());
  for (std::size_t i = 0; i < a.items.size(); ++i) {
    EXPECT_TRUE(same(a.items[i].index, b.items[i].index));
    EXPECT_EQ(a.items[i].type, b.items[i].type);
    EXPECT_EQ(a.items[i].chunk, b.items[i].chunk);
    EXPECT_EQ(a.items[i].size, b.items[i].size);
    EXPECT_EQ(a.items[i].properties, b.items[i].properties);
  }
}

void expect_same(const LoadPlan& a, const LoadPlan& b) {
  EXPECT_EQ(a.storage_data, b.storage_data);
  ASSERT_EQ(a.items.size(), b.items.size());
  for (std::size_t i = 0; i < a.items.size(); ++i) {
    EXPECT_EQ(a.items[i].type, b.items[i].type);
    EXPECT_TRUE(same(a.items[i].dest_index, b.items[i].dest_index));
    EXPECT_EQ(a.items[i].dest_offsets, b.items[i].dest_offsets);
    EXPECT_TRUE(same(a.items[i].storage_index, b.items[i].storage_index));
    EXPECT_EQ(a.items[i].storage_offsets, b.items[i].storage_offsets);
    EXPECT_EQ(a.items[i].lengths, b.items[i].lengths);
  }
}

void expect_same(const WriteResult& a, const WriteResult& b) {
  EXPECT_TRUE(same(a.index, b.index));
  EXPECT_EQ(a.size_in_bytes, b.size_in_bytes);
  EXPECT_EQ(a.storage, b.storage);
  EXPECT_EQ(a.block_sums, b.block_sums);
}

void expect_same(const std::vector<WriteResult>& a, const std::vector<WriteResult>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) expect_same(a[i], b[i]);
}

void expect_same(const StorageMetadata& a, const StorageMetadata& b) {
  ASSERT_EQ(a.index(), b.index());
  const auto* tensor = std::get_if<TensorStorageMetadata>(&a);
  if (tensor == nullptr) return;
  const auto& other = std::get<TensorStorageMetadata>(b);
  EXPECT_EQ(tensor->properties, other.properties);
  EXPECT_EQ(tensor->size, other.size);
  EXPECT_EQ(tensor->chunks, other.chunks);
}

void expect_same(const Metadata& a, const Metadata& b) {
  ASSERT_EQ(a.state_dict_metadata.size(), b.state_dict_metadata.size());
  auto other = b.state_dict_metadata.begin();
  for (const auto& [key, entry] : a.state_dict_metadata) {
    EXPECT_EQ(key, other->first);
    expect_same(entry, other->second);
    ++other;
  }
  expect_same(a.planner_data, b.planner_data);
  ASSERT_EQ(a.storage_data.size(), b.storage_data.size());
  auto stored = b.storage_data.begin();
  for (const auto& [index, info] : a.storage_data) {
    EXPECT_TRUE(same(index, stored->first));
    EXPECT_EQ(info, stored->second);
    ++stored;
  }
  ASSERT_EQ(a.storage_meta.has_value(), b.storage_meta.has_value());
  if (a.storage_meta) expect_same(*a.storage_meta, *b.storage_meta);
  EXPECT_EQ(a.version, b.version);
}

template <typename T>
void check_round_trip_and_cuts(const T& value) {
  const Bytes bytes = encoded(value);
  expect_same(value, decoded<T>(bytes));
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    test::expect_error(ErrorKind::kCorruptData, "message", [&] { decoded<T>(ByteSpan(bytes).first(size)); });
  }
}

TEST(Wire, RoundTripsAndNoticesEveryCut) {
  for (unsigned seed = 0; seed < 40; ++seed) {
    RandomPlans random(seed);
    check_round_trip_and_cuts(random.save_plan());
    check_round_trip_and_cuts(random.usual_save_plan());
    check_round_trip_and_cuts(random.write_results());
    check_round_trip_and_cuts(random.load_plan());
    check_round_trip_and_cuts(random.write_result());
    check_round_trip_and_cuts(random.metadata());
  }
}

/// Changes each byte of a message. Returns how many of these were refused.
template <typename T>
int change_bytes(const T& value, RandomPlans& random) {
  int refused_count = 0;
  const Bytes bytes = encoded(value);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    Bytes changed = bytes;
    changed[i] = static_cast<std::uint8_t>(changed[i] + 1 + random.below(255));
    try {
      decoded<T>(changed);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kCorruptData) << error.what();
      ++refused_count;
    }
  }
  return refused_count;
}

TEST(Wire, NamesOfStoredItemsAreNotMixedUp) {
  Metadata metadata;
  for (std::int64_t i = 0; i < 50; ++i) {
    const std::string key(1, static_cast<char>('a' + i % 7));
    metadata.storage_data.insert({key, Sizes{i}, i}, {"file " + std::to_string(i % 3), i, 1, {}});
  }
  expect_same(metadata, decoded<Metadata>(encoded(metadata)));
}

TEST(Wire, ForeignBytesAreCorruptDataOrAPlan) {
  int refused_plans = 0;
  int refused_results = 0;
  int refused_metadata = 0;
  for (unsigned seed = 0; seed < 40; ++seed) {
    RandomPlans random(seed);
    refused_plans += change_bytes(random.usual_save_plan(), random) + change_bytes(random.save_plan(), random);
    refused_results += change_bytes(random.write_results(), random);
    refused_metadata += change_bytes(random.metadata(), random);
  }
  EXPECT_GT(refused_plans, 500);
  EXPECT_GT(refused_results, 500);
  EXPECT_GT(refused_metadata, 500);
}

TEST(Wire, HugeCountsAndNumbersAreRefusedBeforeAllocating) {
  const Bytes huge_count = {0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f};
  test::expect_error(ErrorKind::kCorruptData, "items", [&] { decoded<SavePlan>(huge_count); });
  const Bytes too_long = {0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01};
  test::expect_error(ErrorKind::kCorruptData, "64 bits", [&] { decoded<SavePlan>(too_long); });
}

/// A plan of one object whose paths' section is `section`, item flags `flags`.
Bytes plan_of(const Bytes& section, const Bytes& items) {
  Bytes bytes = {1, static_cast<std::uint8_t>(section.size())};
  bytes.insert(bytes.end(), section.begin(), section.end());
  bytes.insert(bytes.end(), items.begin(), items.end());
  bytes.push_back(0);  // no storage data
  return bytes;
}

TEST(Wire, SectionsOfPathsThatAreNoneAreRefused) {
  const Bytes object = {1, 2};              // one item, an object whose key is the next one
  const Bytes path = {2, 0, 0, 1, 'a'};     // one step, key left out: "a"
  const Bytes good = {1, 2, 0, 0, 1, 'a'};  // one of these
  EXPECT_EQ(decoded<SavePlan>(plan_of(good, object)).items[0].index.fqn, "a");
  struct Case {
    const char* what;
    Bytes section;
    const char* said;
  };
  const std::vector<Case> cases = {
      {"no count", {}, "too short"},
      {"more paths than bytes", {9, 2, 0, 0, 1, 'a'}, "announces 9 paths"},
      {"fewer paths than bytes", {1, 2, 0, 0, 1, 'a', 2}, "1 are too many"},
      {"no path left", {2, 2, 0, 0, 1, 'a'}, "too short"},
      {"a path longer than its bytes", {1, 120, 0, 0, 1, 'a'}, "a path of 60 steps"},
      {"a step of no kind", {1, 2, 3, 0, 1, 'a'}, "3 for a path step"},
      {"a text that never came", {1, 2, 0, 7}, "string 7 of 0"},
      {"a text longer than its bytes", {1, 2, 0, 0, 9, 'a'}, "announces 9 characters"},
      {"a key twice", {2, 2, 0, 0, 1, 'a', 2, 0, 1}, "'a' twice"},
      {"a key twice, once as text", {2, 2, 0, 0, 1, 'a', 3, 0, 1, 1, 'a'}, "'a' twice"},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(one.what);
    test::expect_error(ErrorKind::kCorruptData, one.said, [&] { decoded<SavePlan>(plan_of(one.section, object)); });
  }
  Bytes beyond = plan_of(good, object);
  beyond[1] = 100;
  test::expect_error(ErrorKind::kCorruptData, "announces 100 bytes of paths", [&] { decoded<SavePlan>(beyond); });
  // Also where a plan before had the paths that the bytes begin with.
  SavePlanDecoder decoder;
  decoder.decode(plan_of(good, object));
  test::expect_error(ErrorKind::kCorruptData, "1 are too many",
                     [&] { decoder.decode(plan_of({1, 2, 0, 0, 1, 'a', 2}, object)); });
}

TEST(Wire, ItemsThatAreNoneAreRefused) {
  const Bytes paths = {1, 2, 0, 0, 1, 'a'};
  struct Case {
    const char* what;
    Bytes items;
    const char* said;
  };
  const std::vector<Case> cases = {
      {"a type that there is not", {1, 3}, "3 for a write item"},
      {"a flag that there is not", {1, 0x82, 0x08}, "1026 for a write item"},
      {"more items than keys", {2, 2, 2}, "none of its paths'"},
      {"a first item with the last one's key", {1, 6}, "without a key"},
      {"many dimensions", {1, 0, 100, 0, 0, 0}, "100 dimensions"},
      {"other properties of no dtype", {1, 0x20, 0, 0xff, 0, 0, 0, 0}, "255 for a dtype"},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(one.what);
    Bytes items = one.items;
    items.resize(items.size() + 200);
    test::expect_error(ErrorKind::kCorruptData, one.said, [&] { decoded<SavePlan>(plan_of(paths, items)); });
  }
}

/// With objects and paths of these keys.
SavePlan plan_with_keys(std::initializer_list<const char*> keys) {
  SavePlan plan;
  for (const char* key : keys) {
    plan.planner_data.edit().insert(key, {PathItem::dict_key(key)});
    plan.items.emplace_back().index.fqn = key;
  }
  return plan;
}

// An item of a byte has the whole key of the one before.
TEST(Wire, FewBytesDoNotBecomeMany) {
  SavePlan plan;
  plan.items.resize(1000);
  for (WriteItem& item : plan.items) item.index.fqn = std::string(300, 'x');
  SavePlan decoded;
  const Bytes fair = to_bytes(plan);
  EXPECT_NO_THROW(decoded = from_bytes<SavePlan>(fair));
  EXPECT_EQ(decoded.items.size(), 1000u);
  for (WriteItem& item : plan.items) item.index.fqn = std::string(20000, 'x');
  const Bytes unfair = to_bytes(plan);
  EXPECT_LT(unfair.size(), 30000u);
  test::expect_error(ErrorKind::kCorruptData, "more than 256 bytes of each of its own",
                     [&] { from_bytes<SavePlan>(unfair); });
}

TEST(SavePlanDecoder, PlansWithTheSamePathsShareThem) {
  SavePlanDecoder decoder;
  const SavePlan first = decoder.decode(encoded(plan_with_keys({"a", "b", "c"})));
  const SavePlan same = decoder.decode(encoded(plan_with_keys({"a", "b", "c"})));
  const SavePlan other = decoder.decode(encoded(plan_with_keys({"a", "b", "d"})));
  const SavePlan turned = decoder.decode(encoded(plan_with_keys({"b", "a", "c"})));
  const SavePlan shorter = decoder.decode(encoded(plan_with_keys({"a", "b"})));
  const SavePlan none = decoder.decode(encoded(SavePlan()));
  const SavePlan again = decoder.decode(encoded(plan_with_keys({"a", "b", "c"})));
  EXPECT_EQ(&*first.planner_data, &*same.planner_data);
  EXPECT_EQ(&*first.planner_data, &*again.planner_data) << "also after others";
  EXPECT_NE(&*first.planner_data, &*other.planner_data);
  EXPECT_NE(&*first.planner_data, &*turned.planner_data);
  EXPECT_TRUE(other.planner_data->contains("d") && !other.planner_data->contains("c"));
  EXPECT_EQ(turned.planner_data->begin()->first, "b");
  EXPECT_EQ(shorter.planner_data->size(), 2u);
  EXPECT_FALSE(none.planner_data);
  EXPECT_EQ(other.items[2].index.fqn, "d");
}

TEST(SavePlanDecoder, EveryByteOfThePathsCounts) {
  // Whatever byte is changed: if it is still a plan, it is the changed one.
  const Bytes bytes = encoded(plan_with_keys({"aa", "bb", "cc"}));
  int changed_count = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    SavePlanDecoder decoder;
    const SavePlan first = decoder.decode(bytes);
    Bytes changed = bytes;
    changed[i] ^= 1;
    try {
      const SavePlan other = decoder.decode(changed);
      expect_same(other, decoded<SavePlan>(changed));
      changed_count += first.planner_data == other.planner_data ? 0 : 1;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kCorruptData) << error.what();
    }
  }
  EXPECT_GE(changed_count, 6) << "each letter at least";
}

TEST(SavePlanDecoder, SharedPathsAreNotChangedByWhoEditsACopy) {
  SavePlanDecoder decoder;
  SavePlan first = decoder.decode(encoded(plan_with_keys({"a"})));
  const SavePlan second = decoder.decode(encoded(plan_with_keys({"a"})));
  first.planner_data.edit().insert("new", {PathItem::dict_key("new")});
  EXPECT_EQ(first.planner_data->size(), 2u);
  EXPECT_EQ(second.planner_data->size(), 1u);
  EXPECT_EQ(decoder.decode(encoded(plan_with_keys({"a"}))).planner_data->size(), 1u);
}

TEST(SavePlanDecoder, ManyDifferentPathsAreKeptApart) {
  SavePlanDecoder decoder;
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < 200; ++i) {
      const std::string key = "key" + std::to_string(100 + i);
      const SavePlan plan = decoder.decode(encoded(plan_with_keys({key.c_str()})));
      EXPECT_EQ(plan.items[0].index.fqn, key);
      EXPECT_TRUE(plan.planner_data->contains(key));
    }
  }
}

TEST(Wire, TheResultsOfARankNameTheirFileOnce) {
  std::vector<WriteResult> results;
  for (std::int64_t i = 0; i < 100; ++i) {
    results.push_back({{"model.weight", Sizes{i, 0}, i}, 4096, {"__17_0.distcp.of.a.long.name", i * 4096, 4096, {}}});
  }
  EXPECT_LT(encoded(results).size(), 100u * 20u);
  std::size_t one_by_one = 0;
  for (const WriteResult& result : results) one_by_one += encoded(result).size();
  EXPECT_GT(one_by_one, 100u * 50u);
}

TEST(Wire, RepeatedStringsCostAByteOrTwo) {
  LoadPlan plan;
  const std::string key = "model.layers.17.attention.wq.weight";
  for (std::int64_t i = 0; i < 100; ++i) {
    plan.items.push_back(
        {ReadItemType::kTensor, {key, Sizes{i, 0}, 0}, {0, 0}, {key, Sizes{i, 0}, i}, {0, 0}, {1, 64}});
  }
  EXPECT_LT(encoded(plan).size(), 100u * 40u);
}

}  // namespace
}  // namespace dcp

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

  SavePlan save_plan() {
    SavePlan plan;
    plan.planner_data = paths();
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
  expect_same(a.planner_data, b.planner_data);
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
    check_round_trip_and_cuts(random.load_plan());
    check_round_trip_and_cuts(random.write_result());
    check_round_trip_and_cuts(random.metadata());
  }
}

TEST(Wire, ForeignBytesAreCorruptDataOrAPlan) {
  int refused_count = 0;
  for (unsigned seed = 0; seed < 40; ++seed) {
    RandomPlans random(seed);
    const Bytes bytes = encoded(random.metadata());
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      Bytes changed = bytes;
      changed[i] = static_cast<std::uint8_t>(changed[i] + 1 + random.below(255));
      try {
        decoded<Metadata>(changed);
      } catch (const Error& error) {
        ASSERT_EQ(error.kind(), ErrorKind::kCorruptData) << error.what();
        ++refused_count;
      }
    }
  }
  EXPECT_GT(refused_count, 500);
}

TEST(Wire, HugeCountsAndNumbersAreRefusedBeforeAllocating) {
  const Bytes huge_count = {0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f};
  test::expect_error(ErrorKind::kCorruptData, "entries", [&] { decoded<SavePlan>(huge_count); });
  const Bytes too_long = {0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01};
  test::expect_error(ErrorKind::kCorruptData, "64 bits", [&] { decoded<SavePlan>(too_long); });
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

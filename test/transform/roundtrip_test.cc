// Properties of transformations, on states made at random from fixed seeds.

#include <algorithm>
#include <random>
#include <set>
#include <type_traits>

#include "test/transform/transform_support.h"
#include "torch_dcp/state_dict/flatten.h"
#include "torch_dcp/state_dict/walk.h"
#include "torch_dcp/transform/broadcast.h"
#include "torch_dcp/transform/clone.h"
#include "torch_dcp/transform/copy.h"
#include "torch_dcp/transform/cpu_twin.h"
#include "torch_dcp/transform/distribute.h"
#include "torch_dcp/transform/gather.h"
#include "torch_dcp/transform/offload.h"
#include "torch_dcp/transform/similar.h"

namespace dcp {
namespace {

using namespace test;  // NOLINT: the support's names

/// The same numbers on every rank.
class Chance {
 public:
  explicit Chance(unsigned seed) : random_(seed) {}

  int below(int end) { return static_cast<int>(random_() % static_cast<unsigned>(end)); }

  template <typename T>
  const T& one_of(const std::vector<T>& values) {
    return values[static_cast<std::size_t>(below(static_cast<int>(values.size())))];
  }

  Sizes sizes() {
    Sizes sizes;
    for (int dims = below(4); dims > 0; --dims) sizes.push_back(one_of<std::int64_t>({0, 1, 2, 3, 5, 7, 9, 16}));
    return sizes;
  }

  at::Tensor tensor() {
    const Sizes shape = sizes();
    const at::ScalarType dtype = one_of<at::ScalarType>({at::kFloat, at::kDouble, at::kLong, at::kBFloat16, at::kByte});
    return (counted(shape) + below(50)).to(dtype);
  }

 private:
  std::mt19937 random_;
};

Sizes mesh_shape(Chance& chance, int world_size) {
  std::vector<Sizes> shapes = {{world_size}};
  for (int rows = 1; rows <= world_size; ++rows) {
    if (world_size % rows == 0) shapes.push_back({rows, world_size / rows});
  }
  return chance.one_of(shapes);
}

Placements placements_for(Chance& chance, std::size_t mesh_ndim, std::int64_t tensor_ndim) {
  Placements placements;
  for (std::size_t d = 0; d < mesh_ndim; ++d) {
    const int kind = tensor_ndim == 0 ? 0 : chance.below(4);
    const std::int64_t dim = tensor_ndim == 0 ? 0 : chance.below(static_cast<int>(tensor_ndim));
    if (kind == 0) {
      placements.push_back(Placement::replicate());
    } else if (kind == 1) {
      placements.push_back(Placement::strided_shard(dim, 1 + chance.below(3)));
    } else {
      placements.push_back(Placement::shard(dim));
    }
  }
  return placements;
}

/// A full state, and how this rank has it.
struct States {
  Dict full;
  Dict parts;    ///< DTensors
  Dict shards;   ///< the same parts as ShardedTensors
  Dict targets;  ///< of the form of `parts`, with other bits, without memory, or undefined
};

void add_tensor(States& states, const Key& key, Chance& chance, const RankContext& ranks) {
  const at::Tensor whole = chance.tensor();
  const auto mesh = DeviceMesh::make(mesh_shape(chance, ranks.size()), ranks.rank());
  const DTensor part = DTensor::distribute(whole, mesh, placements_for(chance, mesh->ndim(), whole.dim()));
  std::vector<Shard> shards;
  for (const LocalChunk& chunk : local_chunks(part)) shards.push_back({chunk.view.clone(), chunk.box.offsets});
  states.full[key] = whole;
  states.parts[key] = part;
  states.shards[key] = ShardedTensor(Sizes(whole.sizes()), whole.scalar_type(), std::move(shards));
  const DTensor blank = pattern_on(mesh, part.placements(), whole.sizes(), whole.scalar_type());
  states.targets[key] = chance.below(2) == 0 ? blank : meta_of(blank);
}

States make_states(unsigned seed, const RankContext& ranks) {
  Chance chance(seed);
  States states;
  for (int i = 0; i < 6; ++i) add_tensor(states, "w" + std::to_string(i), chance, ranks);
  const at::Tensor plain = chance.tensor();
  for (Dict* dict : {&states.full, &states.parts, &states.shards}) {
    (*dict)["plain"] = plain;
    (*dict)["n"] = 3;
    *dict = {{"model", *dict}, {"list", List{Value(plain), Value(Tuple{Value("x"), (*dict)["w0"]})}}};
  }
  states.targets["plain"] = at::Tensor();
  states.targets["n"] = 0;
  const Value w0 = clone_value(states.targets["w0"]);
  states.targets = {{"model", states.targets}, {"list", List{Value(at::Tensor()), Value(Tuple{Value(0), w0})}}};
  return states;
}

class RoundTrip : public ::testing::TestWithParam<int> {};

TEST_P(RoundTrip, FullAndShardedAndLocalStatesBecomeEachOther) {
  run_ranks(GetParam(), [](RankContext& ranks) {
    Communicator comm = ranks.communicator();
    for (unsigned seed = 1; seed <= 10; ++seed) {
      ranks.note("seed " + std::to_string(seed));
      SCOPED_TRACE("seed " + std::to_string(seed));
      const States states = make_states(seed * 100 + static_cast<unsigned>(ranks.size()), ranks);
      const std::int64_t bucket_bytes = std::int64_t{512} << (seed % 5 * 2);
      expect_same(gather(states.parts, comm, {.bucket_bytes = bucket_bytes}), states.full);
      expect_same(gather(states.shards, comm, {.bucket_bytes = bucket_bytes}), states.full);

      Dict distributed = clone(states.targets);
      EXPECT_EQ(distribute_state(states.full, distributed), TransferReport());
      expect_same(distributed, states.parts);

      Dict broadcast = clone(states.targets);
      const Dict full = comm.is_coordinator() ? states.full : Dict();
      EXPECT_EQ(broadcast_state(full, broadcast, comm, {.bucket_bytes = bucket_bytes}), TransferReport());
      expect_same(broadcast, states.parts);
      expect_same(gather(broadcast, comm), states.full);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, RoundTrip, ::testing::Range(1, 9));

std::set<const void*> storages_of(const Dict& state) {
  std::set<const void*> storages;
  const auto note = [&](const at::Tensor& tensor) {
    if (tensor.defined() && tensor.storage().data() != nullptr) storages.insert(tensor.storage().data());
  };
  visit_all(state, [&](const Path&, const Value& value) {
    if (value.is_tensor()) note(value.as_tensor());
    if (value.kind() == ValueKind::kDTensor) note(value.as_dtensor().local());
    if (value.kind() != ValueKind::kShardedTensor) return;
    for (const Shard& shard : value.as_sharded_tensor().local_shards()) note(shard.tensor);
  });
  return storages;
}

TEST(RoundTripInOneProcess, CopiesAreEqualAndShareNoMemory) {
  run_ranks(4, [](RankContext& ranks) {
    for (unsigned seed = 1; seed <= 30; ++seed) {
      SCOPED_TRACE("seed " + std::to_string(seed));
      const States states = make_states(seed, ranks);
      for (const Dict& state : {states.full, states.parts, states.shards}) {
        const Dict copy = clone(state);
        expect_same(copy, state);
        Dict twin = make_cpu_twin(state, {.share_memory = seed % 2 == 0});
        EXPECT_TRUE(similar(state, twin));
        copy_into(state, twin);
        expect_same(twin, state);
        expect_same(offload(state), state);
        const std::set<const void*> originals = storages_of(state);
        EXPECT_FALSE(originals.empty());
        for (const Dict& other : {copy, twin}) {
          for (const void* storage : storages_of(other)) EXPECT_FALSE(originals.contains(storage));
        }
        EXPECT_EQ(storages_of(copy).size(), originals.size()) << "views of one storage are views of one again";
      }
    }
  });
}

/// Nested values of every kind, without tensors that are spread.
class RandomValue {
 public:
  explicit RandomValue(unsigned seed) : chance_(seed) {}

  Dict dict(int depth) {
    Dict dict;
    for (int i = chance_.below(5); i > 0; --i) dict[key()] = value(depth - 1);
    return dict;
  }

 private:
  Key key() {
    if (chance_.below(4) == 0) return static_cast<std::int64_t>(chance_.below(5)) - 2;
    return chance_.one_of<std::string>({"a", "b", "a.b", "0", "-1", "", ".", "layers.0.weight", "it's"});
  }

  Value value(int depth) {
    switch (chance_.below(depth > 0 ? 10 : 7)) {
      case 0:
        return Value();
      case 1:
        return chance_.below(2) == 0;
      case 2:
        return chance_.below(1000);
      case 3:
        return chance_.below(1000) / 7.0;
      case 4:
        return "text";
      case 5:
        return Bytes{static_cast<std::uint8_t>(chance_.below(200))};
      case 6:
        return chance_.tensor();
      case 7:
        return elements<Tuple>(depth);
      case 8:
        return elements<List>(depth);
      default:
        return dict(depth);
    }
  }

  template <typename Sequence>
  Value elements(int depth) {
    Sequence sequence;
    for (int i = chance_.below(4); i > 0; --i) sequence.push_back(value(depth - 1));
    return sequence;
  }

  Chance chance_;
};

TEST(RoundTripInOneProcess, NestedValuesSurviveEveryTransformation) {
  Communicator comm = Communicator::single();
  int flattened = 0;
  RandomValue random(7);
  for (int i = 0; i < 800; ++i) {
    const Dict state = random.dict(4);
    SCOPED_TRACE("state " + std::to_string(i));
    try {
      expect_same(unflatten_state_dict(flatten_state_dict(state)), state);
      ++flattened;
    } catch (const Error& error) {
      ASSERT_EQ(error.kind(), ErrorKind::kKey) << error.what();  // Two paths have one flat key.
    }
    expect_same(clone(state), state);
    expect_same(offload(state), state);
    expect_same(gather(state, comm), state);
    Dict twin = make_cpu_twin(state);
    copy_into(state, twin);
    expect_same(twin, state);
    Dict local = clone(twin);
    EXPECT_EQ(broadcast_state(state, local, comm), TransferReport());
    expect_same(local, state);
    local = make_cpu_twin(state);
    EXPECT_EQ(distribute_state(state, local), TransferReport());
    expect_same(local, state);
  }
  EXPECT_GT(flattened, 600);
}

TEST(PublicNames, AreThoseThatStateDictsAreMadeOf) {
  static_assert(std::is_same_v<StateDict, Dict>);
  static_assert(std::is_same_v<Path, std::vector<PathItem>>);
  static_assert(std::is_base_of_v<std::vector<Value>, List> && std::is_base_of_v<std::vector<Value>, Tuple>);
  StateDict state = {{"l", List{Value(at::ones({1}))}}};
  const FlatStateDict flat = flatten_state_dict(state);
  const Path path = {PathItem::dict_key("l"), PathItem::list_index(0)};
  ASSERT_NE(flat.find("l.0"), nullptr);
  EXPECT_EQ(flat.find("l.0")->path, path);
}

}  // namespace
}  // namespace dcp

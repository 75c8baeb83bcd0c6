#include "torch_dcp/transform/cpu_twin.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <set>

#include "test/support/expect_error.h"
#include "test/transform/transform_support.h"
#include "torch_dcp/transform/copy.h"
#include "torch_dcp/transform/cpu_twin_internal.h"
#include "torch_dcp/transform/similar.h"

namespace dcp {
namespace {

using namespace test;  // NOLINT: the support's names

std::size_t mapping_count() {
  std::ifstream maps("/proc/self/maps");
  std::size_t count = 0;
  for (std::string line; std::getline(maps, line);) count += line.find("memfd:torch_dcp") != std::string::npos ? 1 : 0;
  return count;
}

Dict example() {
  const auto mesh = DeviceMesh::make({2}, 1);
  return {{"w", counted({3, 2})},
          {"strided", counted({3, 2}).t()},
          {"overlapping", counted({1}).expand({4})},
          {"scalar", at::full({}, 5.0)},
          {"empty", at::empty({0, 3}, at::kLong)},
          {"rows", DTensor::distribute(counted({5}, at::kHalf), mesh, {Placement::shard(0)})},
          {"scalar part", DTensor::distribute(at::full({}, 5.0), mesh, {Placement::replicate()})},
          {"shards", ShardedTensor({4}, at::kFloat, {{counted({1}), {3}}, {counted({2}), {0}}})},
          {"no shards", ShardedTensor({4}, at::kFloat, {})},
          {"nested", List{Value(Tuple{Value(counted({2})), Value(7)})}},
          {"n", "text"}};
}

TEST(CpuTwin, HasTheSameFormInMemoryOfItsOwn) {
  for (bool share_memory : {false, true}) {
    const Dict state = example();
    Dict twin = make_cpu_twin(state, {.share_memory = share_memory});
    EXPECT_TRUE(similar(state, twin));
    EXPECT_EQ(twin.at("n").as_string(), "text");
    EXPECT_FALSE(twin.at("w").as_tensor().is_alias_of(state.at("w").as_tensor()));
    EXPECT_EQ(twin.at("strided").as_tensor().strides(), state.at("strided").as_tensor().strides());
    EXPECT_TRUE(twin.at("overlapping").as_tensor().is_contiguous());
    EXPECT_FALSE(twin.at("rows").as_dtensor().local().is_alias_of(state.at("rows").as_dtensor().local()));
    copy_into(state, twin);
    expect_same(twin, state);
    expect_same(state, example());
  }
}

TEST(CpuTwin, ZeroesWhatHasNoDimensionsElementsOrData) {
  const Dict state = {
      {"scalar", at::full({}, 5, at::kDouble)},
      {"scalar part", DTensor::distribute(at::full({}, 5.0), DeviceMesh::make({1}, 0), {Placement::replicate()})},
      {"scalar shard", ShardedTensor({}, at::kInt, {{at::full({}, 5, at::kInt), {}}})},
      {"empty", at::empty({2, 0}, at::kBool)},
      {"meta", at::empty({3}, at::TensorOptions(at::kHalf).device(at::kMeta))}};
  for (bool share_memory : {false, true}) {
    const Dict twin = make_cpu_twin(state, {.share_memory = share_memory});
    expect_same(twin.at("scalar"), at::zeros({}, at::kDouble));
    expect_same(twin.at("scalar part").as_dtensor().local(), at::zeros({}));
    EXPECT_FALSE(twin.at("scalar part").as_dtensor().local().is_same(state.at("scalar part").as_dtensor().local()));
    expect_same(twin.at("scalar shard").as_sharded_tensor().local_shards()[0].tensor, at::zeros({}, at::kInt));
    expect_same(twin.at("empty"), at::empty({2, 0}, at::kBool));
    expect_same(twin.at("meta"), at::zeros({3}, at::kHalf));
    for (const char* key : {"empty", "meta"}) {
      EXPECT_EQ(shared_memory_of(twin.at(key).as_tensor()) != nullptr, share_memory) << key;
    }
    EXPECT_EQ(shared_memory_of(twin.at("scalar").as_tensor()), nullptr);
  }
}

TEST(CpuTwin, ASharedOneLiesInOneBlockThatDiesWithItsTensors) {
  ASSERT_EQ(mapping_count(), 0u);
  at::Tensor survivor;
  {
    const Dict twin = make_cpu_twin(example(), {.share_memory = true});
    EXPECT_EQ(mapping_count(), 1u);
    const SharedMemory* const block = shared_memory_of(twin.at("w").as_tensor());
    ASSERT_NE(block, nullptr);
    std::set<const void*> addresses;
    for (const char* key : {"w", "strided", "overlapping"}) {
      const at::Tensor& tensor = twin.at(key).as_tensor();
      EXPECT_EQ(shared_memory_of(tensor), block) << key;
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(tensor.data_ptr()) % 64, 0u) << key;
      addresses.insert(tensor.data_ptr());
    }
    EXPECT_EQ(addresses.size(), 3u);
    EXPECT_EQ(shared_memory_of(twin.at("rows").as_dtensor().local()), block);
    EXPECT_EQ(shared_memory_of(twin.at("shards").as_sharded_tensor().local_shards()[0].tensor), block);
    survivor = twin.at("w").as_tensor().narrow(0, 0, 1);
  }
  EXPECT_EQ(mapping_count(), 1u) << "a view holds the storage";
  survivor.fill_(3);
  survivor = at::Tensor();
  EXPECT_EQ(mapping_count(), 0u);
  EXPECT_EQ(shared_memory_of(at::Tensor()), nullptr);
  EXPECT_EQ(shared_memory_of(counted({2})), nullptr);
}

TEST(CpuTwin, AnotherProcessReadsAndWritesASharedOne) {
  const Dict twin = make_cpu_twin({{"first", counted({100})}, {"w", counted({8})}}, {.share_memory = true});
  const at::Tensor& tensor = twin.at("w").as_tensor();
  tensor.copy_(counted({8}));
  const SharedMemory& block = *shared_memory_of(tensor);
  const auto offset = static_cast<std::uint8_t*>(tensor.data_ptr()) - block.data();
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const SharedMemory mine = SharedMemory::open(block.fd(), block.size());
    float number = 0;
    std::memcpy(&number, mine.data() + offset + 5 * sizeof(float), sizeof number);
    const float answer = 42;
    std::memcpy(mine.data() + offset, &answer, sizeof answer);
    _exit(number == 5.0f ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(tensor[0].item<float>(), 42.0f);
}

TEST(CpuTwin, TwinsOfOneTensorAreOne) {
  const at::Tensor shared = counted({4});
  const Dict twin = make_cpu_twin({{"a", shared}, {"b", List{Value(shared)}}});
  EXPECT_TRUE(twin.at("a").as_tensor().is_same(twin.at("b").as_list()[0].as_tensor()));
}

TEST(CpuTwin, TakesAStatefulForItsState) {
  const auto object = std::make_shared<FixedState>(Dict{{"w", counted({2})}});
  const Dict twin = make_cpu_twin({{"o", object}});
  EXPECT_TRUE(similar(twin, Dict{{"o", Dict{{"w", counted({2})}}}}));
}

TEST(CpuTwin, NamesTensorsThatHaveNone) {
  const Dict state = {{"sparse", counted({2}).to_sparse()},
                      {"l", List{Value(at::quantize_per_tensor(counted({2}), 1, 0, at::kQInt8))}},
                      {"nested", at::_nested_tensor_from_tensor_list({at::ones({2}), at::ones({3})})}};
  const auto call = [&] { make_cpu_twin(state); };
  expect_error(ErrorKind::kUnsupported, "3 faults", call);
  expect_error(ErrorKind::kUnsupported, "key 'sparse': a tensor of layout Sparse has no twin", call);
  expect_error(ErrorKind::kUnsupported, "key 'l.0': a quantized tensor has no twin", call);
  expect_error(ErrorKind::kUnsupported, "key 'nested': a nested tensor has no twin", call);
}

TEST(CpuTwin, PinsWhereThereIsAnAcceleratorAndSaysSoWhereThereIsNone) {
  if (at::globalContext().hasCUDA()) {
    const Dict twin = make_cpu_twin(example(), {.pin_memory = true});
    EXPECT_TRUE(twin.at("w").as_tensor().is_pinned());
    EXPECT_FALSE(twin.at("scalar").as_tensor().is_pinned());
    EXPECT_FALSE(twin.at("empty").as_tensor().is_pinned());
    return;
  }
  for (bool share_memory : {false, true}) {
    expect_error(ErrorKind::kState, "cannot be page-locked: LibTorch has no accelerator here",
                 [&] { make_cpu_twin(example(), {.pin_memory = true, .share_memory = share_memory}); });
    EXPECT_EQ(mapping_count(), 0u) << "nothing is left behind";
  }
}

/// Counts what is locked; fails if told to.
struct FakeLock {
  std::set<void*> locked;
  std::size_t bytes = 0;
  bool fails = false;

  PageLock make() {
    PageLock page_lock;
    page_lock.lock = [this](void* data, std::size_t byte_count) {
      DCP_CHECK(!fails, kState, "no more memory may be locked");
      locked.insert(data);
      bytes = byte_count;
    };
    page_lock.unlock = [this](void* data) { locked.erase(data); };
    return page_lock;
  }
};

TEST(CpuTwin, TheSharedBlockIsLockedAsLongAsItLives) {
  FakeLock lock;
  const CpuTwinOptions options{.pin_memory = true, .share_memory = true};
  {
    const Dict twin = make_cpu_twin_with(example(), options, [&] { return lock.make(); });
    const SharedMemory* const block = shared_memory_of(twin.at("w").as_tensor());
    ASSERT_NE(block, nullptr);
    EXPECT_EQ(lock.locked, std::set<void*>{block->data()});
    EXPECT_EQ(lock.bytes, block->size());
  }
  EXPECT_TRUE(lock.locked.empty());
  EXPECT_EQ(mapping_count(), 0u);
  lock.fails = true;
  expect_error(ErrorKind::kState, "no more memory may be locked",
               [&] { make_cpu_twin_with(example(), options, [&] { return lock.make(); }); });
  EXPECT_EQ(mapping_count(), 0u) << "the block of a failed lock is freed";
}

}  // namespace
}  // namespace dcp

// What a save and a load take of memory beside the state, counted at malloc: the copies in user space, and the most at
// a time.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "test/support/memory_counter.h"
#include "torch_dcp/checkpoint/load.h"
#include "torch_dcp/checkpoint/save.h"
#include "torch_dcp/io/file_system.h"
#include "torch_dcp/state_dict/equal.h"
#include "torch_dcp/storage/filesystem_reader.h"
#include "torch_dcp/storage/filesystem_writer.h"

namespace dcp {
namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;
/// What whole saves and loads may take, whatever the size of the state, beside what each planned item takes.
constexpr std::int64_t kMostBytes = 64 * kMiB;
constexpr std::int64_t kMostBytesPerItem = 4096;
/// Plans of a few items, and what gathers small ones: far from a copy of a large tensor.
constexpr std::int64_t kNoCopy = 4 * kMiB;
/// The buffers of a file that is written past the page cache.
constexpr std::int64_t kDirectBytes = 8 * kMiB;
/// What copies of strided tensors may take at a time.
constexpr std::int64_t kCopyBytes = 16 * kMiB;

struct Use {
  std::int64_t peak_bytes;
  std::int64_t allocated_bytes;
};

Use use_of(const std::function<void()>& call) {
  const testing::PeakMemory memory;
  call();
  return {memory.bytes(), memory.allocated_bytes()};
}

class MemoryUseTest : public ::testing::Test {
 protected:
  Use save_of(const StateDict& state, FileSystemWriterOptions options = {}) {
    return use_of([&] {
      FileSystemWriter writer(path_, options);
      save(state, writer);
    });
  }

  Use load_of(StateDict& state, FileSystemReaderOptions options = {}) {
    return use_of([&] {
      FileSystemReader reader(path_, options);
      load(state, reader);
    });
  }

  std::string path_ = ::testing::TempDir() + "/" + ::testing::UnitTest::GetInstance()->current_test_info()->name();
};

/// [rows, 1 MiB] of bytes.
at::Tensor make_tensor(std::int64_t mib) { return at::arange(mib * kMiB, at::kInt).to(at::kByte).view({mib, kMiB}); }

TEST_F(MemoryUseTest, ContiguousTensorsAreNotCopied) {
  const StateDict state = {{"a", make_tensor(50)}, {"b", make_tensor(50)}};
  for (const bool checksums : {true, false}) {
    SCOPED_TRACE(checksums);
    const Use cached = save_of(state, {.thread_count = 2, .sync_files = false, .checksums = checksums});
    EXPECT_LT(cached.allocated_bytes, kNoCopy);
    const Use durable = save_of(state, {.thread_count = 2, .checksums = checksums});
    EXPECT_LT(durable.allocated_bytes, 2 * kDirectBytes + kNoCopy);
    StateDict loaded = {{"a", at::zeros({50, kMiB}, at::kByte)}, {"b", at::zeros({50, kMiB}, at::kByte)}};
    const Use read = load_of(loaded, {.thread_count = 2, .verify_checksums = checksums});
    EXPECT_LT(read.allocated_bytes, kNoCopy);
    EXPECT_TRUE(bit_equal(loaded["b"].as_tensor(), state.at("b").as_tensor()));
  }
}

TEST_F(MemoryUseTest, StridedTensorsAreCopiedOnceInBoundedParts) {
  const at::Tensor whole = make_tensor(150);
  const Use saved = save_of({{"t", whole.t()}});
  EXPECT_LT(saved.peak_bytes, kCopyBytes + kDirectBytes + kNoCopy);
  EXPECT_LT(saved.allocated_bytes, 150 * kMiB + kDirectBytes + kNoCopy);
  const at::Tensor destination = at::zeros({150, kMiB}, at::kByte);
  StateDict loaded = {{"t", destination.t()}};
  const Use read = load_of(loaded);
  EXPECT_LT(read.peak_bytes, kCopyBytes + kNoCopy);
  EXPECT_LT(read.allocated_bytes, 150 * kMiB + kNoCopy);
  EXPECT_TRUE(bit_equal(destination, whole));
}

TEST_F(MemoryUseTest, SeveralThreadsKeepToTheBound) {
  StateDict state;
  StateDict loaded;
  std::int64_t all_bytes = 0;
  for (const char* key : {"a", "b", "c", "d"}) {
    state[key] = make_tensor(40).t();
    loaded[key] = at::zeros({40, kMiB}, at::kByte).t();
    all_bytes += 40 * kMiB;
  }
  ASSERT_GT(all_bytes, 2 * kMostBytes);
  EXPECT_LT(save_of(state, {.thread_count = 4}).peak_bytes, kMostBytes);
  EXPECT_LT(load_of(loaded, {.thread_count = 4}).peak_bytes, kMostBytes);
  EXPECT_TRUE(bit_equal(loaded, state));
}

TEST_F(MemoryUseTest, RowSlicesAreNotCopiedAndColumnSlicesOnce) {
  const at::Tensor whole = at::arange(20 * kMiB, at::kInt).view({1024, 20 * 1024});
  save_of({{"t", whole}});
  const auto destination = [&](Sizes sizes, Sizes offsets) {
    return StateDict{{"t", ShardedTensor({1024, 20 * 1024}, at::kInt, {{at::zeros(sizes, at::kInt), offsets}})}};
  };
  StateDict rows = destination({512, 20 * 1024}, {256, 0});
  EXPECT_LT(load_of(rows).allocated_bytes, kNoCopy);
  StateDict columns = destination({1024, 10 * 1024}, {0, 5 * 1024});
  const Use read = load_of(columns);
  EXPECT_LT(read.allocated_bytes, 40 * kMiB + kNoCopy);
  EXPECT_LT(read.peak_bytes, kMostBytes);
  EXPECT_TRUE(
      bit_equal(columns["t"].as_sharded_tensor().local_shards()[0].tensor, whole.narrow(1, 5 * 1024, 10 * 1024)));
}

// Saved in 4 parts, loaded as 3.
TEST_F(MemoryUseTest, ReshardingKeepsToTheBound) {
  const std::vector<std::int64_t> sizes = {1020, 36 * 1024};
  const at::Tensor whole = at::arange(sizes[0] * sizes[1], at::kInt).view(sizes);
  ASSERT_GT(static_cast<std::int64_t>(whole.nbytes()), 2 * kMostBytes);
  for (const std::int64_t dim : {0, 1}) {
    SCOPED_TRACE(dim);
    const auto part_of = [&](std::int64_t number, std::int64_t parts) {
      const std::int64_t length = sizes[static_cast<std::size_t>(dim)] / parts;
      Shard shard{whole.narrow(dim, number * length, length), {0, 0}};
      shard.offsets[static_cast<std::size_t>(dim)] = number * length;
      return shard;
    };
    save_of({{"t", ShardedTensor(Sizes(c10::IntArrayRef(sizes)), at::kInt,
                                 {part_of(0, 4), part_of(1, 4), part_of(2, 4), part_of(3, 4)})}});
    for (std::int64_t number = 0; number < 3; ++number) {
      const Shard wanted = part_of(number, 3);
      const at::Tensor destination = at::zeros(wanted.tensor.sizes(), at::kInt);
      StateDict state = {
          {"t", ShardedTensor(Sizes(c10::IntArrayRef(sizes)), at::kInt, {{destination, wanted.offsets}})}};
      EXPECT_LT(load_of(state).peak_bytes, kMostBytes);
      EXPECT_TRUE(bit_equal(destination, wanted.tensor.contiguous()));
    }
  }
}

TEST_F(MemoryUseTest, ManyItemsTakeAStatedNumberOfBytesEach) {
  constexpr std::int64_t kItems = 20'000;
  StateDict state;
  StateDict loaded;
  for (std::int64_t i = 0; i < kItems; ++i) {
    state["layer." + std::to_string(i) + ".weight"] = at::full({16}, i, at::kLong);
    loaded["layer." + std::to_string(i) + ".weight"] = at::zeros({16}, at::kLong);
  }
  EXPECT_LT(save_of(state).peak_bytes, kItems * kMostBytesPerItem);
  EXPECT_LT(load_of(loaded).peak_bytes, kItems * kMostBytesPerItem);
  EXPECT_TRUE(bit_equal(loaded, state));
}

}  // namespace
}  // namespace dcp

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "test/checkpoint/checkpoint_support.h"
#include "test/support/expect_error.h"
#include "test/support/fault_injecting_file_system.h"
#include "torch_dcp/format/crc32.h"
#include "torch_dcp/format/torch_archive.h"
#include "torch_dcp/plan/default_save_planner.h"
#include "torch_dcp/plan/write_items.h"
#include "torch_dcp/storage/item_reader_internal.h"
#include "torch_dcp/storage/item_writer_internal.h"

namespace dcp::test {
namespace {

/// One item in one file.
class ItemTest : public ::testing::Test {
 protected:
  /// \returns Calls of `append` that it took.
  std::size_t write(const Value& value, std::int64_t copy_bytes = kWriteCopyBytes) {
    DefaultSavePlanner planner;
    const StateDict state = {{"v", value}};  // lives as long as the planner is used
    planner.set_up(state, {});
    const SavePlan plan = planner.create_local_plan();
    files_->clear_trace();
    const auto out = files_->create_file("f");
    out->append(Bytes(kItemOffset, 0x55));
    ItemWriter(planner, /*checksums=*/true, copy_bytes).write(*out, plan.items.at(0));
    out->close();
    return files_->changes().size() - 3;
  }

  TensorItem open() {
    file_ = files_->open_file("f");
    return open_tensor_item(*file_, kItemOffset, static_cast<std::int64_t>(file_->size()) - kItemOffset);
  }

  void read(const std::vector<std::int64_t>& begin, const at::Tensor& destination,
            std::int64_t copy_bytes = kReadCopyBytes, bool verify = true) {
    const TensorItem item = open();
    read_tensor_region(*file_, kItemOffset, item, begin, destination.sizes(), destination, {verify, copy_bytes});
  }

  at::Tensor read_whole(const at::Tensor& like, std::int64_t copy_bytes = kReadCopyBytes) {
    at::Tensor destination = pattern(like.sizes(), like.scalar_type());
    read(std::vector<std::int64_t>(static_cast<std::size_t>(like.dim()), 0), destination, copy_bytes);
    return destination;
  }

  std::uint64_t bytes_read() const {
    std::uint64_t bytes = 0;
    for (const FileEvent& event : files_->trace()) bytes += event.op == FileOp::kRead ? event.bytes : 0;
    return bytes;
  }

  std::uint64_t reads() const {
    std::uint64_t count = 0;
    for (const FileEvent& event : files_->trace()) count += event.op == FileOp::kRead ? 1 : 0;
    return count;
  }

  static constexpr std::int64_t kItemOffset = 37;
  std::shared_ptr<FaultInjectingFileSystem> files_ =
      std::make_shared<FaultInjectingFileSystem>(make_memory_file_system());
  std::unique_ptr<RandomAccessFile> file_;
};

TEST_F(ItemTest, AllKindsOfTensorsComeBack) {
  const at::Tensor complex = at::complex(counted({3, 4}), counted({3, 4}) + 0.5);
  const std::map<std::string, at::Tensor> tensors = {
      {"contiguous", counted({3, 4})},
      {"transposed", counted({3, 4}).t()},
      {"slice", counted({9, 4}).narrow(1, 1, 2)},
      {"stepped", counted({12}).slice(0, 1, 12, 3)},
      {"expanded", counted({1, 4}).expand({5, 4})},
      {"conjugate", complex.conj()},
      {"conjugate transposed", complex.conj().t()},
      {"imaginary part of a conjugate", at::imag(complex.conj())},
      {"scalar", at::full({}, 0.1, at::kDouble)},
      {"empty", at::empty({0, 3})},
      {"bool", counted({6}).remainder(2).to(at::kBool)},
      {"bfloat16", counted({6}, at::kBFloat16)},
      {"large", counted({700, 1000})},
      {"large, transposed", counted({700, 1000}).t()},
  };
  for (const auto& [name, tensor] : tensors) {
    SCOPED_TRACE(name);
    write(tensor);
    EXPECT_TRUE(open().is_plain_contiguous());
    EXPECT_TRUE(bit_equal(read_whole(tensor), tensor));
  }
}

TEST_F(ItemTest, SmallTensorsTakeOneAppend) {
  EXPECT_EQ(write(counted({3, 4})), 1u);
  EXPECT_EQ(write(counted({3, 4}).t()), 1u);
}

TEST_F(ItemTest, StridedTensorsGoInPartsOfBoundedSize) {
  const std::vector<at::Tensor> tensors = {
      counted({300, 2000}).t(),
      counted({1, 2, 500, 600}).permute({0, 1, 3, 2}),
      counted({3, 600'000}).narrow(1, 1, 500'000),
      at::complex(counted({400, 500}), counted({400, 500})).conj(),
  };
  for (const at::Tensor& tensor : tensors) {
    write(tensor);
    const Bytes whole = read_whole_file(*files_, "f", 1 << 30);
    for (const std::int64_t copy_bytes : {1, 5000, 100'000}) {
      if (copy_bytes == 1 && tensor.size(0) > 10) continue;  // As many parts as elements.
      if (copy_bytes == 1 && tensor.numel() > 600'000) continue;
      write(tensor, copy_bytes);
      EXPECT_TRUE(read_whole_file(*files_, "f", 1 << 30) == whole) << "the parts make other bytes";
    }
    for (const std::int64_t copy_bytes : {5000, 100'000}) {
      at::Tensor strided = pattern(tensor.sizes(), tensor.scalar_type()).transpose(0, -1).contiguous().transpose(0, -1);
      read(std::vector<std::int64_t>(static_cast<std::size_t>(tensor.dim()), 0), strided, copy_bytes);
      EXPECT_TRUE(bit_equal(strided, tensor));
      if (tensor.scalar_type() == at::kComplexFloat) continue;
      at::Tensor converted = at::empty(tensor.sizes(), at::kDouble);
      read(std::vector<std::int64_t>(static_cast<std::size_t>(tensor.dim()), 0), converted, copy_bytes);
      EXPECT_TRUE(bit_equal(converted, tensor.to(at::kDouble)));
    }
  }
}

TEST_F(ItemTest, RegionsGoIntoViews) {
  const at::Tensor whole = counted({20, 30});
  write(whole);
  const at::Tensor base = pattern({9, 12});
  const at::Tensor destination = base.narrow(0, 2, 4).narrow(1, 3, 5).t();  // [5, 4]
  read({7, 11}, destination);
  EXPECT_TRUE(bit_equal(destination, whole.narrow(0, 7, 5).narrow(1, 11, 4)));
  destination.copy_(pattern({5, 4}));
  EXPECT_TRUE(is_pattern(base));
}

TEST_F(ItemTest, ASliceReadsLittleElse) {
  const at::Tensor whole = counted({1024, 1024});
  write(whole);
  const at::Tensor rows = pattern({256, 1024});
  files_->clear_trace();
  read({100, 0}, rows);
  EXPECT_TRUE(bit_equal(rows, whole.narrow(0, 100, 256)));
  EXPECT_LE(static_cast<double>(bytes_read()), 1.05 * 256 * 4096);
  const at::Tensor few = pattern({1, 1024});
  files_->clear_trace();
  read({3, 0}, few);
  EXPECT_LE(bytes_read(), 4096u + 8192u);
}

TEST_F(ItemTest, AWholeItemIsOneCallWithoutTheChecksum) {
  const at::Tensor whole = counted({1024, 1024});
  write(whole);
  const TensorItem item = open();
  const at::Tensor destination = pattern({1024, 1024});
  files_->clear_trace();
  read_tensor_region(*file_, kItemOffset, item, {0, 0}, {1024, 1024}, destination, {.verify_checksum = false});
  EXPECT_EQ(reads(), 1u);
  EXPECT_TRUE(bit_equal(destination, whole));
  files_->clear_trace();
  destination.fill_(0);
  read_tensor_region(*file_, kItemOffset, item, {0, 0}, {1024, 1024}, destination, {.verify_checksum = true});
  EXPECT_EQ(bytes_read(), 4u << 20);
  EXPECT_TRUE(bit_equal(destination, whole));
}

// Regions that overlap, of any number of dimensions, with blocks that begin anywhere in them.
TEST_F(ItemTest, RegionsOfOnePassComeBackAndReadEachBlockOnce) {
  std::mt19937 random(17);
  const auto below = [&](std::int64_t end) { return static_cast<std::int64_t>(random() % static_cast<unsigned>(end)); };
  for (int round = 0; round < 200; ++round) {
    Sizes sizes;
    for (std::int64_t d = below(5); d > 0; --d) sizes.push_back(1 + below(9));
    const at::Tensor whole = counted(sizes, round % 3 == 0 ? at::kDouble : at::kFloat);
    const std::int64_t element_bytes = whole.element_size();
    write(whole);
    const TensorItem item = open();
    const std::int64_t block_bytes = element_bytes * (1 + below(40));
    std::vector<std::uint32_t> sums;
    const ByteSpan bytes{static_cast<const std::uint8_t*>(whole.const_data_ptr()), whole.nbytes()};
    for (std::size_t at = 0; at < bytes.size(); at += static_cast<std::size_t>(block_bytes)) {
      sums.push_back(crc32_of(bytes.subspan(at, std::min(bytes.size() - at, static_cast<std::size_t>(block_bytes)))));
    }
    std::set<std::int64_t> needed;
    std::vector<Box> boxes(1 + static_cast<std::size_t>(below(5)));
    std::vector<WantedRegion> regions;
    const at::Tensor numbers = at::arange(whole.numel()).view(sizes);
    for (Box& box : boxes) {
      at::Tensor wanted = numbers;
      for (std::size_t d = 0; d < sizes.size(); ++d) {
        box.offsets.push_back(below(3) == 0 ? 0 : below(sizes[d]));
        box.sizes.push_back(below(3) == 0 ? sizes[d] - box.offsets[d] : 1 + below(sizes[d] - box.offsets[d]));
        wanted = wanted.narrow(static_cast<std::int64_t>(d), box.offsets[d], box.sizes[d]);
      }
      const at::Tensor flat = wanted.reshape({-1});
      for (std::int64_t i = 0; i < flat.numel(); ++i) {
        needed.insert(flat[i].item<std::int64_t>() * element_bytes / block_bytes);
      }
      at::Tensor destination = pattern(box.sizes, below(3) == 0 ? at::kDouble : whole.scalar_type());
      if (below(3) == 0 && destination.dim() > 1) destination = pattern({box.sizes[1], box.sizes[0]}).t();
      if (destination.sizes() != c10::IntArrayRef(box.sizes)) destination = pattern(box.sizes);
      regions.push_back({box.offsets, box.sizes, destination});
    }
    files_->clear_trace();
    read_tensor_regions(*file_, kItemOffset, item, regions,
                        {.copy_bytes = 1 + below(100), .sums = ItemSums{block_bytes, &sums, true}});
    std::uint64_t needed_bytes = 0;
    for (const std::int64_t block : needed) {
      needed_bytes += static_cast<std::uint64_t>(
          std::min(block_bytes, static_cast<std::int64_t>(whole.nbytes()) - block * block_bytes));
    }
    ASSERT_EQ(bytes_read(), needed_bytes) << "round " << round;
    for (std::size_t i = 0; i < boxes.size(); ++i) {
      at::Tensor wanted = whole;
      for (std::size_t d = 0; d < sizes.size(); ++d) {
        wanted = wanted.narrow(static_cast<std::int64_t>(d), boxes[i].offsets[d], boxes[i].sizes[d]);
      }
      const at::Tensor& destination = regions[i].destination;
      ASSERT_TRUE(bit_equal(destination, wanted.to(destination.scalar_type()))) << "round " << round;
    }
  }
}

TEST_F(ItemTest, EveryFlippedBitOfTheElementsIsFound) {
  write(counted({3, 2}));
  const TensorItem item = open();
  const Bytes good = read_whole_file(*files_, "f", 1 << 30);
  for (std::int64_t bit = 0; bit < item.data_bytes * 8; ++bit) {
    Bytes bad = good;
    bad[static_cast<std::size_t>(kItemOffset + item.data_position + bit / 8)] ^=
        static_cast<std::uint8_t>(1 << bit % 8);
    write_file(*files_, "f", bad);
    expect_error(ErrorKind::kCorruptData, "CRC-32", [&] { read_whole(counted({3, 2})); });
    expect_error(ErrorKind::kCorruptData, "CRC-32", [&] { read_whole(counted({3, 2}, at::kDouble)); });
  }
}

TEST_F(ItemTest, APlannerThatResolvesSomethingElseIsCaught) {
  class Wrong final : public DefaultSavePlanner {
   public:
    at::Tensor resolve_tensor(const WriteItem&) const override { return tensor; }
    at::Tensor tensor;
  };
  Wrong planner;
  const StateDict state = {{"v", counted({2})}};
  planner.set_up(state, {});
  const SavePlan plan = planner.create_local_plan();
  const auto out = files_->create_file("f");
  planner.tensor = counted({3});
  expect_error(ErrorKind::kInternal, "sizes [3]", [&] { ItemWriter(planner).write(*out, plan.items[0]); });
  planner.tensor = counted({2}, at::kDouble);
  expect_error(ErrorKind::kInternal, "float64", [&] { ItemWriter(planner).write(*out, plan.items[0]); });
}

}  // namespace
}  // namespace dcp::test

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include "test/checkpoint/checkpoint_support.h"
#include "test/support/expect_error.h"
#include "test/support/fault_injecting_file_system.h"
#include "torch_dcp/format/crc32.h"
#include "torch_dcp/format/side_file.h"
#include "torch_dcp/io/span_file.h"
#include "torch_dcp/storage/block_sums_internal.h"
#include "torch_dcp/storage/filesystem_reader.h"
#include "torch_dcp/storage/filesystem_writer.h"
#include "torch_dcp/storage/verify.h"

namespace dcp::test {
namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

Bytes noise(std::size_t size) {
  std::mt19937_64 random(7);
  Bytes bytes(size);
  for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random());
  return bytes;
}

std::vector<std::uint32_t> sums_of_blocks(ByteSpan bytes, std::size_t block_bytes) {
  std::vector<std::uint32_t> sums;
  for (; !bytes.empty(); bytes = bytes.subspan(std::min(block_bytes, bytes.size()))) {
    sums.push_back(crc32_of(bytes.first(std::min(block_bytes, bytes.size()))));
  }
  return sums;
}

TEST(BlockSummer, SumsBlocksAndAllOfThem) {
  std::mt19937 random(1);
  for (const std::int64_t size : {std::int64_t{0}, std::int64_t{5}, kMiB, kMiB + 1, 3 * kMiB, 3 * kMiB + 77}) {
    const Bytes bytes = noise(static_cast<std::size_t>(size));
    BlockSummer summer;
    for (ByteSpan rest = bytes; !rest.empty();) {
      const ByteSpan piece = rest.first(std::min({rest.size(), summer.room(), std::size_t{1} + random() % 300'000}));
      summer.add(piece);
      rest = rest.subspan(piece.size());
    }
    EXPECT_EQ(summer.crc32(), crc32_of(bytes)) << size;
    const auto sums = sums_of_blocks(bytes, kMiB);
    EXPECT_EQ(summer.sums(), sums.size() < 2 ? std::vector<std::uint32_t>() : sums) << size;
  }
}

TEST(BlockSums, OfManyBlocksAreJoinedToFewer) {
  Metadata metadata;
  std::vector<std::vector<WriteResult>> results(2);
  std::vector<Bytes> contents;
  for (const std::int64_t size : {9 * kMiB + 5, 8 * kMiB, 2 * kMiB, 5 * kMiB}) {
    const std::string key = "t" + std::to_string(contents.size());
    TensorStorageMetadata tensor;
    tensor.properties.dtype = at::kByte;
    tensor.size = {size};
    tensor.chunks = {whole_box({size})};
    metadata.state_dict_metadata.insert(key, tensor);
    contents.push_back(noise(static_cast<std::size_t>(size)));
    results[contents.size() % 2].push_back(
        {{key, Sizes{0}, 0}, size, {"file", 0, size, {}}, sums_of_blocks(contents.back(), kMiB)});
  }
  results[0].push_back({{"object", {}, {}}, 5, {"file", 0, 5, {}}});
  EXPECT_EQ(gather_block_sums(results, metadata).items.size(), 4u);
  EXPECT_EQ(gather_block_sums(results, metadata).block_bytes, kMiB);
  // 4 names of 20 bytes, and 25, 12, 7 and 2 sums of 8.
  for (const std::size_t max_bytes : {280u, 279u, 156u, 116u, 36u}) {
    const BlockSums sums = gather_block_sums(results, metadata, max_bytes);
    std::size_t count = 0;
    for (const auto& [index, of_item] : sums.items) {
      count += of_item.size();
      const Bytes& bytes = contents[static_cast<std::size_t>(index.fqn[1] - '0')];
      EXPECT_EQ(of_item, sums_of_blocks(bytes, static_cast<std::size_t>(sums.block_bytes))) << index.fqn;
    }
    EXPECT_LE(8 * count, max_bytes);
    EXPECT_GT(count, 0u);
    EXPECT_EQ(sums.block_bytes > kMiB, max_bytes < 280);
  }
  // Names take room too.
  for (WriteResult& result : results[1]) {
    const std::string long_key = std::string(1000, 'k') + result.index.fqn;
    metadata.state_dict_metadata.insert(long_key, *metadata.state_dict_metadata.find(result.index.fqn));
    result.index.fqn = long_key;
  }
  EXPECT_EQ(gather_block_sums(results, metadata, 2280).block_bytes, kMiB);
  EXPECT_EQ(gather_block_sums(results, metadata, 2000).block_bytes, 2 * kMiB);
}

TEST(BlockCheckedFile, ReadsWhatTheFileHas) {
  const Bytes bytes = noise(10'000);
  const SpanFile file(bytes);
  const ByteSpan elements = ByteSpan(bytes).subspan(100, 9'500);
  const auto sums = sums_of_blocks(elements, 1000);
  std::mt19937 random(2);
  for (const bool whole_blocks : {false, true}) {
    const BlockCheckedFile checked(file, 100, 9'500, crc32_of(elements), {1000, &sums, whole_blocks});
    for (int round = 0; round < 500; ++round) {
      const std::size_t begin = random() % 9'500;
      Bytes out(random() % (9'500 - begin + 1));
      checked.read_at(100 + begin, out);
      EXPECT_TRUE(std::equal(out.begin(), out.end(), elements.begin() + static_cast<std::ptrdiff_t>(begin)));
    }
  }
  expect_error(ErrorKind::kCorruptData, "10 sums",
               [&] { BlockCheckedFile(file, 100, 10'001, 0, ItemSums{1000, &sums, false}); });
}

/// A tensor of five blocks and a half, [44, 32768] of float.
class SliceCheckTest : public ::testing::Test {
 protected:
  static constexpr std::int64_t kRows = 44;
  static constexpr std::int64_t kColumns = 32'768;
  static constexpr std::int64_t kRowBytes = kColumns * 4;  // 8 rows are a block
  static constexpr std::int64_t kDataBytes = kRows * kRowBytes;

  Metadata save(FileSystemWriterOptions options = {}) { return place_.save({{"t", whole_}, {"n", 1}}, "c", options); }

  static std::string side_file_of(const Metadata& metadata) {
    return "c/.torch_dcp-" + *metadata.storage_meta->save_id + ".json";
  }

  /// Flips a bit of an element's byte.
  void flip(std::int64_t byte) {
    Bytes bytes = contents_of(*files_, "c").at("__0_0.distcp");
    bytes.at(static_cast<std::size_t>(position_of_elements() + byte)) ^= 2;
    write_file(*files_, "c/__0_0.distcp", bytes);
  }

  /// Reads rows [begin, begin + count) and columns from `column` on into a destination.
  at::Tensor load(std::int64_t begin, std::int64_t count, FileSystemReaderOptions options = {}, std::int64_t column = 0,
                  std::int64_t columns = kColumns) {
    destination_ = pattern({count, columns});
    StateDict state = {{"t", ShardedTensor({kRows, kColumns}, at::kFloat, {{destination_, {begin, column}}})}};
    files_->clear_trace();
    place_.load(state, "c", {}, options);
    return destination_;
  }

  std::string error_of_load(std::int64_t begin, std::int64_t count, FileSystemReaderOptions options = {}) {
    return error_of([&] { load(begin, count, options); });
  }

  /// How often each of the elements' bytes was read by the last load.
  std::vector<int> reads_of_elements() {
    std::vector<int> counts(kDataBytes, 0);
    const std::vector<FileEvent> trace = files_->trace();
    const std::int64_t position = position_of_elements();
    for (const FileEvent& event : trace) {
      if (event.op != FileOp::kRead || !event.path.ends_with(".distcp")) continue;
      const std::int64_t begin = static_cast<std::int64_t>(event.offset) - position;
      const std::int64_t end = begin + static_cast<std::int64_t>(event.bytes);
      for (std::int64_t i = std::max<std::int64_t>(begin, 0); i < std::min(end, kDataBytes); ++i)
        ++counts[static_cast<std::size_t>(i)];
    }
    return counts;
  }

  std::int64_t position_of_elements() {
    const Bytes bytes = contents_of(*files_, "c").at("__0_0.distcp");
    const auto* elements = static_cast<const std::uint8_t*>(whole_.const_data_ptr());
    const auto begin = std::search(bytes.begin(), bytes.end(), elements, elements + kRowBytes);
    return begin - bytes.begin();
  }

  std::uint64_t bytes_read(const std::string& ending) const {
    std::uint64_t bytes = 0;
    for (const FileEvent& event : files_->trace()) {
      if (event.op == FileOp::kRead && event.path.ends_with(ending)) bytes += event.bytes;
    }
    return bytes;
  }

  std::shared_ptr<FaultInjectingFileSystem> files_ =
      std::make_shared<FaultInjectingFileSystem>(make_memory_file_system());
  Place place_{files_};
  at::Tensor whole_ = counted({kRows, kColumns});
  at::Tensor destination_;
  const FileSystemReaderOptions off_{.verify_slices = VerifySlices::kOff};
  const FileSystemReaderOptions whole_blocks_{.verify_slices = VerifySlices::kWholeBlocks};
};

TEST_F(SliceCheckTest, TheSideFileHasTheSumsOfLargeTensors) {
  const Metadata metadata = save();
  const SideFile side_file = *FileSystemReader("c", {.file_system = files_}).read_side_file(metadata);
  ASSERT_EQ(side_file.block_sums.items.size(), 1u);
  EXPECT_EQ(side_file.block_sums.block_bytes, kMiB);
  const ByteSpan elements{static_cast<const std::uint8_t*>(whole_.const_data_ptr()), whole_.nbytes()};
  EXPECT_EQ(*side_file.block_sums.items.find({"t", Sizes{0, 0}, {}}), sums_of_blocks(elements, kMiB));
  EXPECT_EQ(find_side_file_fault(side_file, metadata), std::nullopt);
  EXPECT_TRUE(verify("c", {.file_system = files_}).faults.empty());

  const Metadata unchecked = save({.checksums = false});
  EXPECT_TRUE(FileSystemReader("c", {.file_system = files_}).read_side_file(unchecked)->block_sums.items.empty());
}

TEST_F(SliceCheckTest, ADamagedBlockOfASliceIsNamed) {
  save();
  flip(10 * kRowBytes + 5);  // in the second block, rows 8 to 16
  for (const auto& [begin, count] : std::vector<std::pair<std::int64_t, std::int64_t>>{{8, 8}, {7, 10}, {0, 43}}) {
    const std::string text = error_of_load(begin, count);
    for (const char* part :
         {"c/__0_0.distcp", "t at [0, 0]", "bytes [1048576, 2097152)", "CRC-32", "changed already"}) {
      EXPECT_NE(text.find(part), std::string::npos) << part << " is not in: " << text;
    }
    EXPECT_EQ(error_of_load(begin, count, off_), "");
    EXPECT_EQ(error_of_load(begin, count, {.verify_checksums = false}), "");
  }
  // A part of the block is checked only if it is read whole.
  EXPECT_EQ(error_of_load(9, 8), "");
  EXPECT_NE(error_of_load(9, 8, whole_blocks_), "");
  EXPECT_NE(error_of_load(15, 1, whole_blocks_), "");
  EXPECT_EQ(error_of_load(16, 20, whole_blocks_), "");
}

// What cannot be read straight into its destination is read in parts, which end anywhere in a block.
TEST_F(SliceCheckTest, BlocksThatAreReadPartByPartAreChecked) {
  save();
  flip(18 * kRowBytes + 5);  // in the third block, rows 16 to 24
  for (const std::size_t threads : {1u, 16u}) {
    for (const bool is_transposed : {false, true}) {
      at::Tensor destination = is_transposed ? pattern({kColumns, 30}).t() : pattern({30, kColumns}, at::kDouble);
      StateDict state = {{"t", ShardedTensor({kRows, kColumns}, destination.scalar_type(), {{destination, {3, 0}}})}};
      const std::string text =
          error_of([&] { place_.load(state, "c", {.dtype_policy = DtypePolicy::kAny}, {.thread_count = threads}); });
      EXPECT_NE(text.find("bytes [2097152, 3145728)"), std::string::npos)
          << threads << " threads, " << is_transposed << ": " << text;
    }
  }
}

TEST_F(SliceCheckTest, TheLastBlockIsShorter) {
  save();
  flip(kDataBytes - 1);
  EXPECT_NE(error_of_load(40, 4), "");
  EXPECT_NE(error_of_load(40, 4).find("[5242880, 5767168)"), std::string::npos);
  EXPECT_EQ(error_of_load(0, 40), "");
  EXPECT_EQ(error_of_load(41, 3), "");
  EXPECT_NE(error_of_load(41, 3, whole_blocks_), "");
}

TEST_F(SliceCheckTest, SlicesComeBackWhateverIsChecked) {
  for (const FileSystemWriterOptions& writer :
       {FileSystemWriterOptions{}, FileSystemWriterOptions{.transforms = {zstd_transform()}}}) {
    save(writer);
    for (const VerifySlices form : {VerifySlices::kOff, VerifySlices::kCoveredBlocks, VerifySlices::kWholeBlocks}) {
      const FileSystemReaderOptions options{.thread_count = 2, .verify_slices = form};
      EXPECT_TRUE(bit_equal(load(3, 30, options), whole_.narrow(0, 3, 30)));
      EXPECT_TRUE(bit_equal(load(0, 44, options, 100, 20'000), whole_.narrow(1, 100, 20'000)));
      EXPECT_TRUE(bit_equal(load(1, 42, options, 0, 32'760), whole_.narrow(0, 1, 42).narrow(1, 0, 32'760)));
      EXPECT_TRUE(bit_equal(load(0, 44, options, 7, 1), whole_.narrow(1, 7, 1)));
    }
  }
}

TEST_F(SliceCheckTest, StridedTensorsAreSummedInTheOrderOfTheirElements) {
  whole_ = counted({kColumns, kRows}).t();
  save();
  EXPECT_TRUE(bit_equal(load(5, 30), whole_.narrow(0, 5, 30)));
  EXPECT_TRUE(bit_equal(load(5, 30, whole_blocks_), whole_.narrow(0, 5, 30)));
}

TEST_F(SliceCheckTest, NothingElseIsReadForACheck) {
  save();
  constexpr std::uint64_t kFrame = 16'384;
  load(3, 30);
  EXPECT_LE(bytes_read(".distcp"), 30u * kRowBytes + kFrame);
  const std::uint64_t side_file_bytes = bytes_read(".json");
  EXPECT_GT(side_file_bytes, 0u);
  load(3, 30, off_);
  EXPECT_EQ(bytes_read(".json"), side_file_bytes) << "the side file was read twice";
  load(12, 1, {}, 0, 1024);
  EXPECT_LE(bytes_read(".distcp"), 4096u + kFrame);
  load(12, 1, whole_blocks_, 0, 1024);
  EXPECT_LE(bytes_read(".distcp"), static_cast<std::uint64_t>(kMiB) + kFrame);
  // Whole blocks once each, though every row has a part of one.
  load(0, 44, whole_blocks_, 7, 1);
  EXPECT_LE(bytes_read(".distcp"), static_cast<std::uint64_t>(kDataBytes) + kFrame);
}

// Whatever the slices are, a block of which one of them has a part is read once, and no other.
TEST_F(SliceCheckTest, EachNeededBlockIsReadOnceForAllSlicesOfAnItem) {
  save();
  struct Case {
    const char* name;
    std::vector<Box> boxes;
  };
  std::vector<Case> cases = {
      {"columns", {make_box({0, 0}, {44, 9000}), make_box({0, 9000}, {44, 1}), make_box({0, 9001}, {44, 23767})}},
      {"rows that end in blocks",
       {make_box({0, 0}, {3, kColumns}), make_box({3, 0}, {20, kColumns}), make_box({23, 0}, {21, kColumns})}},
      {"single rows", {}},
      {"quarters",
       {make_box({0, 0}, {22, 16384}), make_box({0, 16384}, {22, 16384}), make_box({22, 0}, {22, 16384}),
        make_box({22, 16384}, {22, 16384})}},
      {"far apart", {make_box({0, 5}, {2, 7}), make_box({41, 100}, {3, 20'000}), make_box({18, 0}, {1, 1})}},
      {"many columns", {}},
      {"one inside another's span", {make_box({0, 0}, {44, 10}), make_box({17, 10}, {6, 32'758})}}};
  for (std::int64_t row = 0; row < kRows; ++row) cases[2].boxes.push_back(make_box({row, 0}, {1, kColumns}));
  for (std::int64_t i = 0; i < 64; ++i) cases[5].boxes.push_back(make_box({0, i * 512}, {kRows, 512}));
  for (const auto& [name, boxes] : cases) {
    for (const bool is_other_dtype : {false, true}) {
      SCOPED_TRACE(c10::str(name, is_other_dtype ? " to double" : ""));
      std::vector<Shard> shards;
      std::vector<int> needed(kDataBytes / kMiB + 1, 0);
      for (const Box& box : boxes) {
        at::Tensor destination = pattern(box.sizes, is_other_dtype ? at::kDouble : at::kFloat);
        shards.push_back({destination, box.offsets});
        for (std::int64_t row = box.offsets[0]; row < box.offsets[0] + box.sizes[0]; ++row) {
          const std::int64_t begin = row * kRowBytes + box.offsets[1] * 4;
          for (std::int64_t block = begin / kMiB; block <= (begin + box.sizes[1] * 4 - 1) / kMiB; ++block) {
            needed[static_cast<std::size_t>(block)] = 1;
          }
        }
      }
      StateDict state = {{"t", ShardedTensor({kRows, kColumns}, shards[0].tensor.scalar_type(), shards)}};
      files_->clear_trace();
      place_.load(state, "c", {.dtype_policy = DtypePolicy::kAny}, whole_blocks_);
      const std::vector<int> counts = reads_of_elements();
      for (std::int64_t byte = 0; byte < kDataBytes; ++byte) {
        ASSERT_EQ(counts[static_cast<std::size_t>(byte)], needed[static_cast<std::size_t>(byte / kMiB)])
            << "byte " << byte;
      }
      for (std::size_t i = 0; i < boxes.size(); ++i) {
        const Box& box = boxes[i];
        const at::Tensor wanted = whole_.narrow(0, box.offsets[0], box.sizes[0])
                                      .narrow(1, box.offsets[1], box.sizes[1])
                                      .to(shards[i].tensor.scalar_type());
        EXPECT_TRUE(bit_equal(shards[i].tensor, wanted)) << to_string(box);
      }
    }
  }
  flip(10 * kRowBytes + 5);
  StateDict state = {{"t", ShardedTensor({kRows, kColumns}, at::kFloat,
                                         {{pattern({44, 100}), {0, 0}}, {pattern({44, 100}), {0, 100}}})}};
  const std::string text = error_of([&] { place_.load(state, "c", {}, whole_blocks_); });
  EXPECT_NE(text.find("bytes [1048576, 2097152)"), std::string::npos) << text;
  EXPECT_NE(text.find("changed already: t at [0, 0], t at [0, 100]"), std::string::npos) << text;
}

TEST_F(SliceCheckTest, WithoutSumsNothingIsChecked) {
  for (const bool is_removed : {true, false}) {
    const Metadata metadata = save({.overwrite_form = OverwriteForm::kRevokeFirst});
    if (is_removed) {
      files_->remove_file(side_file_of(metadata));
    } else {  // as before there were sums
      const std::string text = R"({"format_version": 1, "save_id": ")" + *metadata.storage_meta->save_id + "\"}";
      write_file(*files_, side_file_of(metadata), as_bytes(text));
    }
    flip(10 * kRowBytes + 5);
    EXPECT_EQ(error_of_load(8, 8), "");
    EXPECT_EQ(error_of_load(8, 8, whole_blocks_), "");
    EXPECT_NE(error_of_load(0, kRows), "") << "all of it has a checksum of its own";
  }
}

TEST_F(SliceCheckTest, SumsThatAreDamagedThemselvesAreTold) {
  const Metadata metadata = save();
  const SideFile good = *FileSystemReader("c", {.file_system = files_}).read_side_file(metadata);
  SideFile bad = good;
  bad.block_sums.items.find({"t", Sizes{0, 0}, {}})->at(1) ^= 1;
  write_file(*files_, side_file_of(metadata), encode_side_file(bad));
  std::string text = error_of_load(8, 8);
  EXPECT_NE(text.find("the side file is damaged"), std::string::npos) << text;
  EXPECT_EQ(error_of_load(16, 8), "");
  const VerifyReport report = verify("c", {.file_system = files_});
  ASSERT_EQ(report.faults.size(), 1u);
  EXPECT_EQ(report.faults[0].key, "t at [0, 0]");
  EXPECT_NE(report.faults[0].cause.find("the side file is damaged"), std::string::npos) << report.faults[0].cause;

  bad = good;
  bad.block_sums.items.find({"t", Sizes{0, 0}, {}})->pop_back();
  write_file(*files_, side_file_of(metadata), encode_side_file(bad));
  text = error_of_load(8, 8);
  EXPECT_NE(text.find("5 sums"), std::string::npos) << text;
  EXPECT_NE(text.find("t at [0, 0]"), std::string::npos) << text;
  EXPECT_TRUE(is_pattern(destination_)) << "found out too late";
}

/// Two ranks that save a half of the rows each, without collectives.
class RankSumsTest : public SliceCheckTest {
 protected:
  void save_alone() {
    run_ranks(2, [&](RankContext& ranks) {
      SaveOptions options;
      options.process_group = ranks.unconnected_group();
      options.use_collectives = false;
      const Metadata metadata =
          Place{files_}.save_with({{"t", split(whole_, ranks)}, {"n", ranks.rank()}}, "c", options);
      side_files_[static_cast<std::size_t>(ranks.rank())] =
          c10::str("__", ranks.rank(), ".torch_dcp-", *metadata.storage_meta->save_id, ".json");
    });
  }

  /// Flips a bit of row 30, which is in the second block of rank 1's half, rows 30 to 38 of all.
  void damage() {
    for (const std::string& name : names_in(*files_, "c")) {
      if (!name.starts_with("__1_")) continue;
      Bytes bytes = contents_of(*files_, "c").at(name);
      const auto* row = static_cast<const std::uint8_t*>(whole_.const_data_ptr()) + 30 * kRowBytes;
      const auto found = std::search(bytes.begin(), bytes.end(), row, row + kRowBytes);
      ASSERT_NE(found, bytes.end());
      *found ^= 1;
      write_file(*files_, "c/" + name, bytes);
    }
  }

  /// Rows 26 to 42, of which the block from row 30 on is whole.
  std::string error_of_slice() { return error_of_load(26, 16); }

  std::array<std::string, 2> side_files_;
};

TEST_F(RankSumsTest, EachRankHasASideFileBesideItsMetadata) {
  save_alone();
  std::set<std::string> names;
  for (const std::string& name : names_in(*files_, "c")) names.insert(name);
  EXPECT_EQ(names, (std::set<std::string>{"__0.metadata", "__0_0.distcp", side_files_[0], "__1.metadata",
                                          "__1_0.distcp", side_files_[1]}));
  FileSystemReader reader("c", {.file_system = files_});
  const Metadata second = reader.read_plain_rank_metadata(1);
  EXPECT_FALSE(reader.read_side_file(second)) << "it is no save of all ranks";
  const SideFile side_file = reader.read_side_file(second, 1).value();
  EXPECT_EQ(side_file.block_sums.items.size(), 1u);
  EXPECT_EQ(find_side_file_fault(side_file, second), std::nullopt);
  const VerifyReport report = verify("c", {.file_system = files_});
  EXPECT_TRUE(report.is_sound());
  EXPECT_TRUE(report.strays.empty());
  EXPECT_TRUE(is_complete("c", files_));

  // The next save of each takes its own old one away, and one with collectives both.
  const auto old = side_files_;
  save_alone();
  const std::vector<std::string> now = names_in(*files_, "c");
  EXPECT_EQ(now.size(), 6u);
  for (const std::string& name : old) EXPECT_EQ(std::count(now.begin(), now.end(), name), 0) << name;
  save();
  EXPECT_EQ(names_in(*files_, "c").size(), 3u);
}

TEST_F(RankSumsTest, SlicesOfUnitedPartsAreChecked) {
  save_alone();
  EXPECT_TRUE(bit_equal(load(3, 40), whole_.narrow(0, 3, 40)));
  damage();
  const std::string text = error_of_slice();
  for (const char* part : {"c/__1_0.distcp", "t at [22, 0]", "bytes [1048576, 2097152)"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " is not in: " << text;
  }
  EXPECT_EQ(error_of_load(3, 19), "") << "of rank 0";
  EXPECT_NE(error_of_load(31, 1, whole_blocks_), "");
  EXPECT_EQ(error_of_load(26, 16, off_), "");
  // Every rank learns whose sums there are.
  for (const int reading : {0, 1}) {
    run_ranks(2, [&](RankContext& ranks) {
      const Place place = place_of(ranks, files_);
      const std::int64_t begin = ranks.rank() == reading ? 26 : 3;
      StateDict state = {{"t", ShardedTensor({kRows, kColumns}, at::kFloat, {{pattern({16, kColumns}), {begin, 0}}})}};
      EXPECT_NE(error_of([&] { place.load(state, "c"); }).find("bytes [1048576, 2097152)"), std::string::npos);
    });
  }
  // The side file of another rank, or none, says nothing of this one.
  files_->remove_file("c/" + side_files_[0]);
  EXPECT_NE(error_of_slice(), "");
  files_->remove_file("c/" + side_files_[1]);
  EXPECT_EQ(error_of_slice(), "");
  const VerifyReport report = verify("c", {.file_system = files_});
  EXPECT_EQ(report.faults.size(), 1u) << "the item has a checksum of its own";
}

TEST_F(RankSumsTest, SlicesOfARanksOwnPartAreChecked) {
  save_alone();
  damage();
  run_ranks(2, [&](RankContext& ranks) {
    LoadOptions options;
    options.process_group = ranks.unconnected_group();
    options.use_collectives = false;
    const std::int64_t begin = ranks.rank() == 0 ? 3 : 26;
    StateDict state = {{"t", ShardedTensor({kRows, kColumns}, at::kFloat, {{pattern({16, kColumns}), {begin, 0}}})}};
    const std::string text = error_of([&] { Place{files_}.load(state, "c", options); });
    EXPECT_EQ(text.find("CRC-32") != std::string::npos, ranks.rank() == 1) << text;
  });
}

TEST_F(RankSumsTest, DamagedSideFilesAreNamed) {
  save_alone();
  write_file(*files_, "c/" + side_files_[1], Bytes(10, '{'));
  EXPECT_NE(error_of_slice().find(side_files_[1]), std::string::npos) << error_of_slice();
  const VerifyReport report = verify("c", {.file_system = files_});
  ASSERT_EQ(report.faults.size(), 1u);
  EXPECT_EQ(report.faults[0].file, side_files_[1]);
}

TEST_F(SliceCheckTest, EveryRanksSumsAreThere) {
  run_ranks(2, [&](RankContext& ranks) {
    const Place place = place_of(ranks, files_);
    const StateDict state = {{"t", split(whole_, ranks)}};
    const Metadata metadata = place.save(state, "c");
    const SideFile side_file = *FileSystemReader("c", {.file_system = files_}).read_side_file(metadata);
    EXPECT_EQ(side_file.block_sums.items.size(), 2u);
    StateDict columns = {{"t", split_pattern({kRows, kColumns}, ranks, 1)}};
    place.load(columns, "c", {}, {.verify_slices = VerifySlices::kWholeBlocks});
    EXPECT_TRUE(bit_equal(columns["t"].as_dtensor().local(), split(whole_, ranks, 1).local()));
  });
  Bytes bytes = contents_of(*files_, "c").at("__1_0.distcp");
  bytes[bytes.size() / 2] ^= 1;
  write_file(*files_, "c/__1_0.distcp", bytes);
  EXPECT_NE(error_of_load(20, 24), "") << "of rank 1";
  EXPECT_EQ(error_of_load(0, 22), "");
}

}  // namespace
}  // namespace dcp::test

#include "torch_dcp/storage/consolidate.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "test/storage/safetensors_support.h"
#include "test/support/expect_error.h"
#include "test/support/fault_injecting_file_system.h"
#include "torch_dcp/storage/safetensors_folder_writer.h"
#include "torch_dcp/tensor/dtype.h"

namespace dcp::test {
namespace {

class ConsolidateTest : public ::testing::Test {
 protected:
  /// Cuts tensors into shards of rows, or of columns if the number of the tensor is odd; the first shard has those that
  /// cannot be cut. The last shard of a dimension that is short is empty.
  void write_shards(const StateDict& state, int shards) {
    files_->create_directories("s");
    for (int shard = 0; shard < shards; ++shard) {
      std::vector<StoredPart> parts;
      int number = 0;
      for (const auto& [key, value] : state) {
        const at::Tensor& tensor = value.as_tensor();
        const std::int64_t dim = number++ % 2 == 1 && tensor.dim() > 1 ? 1 : 0;
        if (tensor.dim() == 0) {
          if (shard == 0) parts.push_back({std::get<std::string>(key), tensor, Sizes{}});
          continue;
        }
        const std::int64_t size = tensor.size(dim);
        const std::int64_t rows = (size + shards - 1) / shards;
        const std::int64_t begin = std::min(size, shard * rows);
        Sizes offsets(static_cast<std::size_t>(tensor.dim()), 0);
        offsets[static_cast<std::size_t>(dim)] = begin;
        parts.push_back({std::get<std::string>(key), tensor.narrow(dim, begin, std::min(rows, size - begin)), offsets});
      }
      write_safetensors(*files_, "s/shard-0000" + std::to_string(shard + 1) + "-model-00001-of-00001.safetensors",
                        parts);
    }
  }

  void consolidate(ConsolidateOptions options = {}) {
    options.file_system = files_;
    consolidate_safetensors("s", "out", options);
  }

  std::shared_ptr<FileSystem> base_ = make_memory_file_system();
  std::shared_ptr<FaultInjectingFileSystem> files_ = std::make_shared<FaultInjectingFileSystem>(base_);
  Place place_{files_};
};

/// Integers, bool and tensors of 0 dimensions are those that PyTorch's own consolidation gets wrong.
TEST_F(ConsolidateTest, EveryDtypeAndShapeInBuffersOfEverySize) {
  const StateDict state = many_tensors();
  write_shards(state, 3);
  for (const std::int64_t buffer : {1, 7, 24, 64, 1 << 20}) {
    for (const std::size_t threads : {1, 3}) {
      SCOPED_TRACE(c10::str("buffer ", buffer, ", threads ", threads));
      consolidate({.thread_count = threads, .buffer_bytes = buffer});
      EXPECT_EQ(difference_of(place_.rebuild("out"), state), "");
    }
  }
  const SafetensorsHeader header = header_of(*files_, "out/model-00001-of-00001.safetensors");
  EXPECT_EQ(header.data_position % 8, 0);
  EXPECT_EQ(header.metadata.size(), 3u);
  EXPECT_EQ(*header.metadata.find("torch_dcp.file_count"), "1");
  EXPECT_EQ(header.metadata.find("torch_dcp.save_id")->size(), 36u);
  EXPECT_EQ(*header.metadata.find("format"), "pt");
  for (const SafetensorsTensor& tensor : header.tensors) {
    EXPECT_FALSE(tensor.saved_offsets) << tensor.name;
    EXPECT_EQ(tensor.position % element_bytes(tensor.dtype), 0) << tensor.name;
  }
}

TEST_F(ConsolidateTest, BlocksOfTwoDimensions) {
  const at::Tensor w = counted({6, 5, 4}, at::kInt);
  files_->create_directories("s");
  int number = 0;
  for (const std::int64_t row : {0, 2}) {
    for (const std::int64_t column : {0, 1, 4}) {
      const at::Tensor rows = row == 0 ? w.narrow(0, 0, 2) : w.narrow(0, 2, 4);
      const std::int64_t columns = column == 0 ? 1 : column == 1 ? 3 : 1;
      write_safetensors(*files_, "s/part" + std::to_string(number++) + ".safetensors",
                        {{"w", rows.narrow(1, column, columns), Sizes{row, column, 0}}});
    }
  }
  for (const std::int64_t buffer : {1, 4, 16, 50, 80, 1000}) {
    consolidate({.buffer_bytes = buffer});
    EXPECT_EQ(difference_of(place_.rebuild("out"), StateDict{{"w", w}}), "") << buffer;
  }
}

TEST_F(ConsolidateTest, NoMoreThanTheBufferAtATime) {
  write_shards(StateDict{{"large", counted({256, 64})}, {"other", counted({100, 10})}}, 4);
  files_->clear_trace();
  consolidate({.buffer_bytes = 4096});
  std::uint64_t appended = 0;
  for (const FileEvent& event : files_->trace()) {
    if (event.path.find("model-00001") == std::string::npos) continue;
    if (event.op == FileOp::kAppend) appended += event.bytes;
    if (event.op == FileOp::kAppend || event.op == FileOp::kRead) {
      EXPECT_LE(event.bytes, 4096u) << to_string(event);
    }
  }
  EXPECT_GT(appended, 256u * 64 * 4);
}

TEST_F(ConsolidateTest, AMappingOrdersFilesAndIndex) {
  write_shards(StateDict{{"a", counted({4})}, {"b", counted({5})}, {"c", counted({6})}}, 2);
  consolidate({.fqn_to_index_mapping = {{"c", 1}, {"a", 2}, {"b", 1}, {"unused", 3}}, .thread_count = 4});
  EXPECT_EQ(names_in(*files_, "out"),
            (std::vector<std::string>{"model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors",
                                      "model.safetensors.index.json"}));
  EXPECT_EQ(text_of(*files_, "out/model.safetensors.index.json"),
            "{\n  \"metadata\": {\n    \"total_size\": 60\n  },\n  \"weight_map\": {\n"
            "    \"c\": \"model-00001-of-00003.safetensors\",\n    \"b\": \"model-00001-of-00003.safetensors\",\n"
            "    \"a\": \"model-00002-of-00003.safetensors\"\n  }\n}");
  expect_error(ErrorKind::kKey, "key 'b': fqn_to_index_mapping",
               [&] { consolidate({.fqn_to_index_mapping = {{"a", 1}, {"c", 1}}}); });
  expect_error(ErrorKind::kInvalidArgument, "count from 1",
               [&] { consolidate({.fqn_to_index_mapping = {{"a", 0}, {"b", 1}, {"c", 1}}}); });
}

TEST_F(ConsolidateTest, IntoTheInputItself) {
  const StateDict state = {{"a", counted({4, 3})}, {"b", counted({5})}};
  write_shards(state, 2);
  consolidate_safetensors("s", "s", {.file_system = files_});
  EXPECT_EQ(names_in(*files_, "s"),
            (std::vector<std::string>{"model-00001-of-00001.safetensors", "model.safetensors.index.json"}));
  EXPECT_EQ(difference_of(place_.rebuild("s"), state), "");
}

TEST_F(ConsolidateTest, OtherShardsThanThoseThatAreMeant) {
  files_->create_directories("s");
  write_safetensors(*files_, "s/model-00001-of-00001.safetensors", {{"a", counted({4})}},
                    {{"torch_dcp.save_id", "1a"}});
  expect_error(ErrorKind::kIo, "s: the shards are of save 1a, not of save 2b any more: another save has taken over",
               [&] { consolidate({.save_id = "2b"}); });
  EXPECT_EQ(files_->file_type("out"), FileType::kNone);
  consolidate({.save_id = "1a"});
  EXPECT_EQ(place_.metadata("out").storage_meta->save_id, "1a");
  consolidate();
  EXPECT_NE(place_.metadata("out").storage_meta->save_id, "1a");
  expect_error(ErrorKind::kInvalidArgument, "cannot be the id of a save",
               [&] { SafetensorsFolderWriter("out", {.file_system = files_, .save_id = "../x"}); });
}

TEST_F(ConsolidateTest, UncoveredRegionsNameTheKeyAndLeaveTheOutput) {
  write_shards(StateDict{{"a", counted({4})}}, 2);
  consolidate();
  const auto before = contents_of(*base_, "out");
  files_->remove_file("s/shard-00001-model-00001-of-00001.safetensors");
  expect_error(ErrorKind::kCorruptData, "key 'a'", [&] { consolidate(); });
  EXPECT_EQ(contents_of(*base_, "out"), before);
}

TEST_F(ConsolidateTest, AFailedReadOrWriteLeavesTheOutput) {
  write_shards(StateDict{{"a", counted({4})}, {"b", counted({5})}}, 2);
  consolidate();
  const auto before = contents_of(*base_, "out");
  files_->fail({.op = FileOp::kAppend, .path_contains = "out/", .nth = 2, .message = "the disk broke"});
  expect_error(ErrorKind::kIo, "the disk broke", [&] { consolidate(); });
  files_->clear_faults();
  EXPECT_EQ(contents_of(*base_, "out"), before);
  const std::uint64_t data =
      static_cast<std::uint64_t>(header_of(*files_, "s/shard-00002-model-00001-of-00001.safetensors").data_position);
  files_->set_hook([&](const FileEvent& event) {
    DCP_CHECK(event.op != FileOp::kRead || event.offset < data || event.path.find("shard-00002") == std::string::npos,
              kIo, "the disk broke");
  });
  expect_error(ErrorKind::kIo, "from s/shard-00002-model-00001-of-00001.safetensors", [&] { consolidate(); });
  files_->clear_faults();
  EXPECT_EQ(contents_of(*base_, "out"), before);
  expect_error(ErrorKind::kNotFound, "incomplete checkpoint",
               [&] { consolidate_safetensors("nowhere", "out", {.file_system = files_}); });
  expect_error(ErrorKind::kInvalidArgument, "at least 1", [&] { consolidate({.buffer_bytes = 0}); });
  expect_error(ErrorKind::kAlreadyExists, "overwriting is off", [&] { consolidate({.overwrite = false}); });
}

}  // namespace
}  // namespace dcp::test

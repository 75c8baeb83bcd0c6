#include "torch_dcp/storage/safetensors_reader.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "test/storage/safetensors_support.h"
#include "test/support/expect_error.h"
#include "test/support/fault_injecting_file_system.h"
#include "torch_dcp/io/local_file_system.h"
#include "torch_dcp/storage/storage_factory.h"

namespace dcp::test {
namespace {

const std::string kOne = "c/model-00001-of-00002.safetensors";
const std::string kTwo = "c/model-00002-of-00002.safetensors";
const std::string kIndex = "c/model.safetensors.index.json";
const std::string kMarker = "c/model-save-unfinished.safetensors";

class SafetensorsReaderTest : public ::testing::Test {
 protected:
  SafetensorsReaderTest() { files_->create_directories("c"); }

  SafetensorsReader reader(const std::string& path = "c") const {
    return SafetensorsReader(path, {.file_system = files_});
  }

  /// Two files of two tensors each, as a hub has them.
  void write_hub_folder() {
    write_safetensors(*files_, kOne, {{"a", counted({4, 3})}, {"b", counted({2}, at::kLong)}});
    write_safetensors(*files_, kTwo, {{"c", counted({5}, at::kHalf)}, {"d", at::full({}, 3.0f)}});
  }

  void write_index(const std::string& weight_map) {
    write_text(*files_, kIndex, R"({"metadata": {"total_size": 1}, "weight_map": )" + weight_map + "}");
  }

  void write_whole_index() {
    write_index(R"({"a": "model-00001-of-00002.safetensors", "b": "model-00001-of-00002.safetensors",)"
                R"("c": "model-00002-of-00002.safetensors", "d": "model-00002-of-00002.safetensors"})");
  }

  StateDict whole() const {
    return {{"a", counted({4, 3})},
            {"b", counted({2}, at::kLong)},
            {"c", counted({5}, at::kHalf)},
            {"d", at::full({}, 3.0f)}};
  }

  void expect_refused(ErrorKind kind, const std::string& text, const std::string& path = "c") const {
    expect_error(kind, text, [&] { reader(path).read_metadata(); });
  }

  std::shared_ptr<FileSystem> files_ = make_memory_file_system();
  Place place_{files_};
};

TEST_F(SafetensorsReaderTest, AFolderWithoutAnIndex) {
  write_hub_folder();
  EXPECT_EQ(difference_of(place_.rebuild("c"), whole()), "");
  const Metadata metadata = place_.metadata("c");
  const auto& a = std::get<TensorStorageMetadata>(*metadata.state_dict_metadata.find("a"));
  EXPECT_EQ(a.size, (Sizes{4, 3}));
  EXPECT_EQ(a.properties.dtype, at::kFloat);
  const StorageInfo& info = *metadata.storage_data.find({"a", Sizes{0, 0}, {}});
  EXPECT_EQ(info.relative_path, "model-00001-of-00002.safetensors");
  EXPECT_EQ(info.length, 48);
  EXPECT_FALSE(metadata.planner_data);
}

TEST_F(SafetensorsReaderTest, AFolderWithAnIndex) {
  write_hub_folder();
  write_whole_index();
  // Not named by the index and of no save: left alone, whatever is in it.
  write_text(*files_, "c/consolidated.safetensors", "version https");
  EXPECT_EQ(difference_of(place_.rebuild("c"), whole()), "");
}

TEST_F(SafetensorsReaderTest, ASingleFile) {
  write_hub_folder();
  write_index("{}");
  StateDict wanted = whole();
  wanted.erase("c");
  wanted.erase("d");
  EXPECT_EQ(difference_of(place_.rebuild(kOne), wanted), "");
  EXPECT_EQ(difference_of(place_.rebuild("file://" + kOne), wanted), "");
}

TEST_F(SafetensorsReaderTest, SlicesAndStridedDestinations) {
  write_hub_folder();
  run_ranks(3, [&](RankContext& ranks) {
    const Place place = place_of(ranks, files_);
    StateDict state = {{"a", split_pattern({4, 3}, ranks, 1)}, {"c", split_pattern({5}, ranks, 0, at::kHalf)}};
    place.load(state, "c");
    EXPECT_TRUE(bit_equal(state["a"].as_dtensor().local(), split(counted({4, 3}), ranks, 1).local()));
    EXPECT_TRUE(bit_equal(state["c"].as_dtensor().local(), split(counted({5}, at::kHalf), ranks).local()));
  });
  at::Tensor base = pattern({3, 4});
  StateDict state = {{"a", base.t()}};
  place_.load(state, "c");
  EXPECT_TRUE(bit_equal(base.t().contiguous(), counted({4, 3})));
}

TEST_F(SafetensorsReaderTest, NestedStateDictsAndConversion) {
  write_safetensors(*files_, kOne, {{"model.layer.w", counted({2, 2}, at::kBFloat16)}, {"model.n", counted({1})}});
  at::Tensor w = pattern({2, 2});
  StateDict state = {{"model", Dict{{"layer", Dict{{"w", w}}}}}};
  const LoadReport report = place_.load(state, "c");
  EXPECT_TRUE(bit_equal(w, counted({2, 2})));
  EXPECT_EQ(report.unexpected, std::vector<std::string>{"model.n"});
}

TEST_F(SafetensorsReaderTest, ShardsWithEmptyOnes) {
  const at::Tensor w = counted({4, 2});
  write_safetensors(*files_, "c/shard-00001-model-00001-of-00001.safetensors",
                    {{"w", w.narrow(0, 0, 3), Sizes{0, 0}}, {"e", at::empty({0, 3}), Sizes{0, 0}}});
  // One at the place of a part with elements, one at the end.
  write_safetensors(*files_, "c/shard-00002-model-00001-of-00001.safetensors",
                    {{"w", w.narrow(0, 0, 0), Sizes{3, 0}}, {"e", at::empty({0, 3}), Sizes{0, 0}}});
  write_safetensors(*files_, "c/shard-00003-model-00001-of-00001.safetensors", {{"w", w.narrow(0, 3, 1), Sizes{3, 0}}});
  write_safetensors(*files_, "c/shard-00004-model-00001-of-00001.safetensors", {{"w", w.narrow(0, 0, 0), Sizes{4, 0}}});
  EXPECT_EQ(difference_of(place_.rebuild("c"), StateDict{{"w", w}, {"e", at::empty({0, 3})}}), "");
}

TEST_F(SafetensorsReaderTest, ReadTensorAndThreads) {
  const at::Tensor w = counted({64, 33});
  write_safetensors(*files_, kOne, {{"w", w.narrow(1, 0, 20).contiguous(), Sizes{0, 0}}});
  write_safetensors(*files_, kTwo, {{"w", w.narrow(1, 20, 13).contiguous(), Sizes{0, 20}}});
  SafetensorsReader from("c", {.thread_count = 4, .file_system = files_});
  const Metadata metadata = *from.read_metadata();
  EXPECT_TRUE(bit_equal(from.read_tensor(metadata, "w"), w));
  expect_error(ErrorKind::kKey, "no tensor 'x'", [&] { from.read_tensor(metadata, "x"); });
  StateDict state = {{"w", pattern({64, 33})}};
  load(state, from);
  EXPECT_TRUE(bit_equal(state["w"].as_tensor(), w));
}

TEST_F(SafetensorsReaderTest, OneReaderServesAnotherCheckpointThatCameInBetween) {
  write_hub_folder();
  SafetensorsReader from = reader();
  StateDict state = {{"a", pattern({4, 3})}};
  load(state, from);
  write_safetensors(*files_, kOne, {{"a", counted({4, 3}) + 1}, {"x", counted({9}, at::kDouble)}});
  load(state, from);
  EXPECT_TRUE(bit_equal(state["a"].as_tensor(), counted({4, 3}) + 1));
}

TEST_F(SafetensorsReaderTest, NothingThere) {
  expect_refused(ErrorKind::kNotFound, "incomplete checkpoint: c has no .safetensors file");
  expect_refused(ErrorKind::kNotFound, "incomplete checkpoint: d does not exist", "d");
  write_text(*files_, "c/x.txt", "x");
  expect_refused(ErrorKind::kCorruptData, "no safetensors file: 1 bytes", "c/x.txt");
  files_->create_directories("c/sharded");
  expect_refused(ErrorKind::kNotFound, "'sharded' that were not put together");
  expect_error(ErrorKind::kInvalidArgument, "needs a path", [] { SafetensorsReader(""); });
}

TEST_F(SafetensorsReaderTest, ASaveThatDidNotEnd) {
  write_hub_folder();
  write_text(*files_, kMarker, "unfinished");
  expect_refused(ErrorKind::kNotFound, "incomplete checkpoint: a save into c did not end");
  EXPECT_NE(error_of([&] { place_.rebuild("c"); }).find("incomplete checkpoint"), std::string::npos);
}

TEST_F(SafetensorsReaderTest, HolesOverlapsAndContradictions) {
  const at::Tensor w = counted({4, 2});
  const auto refused_with = [&](const StoredPart& one, const StoredPart& two, const std::string& text) {
    write_safetensors(*files_, kOne, {one});
    write_safetensors(*files_, kTwo,
                      {two, {"fine", counted({2}), two.saved_offsets ? std::optional(Sizes{0}) : std::nullopt}});
    SCOPED_TRACE(text);
    expect_refused(ErrorKind::kCorruptData, "key 'w'");
    expect_refused(ErrorKind::kCorruptData, text);
    expect_refused(ErrorKind::kCorruptData, "model-00001-of-00002.safetensors");
    expect_refused(ErrorKind::kCorruptData, "model-00002-of-00002.safetensors");
  };
  refused_with({"w", w.narrow(0, 0, 1), Sizes{0, 0}}, {"w", w.narrow(0, 2, 2), Sizes{2, 0}}, "[1, 0]");
  refused_with({"w", w.narrow(0, 0, 3), Sizes{0, 0}}, {"w", w.narrow(0, 2, 2), Sizes{2, 0}}, "overlap");
  refused_with({"w", w}, {"w", w}, "overlap");
  refused_with({"w", w.narrow(0, 0, 2), Sizes{0, 0}}, {"w", w.narrow(0, 2, 2).to(at::kHalf), Sizes{2, 0}}, "float16");
  refused_with({"w", w.narrow(0, 0, 2), Sizes{0, 0}}, {"w", w[3], Sizes{2}}, "of 2 dimensions");
  refused_with({"w", at::full({}, 1), {}}, {"w", at::full({}, 1), {}}, "overlap");
}

TEST_F(SafetensorsReaderTest, AHoleBeforeTheOnlyPart) {
  write_safetensors(*files_, kOne, {{"w", counted({4, 3}), Sizes{4, 0}}});
  expect_refused(ErrorKind::kCorruptData, "key 'w'");
}

TEST_F(SafetensorsReaderTest, SizesWithoutBytesAllocateNothing) {
  write_safetensors(*files_, kOne, {{"w", counted({1, 1}), Sizes{std::int64_t{1} << 40, std::int64_t{1} << 40}}});
  expect_refused(ErrorKind::kCorruptData, "key 'w'");
}

TEST_F(SafetensorsReaderTest, ADamagedFileIsNamed) {
  write_hub_folder();
  write_text(*files_, kTwo, text_of(*files_, kTwo).substr(0, 100));
  expect_refused(ErrorKind::kCorruptData, "while reading the header of " + kTwo);
}

TEST_F(SafetensorsReaderTest, AnIndexMustAgree) {
  write_hub_folder();
  write_whole_index();
  EXPECT_EQ(difference_of(place_.rebuild("c"), whole()), "");

  write_index(R"({"a": "../outside.safetensors"})");
  write_text(*files_, "outside.safetensors", text_of(*files_, kOne));
  expect_refused(ErrorKind::kCorruptData, "key 'a': its file '../outside.safetensors'");
  expect_refused(ErrorKind::kCorruptData, "while reading " + kIndex);

  write_index(R"({"a": "missing.safetensors", "b": "model-00001-of-00002.safetensors"})");
  expect_refused(ErrorKind::kCorruptData,
                 "key 'a': the index says that it is in missing.safetensors, which is missing");
  expect_refused(ErrorKind::kCorruptData, "key 'model-00002-of-00002.safetensors': the index does not name this file");

  write_index(R"({"a": "model-00002-of-00002.safetensors", "b": "model-00001-of-00002.safetensors",)"
              R"("c": "model-00002-of-00002.safetensors", "x": "model-00002-of-00002.safetensors"})");
  expect_refused(ErrorKind::kCorruptData, "key 'a': the index says that it is in model-00002-of-00002.safetensors");
  expect_refused(ErrorKind::kCorruptData, "key 'x': the index says");
  expect_refused(ErrorKind::kCorruptData,
                 "key 'a': model-00001-of-00002.safetensors holds it, the index says it is in model-00002");
  expect_refused(ErrorKind::kCorruptData,
                 "key 'd': model-00002-of-00002.safetensors holds it, the index does not name");
}

TEST_F(SafetensorsReaderTest, AFileChangedSinceTheMetadata) {
  write_hub_folder();
  SafetensorsReader from = reader();
  const Metadata metadata = *from.read_metadata();
  from.set_up(metadata, {});
  from.set_up(metadata, {});  // as on a rank that has not read the metadata itself
  write_safetensors(*files_, kOne, {{"a", counted({3, 4})}, {"b", counted({2}, at::kLong)}});
  expect_error(ErrorKind::kCorruptData, "when the checkpoint was opened", [&] { from.read_tensor(metadata, "a"); });
}

TEST_F(SafetensorsReaderTest, ACheckpointReplacedDuringALoadIsReadAsItWas) {
  write_hub_folder();
  SafetensorsReader from = reader();
  const Metadata metadata = *from.read_metadata();
  write_safetensors(*files_, "c/x.tmp", {{"a", counted({3, 4}) + 1}});
  files_->rename_file("c/x.tmp", kOne);
  EXPECT_TRUE(bit_equal(from.read_tensor(metadata, "a"), counted({4, 3})));
}

TEST_F(SafetensorsReaderTest, ADcpCheckpointComesFirst) {
  place_.save({{"w", counted({3})}, {"n", 5}}, "c");
  write_safetensors(*files_, "c/other.safetensors", {{"x", counted({2})}});
  EXPECT_EQ(difference_of(place_.rebuild("c"), StateDict{{"w", counted({3})}, {"n", 5}}), "");
}

TEST_F(SafetensorsReaderTest, AReadErrorNamesFileKeyAndWhatWasChanged) {
  write_hub_folder();
  const auto faulty = std::make_shared<FaultInjectingFileSystem>(files_);
  StateDict state = whole();
  const std::uint64_t data = static_cast<std::uint64_t>(header_of(*files_, kTwo).data_position);
  faulty->set_hook([&](const FileEvent& event) {
    DCP_CHECK(event.op != FileOp::kRead || event.path != kTwo || event.offset < data, kIo, event.path,
              ": the disk broke");
  });
  const std::string error = error_of([&] { Place{faulty}.load(state, "c"); });
  for (const std::string& text : {kTwo, std::string("the disk broke"), std::string("changed already: a at [0, 0]")}) {
    EXPECT_NE(error.find(text), std::string::npos) << error;
  }
}

/// In the cache of a hub's client the files of a snapshot are links to blobs, by their digests.
TEST(SafetensorsLinks, AreFollowed) {
  const std::filesystem::path root = std::filesystem::path(std::getenv("TEST_TMPDIR")) / "hub";
  std::filesystem::create_directories(root / "blobs");
  std::filesystem::create_directories(root / "snapshots/abc");
  const auto files = local_file_system();
  write_safetensors(*files, root / "blobs/0a1b", {{"w", counted({3})}});
  write_text(*files, root / "blobs/2c3d", R"({"weight_map": {"w": "model-00001-of-00001.safetensors"}})");
  std::filesystem::create_symlink("../../blobs/0a1b", root / "snapshots/abc/model-00001-of-00001.safetensors");
  std::filesystem::create_symlink("../../blobs/2c3d", root / "snapshots/abc/model.safetensors.index.json");
  EXPECT_EQ(difference_of(load_keys(root / "snapshots/abc"), StateDict{{"w", counted({3})}}), "");
  EXPECT_EQ(
      difference_of(load_keys(root / "snapshots/abc/model-00001-of-00001.safetensors"), StateDict{{"w", counted({3})}}),
      "");
  std::filesystem::remove_all(root);
}

}  // namespace
}  // namespace dcp::test

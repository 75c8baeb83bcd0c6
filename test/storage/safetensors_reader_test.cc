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
#include "torch_dcp/storage/safetensors_marker_internal.h"
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
  const StorageInfo info = *metadata.storage_data.find({"a", Sizes{0, 0}, {}});
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

TEST(SafetensorsMarkerTest, OnlyAWholeListOfDataFilesIsOne) {
  const SafetensorsMarker marker{"12ab-34", {"model-00002-of-00002.safetensors", "model-00001-of-00002.safetensors"}};
  const Bytes bytes = encode_safetensors_marker(marker);
  // What others read as the length of a header is beyond every file.
  const Bytes start(bytes.begin(), bytes.begin() + 8);
  EXPECT_EQ(as_text(start), "unfinish");
  const auto decoded = decode_safetensors_marker(bytes);
  ASSERT_TRUE(decoded);
  EXPECT_EQ(decoded->save_id, marker.save_id);
  EXPECT_EQ(decoded->files, marker.files);
  EXPECT_TRUE(decode_safetensors_marker(encode_safetensors_marker({"a", {}}))->files.empty());
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(decode_safetensors_marker(ByteSpan(bytes).first(size))) << size;
  }
  std::string text(as_text(bytes));
  EXPECT_FALSE(decode_safetensors_marker(as_bytes(text + "\n")));
  const auto replaced = [&](const std::string& old, const std::string& by) {
    std::string other = text;
    other.replace(other.find(old), old.size(), by);
    return decode_safetensors_marker(as_bytes(other)).has_value();
  };
  EXPECT_TRUE(replaced("12ab", "xy"));
  EXPECT_FALSE(replaced("12ab", "../x"));
  EXPECT_FALSE(replaced("12ab-34", ""));
  EXPECT_FALSE(replaced("save 12ab-34\n", ""));
  EXPECT_FALSE(replaced("the 2 files", "the 3 files"));
  EXPECT_FALSE(replaced("unfinished", "finished"));
  for (const char* name :
       {"../model-00002-of-00002.safetensors", "/etc/passwd", "", "model.safetensors",
        "model-00001-of-00002.safetensors", "sharded/shard-00001-model-00001-of-00001.safetensors"}) {
    EXPECT_FALSE(replaced("model-00002-of-00002.safetensors", name)) << name;
  }
}

/// The new files of a commit that has not come to its end.
class SafetensorsCommitTest : public SafetensorsReaderTest {
 protected:
  SafetensorsCommitTest() {
    // Of the old ones, one has a name that no new one has.
    write_hub_folder();
    write_whole_index();
    write_safetensors(*files_, temporary(kOne), {{"a", counted({3}) + 7}}, {{"torch_dcp.save_id", kId}});
    write_safetensors(*files_, temporary(kNew), {{"n", counted({2, 2})}}, {{"torch_dcp.save_id", kId}});
    write_marker(kId);
  }

  static std::string temporary(const std::string& path) { return path + "." + kId + ".tmp"; }
  void write_marker(const std::string& id) {
    write_file(*files_, kMarker, encode_safetensors_marker({id, {kOne.substr(2), kNew.substr(2)}}));
  }
  void expect_new() {
    EXPECT_EQ(difference_of(place_.rebuild("c"), StateDict{{"a", counted({3}) + 7}, {"n", counted({2, 2})}}), "");
  }

  inline static const std::string kId = "01234567-89ab-4cde-8f01-23456789abcd";
  inline static const std::string kNew = "c/shard-00001-model-00001-of-00001.safetensors";
};

TEST_F(SafetensorsCommitTest, TheFilesOfTheMarkerAreReadWhereverTheyAre) {
  expect_new();
  EXPECT_EQ(place_.metadata("c").storage_meta->save_id, kId);
  files_->rename_file(temporary(kNew), kNew);
  expect_new();
  write_text(*files_, kTwo, "an old file, damaged");
  write_text(*files_, kIndex, "an old index, damaged");
  files_->rename_file(temporary(kOne), kOne);
  expect_new();
  files_->remove_file(kNew);
  expect_refused(ErrorKind::kCorruptData, "the file " + kNew.substr(0, 2));
}

TEST_F(SafetensorsCommitTest, OthersThanTheSavesFilesAreNotTaken) {
  // An old file has the name of a new one that is lost.
  files_->remove_file(temporary(kOne));
  expect_refused(ErrorKind::kCorruptData, "files of two saves lie in c, or a save into it is just being committed");
  expect_refused(ErrorKind::kCorruptData, "model-00001-of-00002.safetensors of no save that says so");
  files_->remove_file(kOne);
  expect_refused(ErrorKind::kCorruptData, "is missing");
  const std::string other = "ffffffff-89ab-4cde-8f01-23456789abcd";
  for (const std::string& path : {kOne, kNew}) {
    write_safetensors(*files_, path + "." + other + ".tmp", {{path, counted({1})}}, {{"torch_dcp.save_id", kId}});
  }
  write_marker(other);
  expect_refused(ErrorKind::kCorruptData, "model-save-unfinished.safetensors is of save " + other);
}

TEST_F(SafetensorsCommitTest, AMarkerWithoutAListIsOfNoCheckpoint) {
  for (const std::string& text : {std::string(), std::string("unfinished"), text_of(*files_, kMarker) + "more"}) {
    write_text(*files_, kMarker, text);
    expect_refused(ErrorKind::kNotFound, "incomplete checkpoint: a save into c did not end");
  }
  files_->remove_file(kMarker);
  files_->create_directories(kMarker);
  expect_refused(ErrorKind::kNotFound, "incomplete checkpoint: a save into c did not end");
}

TEST_F(SafetensorsCommitTest, RenamesWhileItReads) {
  const auto watched = std::make_shared<FaultInjectingFileSystem>(files_);
  SafetensorsReader from("c", {.file_system = watched});
  // The commit goes on when the reader looks for a file, and again when it is about to open it.
  bool has_opened = false;
  watched->set_hook([&](const FileEvent& event) {
    if (event.op == FileOp::kOpen && event.path == temporary(kOne)) {
      has_opened = true;
      files_->rename_file(temporary(kOne), kOne);
    } else if (event.op == FileOp::kStat && event.path == temporary(kNew) &&
               files_->file_type(temporary(kNew)) == FileType::kFile) {
      files_->rename_file(temporary(kNew), kNew);
    }
  });
  const Metadata metadata = *from.read_metadata();
  EXPECT_TRUE(has_opened);
  EXPECT_TRUE(bit_equal(from.read_tensor(metadata, "a"), counted({3}) + 7));
  EXPECT_TRUE(bit_equal(from.read_tensor(metadata, "n"), counted({2, 2})));
  EXPECT_EQ(metadata.storage_data.find({"a", Sizes{0}, {}})->relative_path, kOne.substr(2));
}

TEST_F(SafetensorsCommitTest, TheCommitEndsWhileItReads) {
  const auto watched = std::make_shared<FaultInjectingFileSystem>(files_);
  bool has_ended = false;
  watched->set_hook([&](const FileEvent& event) {
    if (has_ended || event.path != kMarker) return;
    has_ended = true;
    files_->remove_file(kIndex);
    files_->remove_file(kTwo);
    for (const std::string& path : {kOne, kNew}) files_->rename_file(temporary(path), path);
    files_->remove_file(kMarker);
  });
  EXPECT_EQ(difference_of(Place{watched}.rebuild("c"), StateDict{{"a", counted({3}) + 7}, {"n", counted({2, 2})}}), "");
  EXPECT_TRUE(has_ended);
}

TEST_F(SafetensorsCommitTest, ARankThatOpensLaterFindsTheSameFiles) {
  SafetensorsReader first = reader();
  const Metadata metadata = *first.read_metadata();
  SafetensorsReader other = reader();
  other.set_up(metadata, {});
  EXPECT_TRUE(bit_equal(other.read_tensor(metadata, "n"), counted({2, 2})));
  // Renamed since, which it is to find; then replaced, which it is not to take.
  files_->rename_file(temporary(kOne), kOne);
  EXPECT_TRUE(bit_equal(other.read_tensor(metadata, "a"), counted({3}) + 7));
  other.set_up(metadata, {});
  write_safetensors(*files_, kOne, {{"a", counted({3}) + 7}}, {{"torch_dcp.save_id", "01234567"}});
  expect_error(ErrorKind::kCorruptData,
               "the file is of save 01234567, and was of save " + kId + " when the checkpoint was opened",
               [&] { other.read_tensor(metadata, "a"); });
}

TEST_F(SafetensorsReaderTest, FilesOfTwoSavesAreNoCheckpoint) {
  const auto write = [&](const std::string& path, const std::string& key,
                         OrderedMap<std::string, std::string> metadata) {
    write_safetensors(*files_, path, {{key, counted({2})}}, std::move(metadata));
  };
  write(kOne, "a", {{"torch_dcp.save_id", "1a"}});
  write(kTwo, "b", {{"torch_dcp.save_id", "1a"}});
  EXPECT_EQ(place_.metadata("c").storage_meta->save_id, "1a");
  write(kTwo, "b", {{"torch_dcp.save_id", "2b"}});
  const std::string one = "model-00001-of-00002.safetensors is of save 1a, model-00002-of-00002.safetensors of ";
  expect_refused(ErrorKind::kCorruptData, "(try again): " + one + "save 2b");
  write(kTwo, "b", {});
  expect_refused(ErrorKind::kCorruptData, one + "no save that says so");
  write_index(R"({"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"})");
  expect_refused(ErrorKind::kCorruptData, one + "no save that says so");
  files_->remove_file(kIndex);
  // Each by itself is as good as any other file.
  EXPECT_EQ(difference_of(place_.rebuild(kOne), StateDict{{"a", counted({2})}}), "");
  write(kOne, "a", {});
  EXPECT_FALSE(place_.metadata("c").storage_meta);

  write(kOne, "a", {{"torch_dcp.save_id", "1a"}, {"torch_dcp.file_count", "3"}});
  write(kTwo, "b", {{"torch_dcp.save_id", "1a"}, {"torch_dcp.file_count", "3"}});
  expect_refused(ErrorKind::kCorruptData, "make no checkpoint: 2 of the 3 files of their save are there");
  EXPECT_EQ(difference_of(place_.rebuild(kOne), StateDict{{"a", counted({2})}}), "");
  for (const char* id : {"", "../x", "a b", "a/b"}) {
    write(kTwo, "b", {{"torch_dcp.save_id", id}});
    expect_refused(ErrorKind::kCorruptData, "its torch_dcp.save_id is no id of a save");
    expect_refused(ErrorKind::kCorruptData, "while reading the header of " + kTwo);
  }
  write(kTwo, "b", {{"torch_dcp.save_id", std::string(65, 'a')}});
  expect_refused(ErrorKind::kCorruptData, "is no id of a save");
  for (const char* count : {"", "0", "-1", "2 ", "1e3", "99999999999999999999"}) {
    write(kTwo, "b", {{"torch_dcp.save_id", "1a"}, {"torch_dcp.file_count", count}});
    expect_refused(ErrorKind::kCorruptData, "its torch_dcp.file_count is no number of files");
  }
}

TEST_F(SafetensorsReaderTest, GlobalSizesTellWhatIsMissing) {
  const at::Tensor w = counted({6, 2});
  const auto write = [&](const std::string& path, std::int64_t begin, std::int64_t rows, std::optional<Sizes> size) {
    write_safetensors(*files_, path, {{"w", w.narrow(0, begin, rows), Sizes{begin, 0}, std::move(size)}});
  };
  write(kOne, 0, 4, Sizes{6, 2});
  expect_refused(ErrorKind::kCorruptData,
                 "chunks hold 8 of 12 elements of the size [6, 2]; none holds [4, 0] + [2, 2]");
  write(kTwo, 4, 2, Sizes{6, 2});
  EXPECT_EQ(difference_of(place_.rebuild("c"), StateDict{{"w", w}}), "");
  // One that does not tell, as PyTorch's.
  write(kTwo, 4, 2, {});
  EXPECT_EQ(difference_of(place_.rebuild("c"), StateDict{{"w", w}}), "");
  write(kTwo, 4, 1, {});
  expect_refused(ErrorKind::kCorruptData, "none holds [5, 0] + [1, 2]");
  write(kTwo, 4, 2, Sizes{7, 2});
  expect_refused(ErrorKind::kCorruptData,
                 "key 'w': model-00002-of-00002.safetensors has a part of size [7, 2], "
                 "model-00001-of-00002.safetensors of size [6, 2]");
  write(kOne, 0, 4, Sizes{5, 2});
  write(kTwo, 4, 2, {});
  expect_refused(ErrorKind::kCorruptData, "chunk [4, 0] + [2, 2] is out of bounds of the size [5, 2]");
  // Only an empty part is left.
  files_->remove_file(kTwo);
  write(kOne, 6, 0, Sizes{6, 2});
  expect_refused(ErrorKind::kCorruptData, "chunks hold 0 of 12 elements");
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

TEST_F(SafetensorsReaderTest, AnIndexThatGoesAfterTheListing) {
  write_hub_folder();
  write_whole_index();
  const auto watched = std::make_shared<FaultInjectingFileSystem>(files_);
  bool is_lasting = false;
  watched->set_hook([&](const FileEvent& event) {
    if (event.op == FileOp::kOpen && event.path == kIndex) files_->remove_file(kIndex);
    if (is_lasting && event.op == FileOp::kList) write_whole_index();
  });
  EXPECT_EQ(difference_of(Place{watched}.rebuild("c"), whole()), "");
  is_lasting = true;
  expect_error(ErrorKind::kCorruptData, "saves into c are just being committed (try again)",
               [&] { SafetensorsReader("c", {.file_system = watched}).read_metadata(); });
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

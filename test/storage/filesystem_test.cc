#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "test/checkpoint/checkpoint_support.h"
#include "test/support/expect_error.h"
#include "test/support/fault_injecting_file_system.h"
#include "torch_dcp/plan/default_save_planner.h"
#include "torch_dcp/state_dict/stateful.h"
#include "torch_dcp/storage/filesystem_reader.h"
#include "torch_dcp/storage/filesystem_writer.h"
#include "torch_dcp/storage/storage_factory.h"

namespace dcp::test {
namespace {

using Strings = std::vector<std::string>;

std::string id_of(const Metadata& metadata) { return *metadata.storage_meta->save_id; }
std::string tag_of(const Metadata& metadata) { return id_of(metadata).substr(0, 8); }

/// Saves and loads of one process in a recording file system.
class FileSystemTest : public ::testing::Test {
 protected:
  /// Changes without the numbers of bytes.
  Strings changes() const {
    Strings changes = files_->changes();
    for (std::string& change : changes) {
      if (change.starts_with("append ")) change.resize(change.rfind(' '));
    }
    return changes;
  }

  void expect_loads(const StateDict& wanted, const std::string& path = "c") {
    EXPECT_EQ(first_difference(place_.rebuild(path), wanted), "");
  }

  std::shared_ptr<FileSystem> base_ = make_memory_file_system();
  std::shared_ptr<FaultInjectingFileSystem> files_ = std::make_shared<FaultInjectingFileSystem>(base_);
  Place place_{files_};
  const StateDict a_ = {{"w", counted({4})}, {"n", 1}};
  const StateDict b_ = {{"w", counted({4}) + 10}, {"n", 2}};
};

TEST_F(FileSystemTest, OrderOfAFreshSave) {
  files_->create_directories("p");
  files_->clear_trace();
  const Metadata metadata = place_.save(a_, "p/q/c");
  const std::string side = "p/q/c/.torch_dcp-" + id_of(metadata) + ".json";
  EXPECT_EQ(changes(), (Strings{
                           "create_directories p/q/c",   "create p/q/c/__0_0.distcp",
                           "append p/q/c/__0_0.distcp",  // Both items are small.
                           "sync p/q/c/__0_0.distcp",    "close p/q/c/__0_0.distcp",
                           "sync_directory p/q/c",       "sync_directory p/q",
                           "sync_directory p",           "create " + side + ".tmp",
                           "append " + side + ".tmp",    "sync " + side + ".tmp",
                           "close " + side + ".tmp",     "rename " + side + ".tmp " + side,
                           "sync_directory p/q/c",       "create p/q/c/.metadata.tmp",
                           "append p/q/c/.metadata.tmp", "sync p/q/c/.metadata.tmp",
                           "close p/q/c/.metadata.tmp",  "rename p/q/c/.metadata.tmp p/q/c/.metadata",
                           "sync_directory p/q/c",
                       }));
  expect_loads(a_, "p/q/c");
}

TEST_F(FileSystemTest, ReplacingRemovesTheOldFilesLast) {
  const Metadata old = place_.save(a_, "c");
  files_->clear_trace();
  const Metadata metadata = place_.save(b_, "c");
  const Strings all = changes();
  const auto commit = std::find(all.begin(), all.end(), "rename c/.metadata.tmp c/.metadata");
  ASSERT_NE(commit, all.end());
  EXPECT_EQ(Strings(commit + 1, all.end()),
            (Strings{"sync_directory c", "remove c/.torch_dcp-" + id_of(old) + ".json", "remove c/__0_0.distcp"}));
  for (auto change = all.begin(); change != commit; ++change) EXPECT_FALSE(change->starts_with("remove")) << *change;
  EXPECT_EQ(names_in(*files_, "c"),
            (Strings{".metadata", ".torch_dcp-" + id_of(metadata) + ".json", "__0_0-" + tag_of(metadata) + ".distcp"}));
  expect_loads(b_);
}

TEST_F(FileSystemTest, RevokeFirstRemovesTheMetadataBeforeAnythingElse) {
  const Metadata old = place_.save(a_, "c");
  files_->clear_trace();
  place_.save(b_, "c", {.overwrite_form = OverwriteForm::kRevokeFirst});
  const Strings all = changes();
  ASSERT_GE(all.size(), 6u);
  EXPECT_EQ(Strings(all.begin(), all.begin() + 6),
            (Strings{"create_directories c", "remove c/.metadata", "sync_directory c",
                     "remove c/.torch_dcp-" + id_of(old) + ".json", "remove c/__0_0.distcp", "create c/__0_0.distcp"}));
  expect_loads(b_);
  EXPECT_EQ(names_in(*files_, "c").size(), 3u);
}

TEST_F(FileSystemTest, WithoutSyncNothingIsSynced) {
  for (const OverwriteForm form : {OverwriteForm::kReplace, OverwriteForm::kRevokeFirst}) {
    place_.save(a_, "c", {.overwrite_form = form, .sync_files = false});
  }
  for (const FileEvent& event : files_->trace()) {
    EXPECT_TRUE(event.op != FileOp::kSync && event.op != FileOp::kSyncDirectory) << to_string(event);
  }
  expect_loads(a_);
}

TEST_F(FileSystemTest, OverwriteOffLeavesEveryByte) {
  place_.save(a_, "c");
  const auto before = contents_of(*files_, "c");
  for (const OverwriteForm form : {OverwriteForm::kReplace, OverwriteForm::kRevokeFirst}) {
    const std::string text = error_of([&] { place_.save(b_, "c", {.overwrite = false, .overwrite_form = form}); });
    EXPECT_NE(text.find("overwriting is off"), std::string::npos) << text;
    EXPECT_EQ(contents_of(*files_, "c"), before);
  }
  place_.save(b_, "d", {.overwrite = false});
  expect_loads(b_, "d");
}

TEST_F(FileSystemTest, SeveralThreadsWriteSeveralFiles) {
  StateDict state;
  for (int i = 0; i < 20; ++i) state["t" + std::to_string(i)] = counted({10 + i}) * i;
  for (int i = 0; i < 5; ++i) state["o" + std::to_string(i)] = i;
  const Metadata metadata = place_.save(state, "c", {.thread_count = 3});
  EXPECT_EQ(names_in(*files_, "c"), (Strings{".metadata", ".torch_dcp-" + id_of(metadata) + ".json", "__0_0.distcp",
                                             "__0_1.distcp", "__0_2.distcp"}));
  expect_loads(state);
  StateDict loaded = place_.rebuild("c");
  for (const auto& [key, value] : state) {
    if (value.is_tensor()) loaded[key].as_tensor().fill_(-1);
  }
  place_.load(loaded, "c", {}, {.thread_count = 4});
  EXPECT_EQ(first_difference(loaded, state), "");
}

TEST_F(FileSystemTest, OneFilePerItem) {
  const Metadata metadata = place_.save(a_, "c", {.thread_count = 2, .single_file_per_rank = false});
  std::set<std::string> names;
  for (const auto& [index, info] : metadata.storage_data) {
    EXPECT_EQ(info.offset, 0);
    names.insert(info.relative_path);
  }
  EXPECT_EQ(names, (std::set<std::string>{"__0_0.distcp", "__0_1.distcp"}));
  expect_loads(a_);
}

TEST_F(FileSystemTest, FilesOfOthersAreNeverTouched) {
  const Strings foreign = {"notes.txt", "__0_0-mine.distcp", "model.safetensors", ".torch_dcp.toml", "a.metadata"};
  files_->create_directories("c/sub");
  for (const std::string& name : foreign) write_file(*files_, "c/" + name, Bytes(5, 9));
  write_file(*files_, "c/sub/__0_0.distcp", Bytes(5, 9));
  place_.save(a_, "c");
  place_.save(b_, "c");
  place_.save(a_, "c", {.overwrite_form = OverwriteForm::kRevokeFirst});
  for (const std::string& name : foreign) EXPECT_EQ(contents_of(*files_, "c").at(name), Bytes(5, 9)) << name;
  EXPECT_EQ(contents_of(*files_, "c/sub").at("__0_0.distcp"), Bytes(5, 9));
  EXPECT_EQ(names_in(*files_, "c").size(), foreign.size() + 3);
  expect_loads(a_);
}

TEST_F(FileSystemTest, WhatAKilledSaveLeftIsRemovedAfterTheNextCommit) {
  files_->create_directories("c");
  for (const char* name : {"__5_0.distcp", "__0_3-0123abcd.distcp", ".metadata.tmp", ".torch_dcp-old.json"}) {
    write_file(*files_, std::string("c/") + name, Bytes(5, 9));
  }
  place_.save(a_, "c");
  EXPECT_EQ(names_in(*files_, "c").size(), 3u);
  expect_loads(a_);
}

TEST_F(FileSystemTest, AnOldFileThatStaysIsToldAndHarmless) {
  place_.save(a_, "c");
  FileSystemWriter writer("c", {.file_system = files_});
  files_->fail({.op = FileOp::kRemove, .path_contains = "__0_0.distcp", .message = "Operation not permitted"});
  save(b_, writer);
  ASSERT_EQ(writer.warnings().size(), 1u);
  EXPECT_NE(writer.warnings()[0].find("__0_0.distcp"), std::string::npos) << writer.warnings()[0];
  expect_loads(b_);
  place_.save(a_, "c");
  EXPECT_EQ(names_in(*files_, "c").size(), 3u);
}

TEST_F(FileSystemTest, AFaultInAnyThreadIsAFaultOfTheSave) {
  StateDict state;
  // Two in each file, and none so small that the writer gathers several before it appends.
  for (int i = 0; i < 8; ++i) state["t" + std::to_string(i)] = counted({20'000});
  for (int file = 0; file < 4; ++file) {
    for (std::uint64_t nth = 1; nth <= 2; ++nth) {
      files_->fail({.op = FileOp::kAppend, .path_contains = c10::str("__0_", file), .nth = nth});
      const std::string text = error_of([&] { place_.save(state, "c", {.thread_count = 4}); });
      EXPECT_NE(text.find("No space left on device"), std::string::npos) << text;
      EXPECT_NE(text.find("while writing t"), std::string::npos) << text;
      files_->clear_faults();
      EXPECT_EQ(names_in(*files_, "c"), Strings()) << "the failed save left files";
    }
  }
  const Metadata metadata = place_.save(state, "c", {.thread_count = 4});
  EXPECT_EQ(metadata.storage_data.size(), 8u);
}

TEST_F(FileSystemTest, ManySmallTensorsTakeFewAppendsAndReads) {
  constexpr int kTensors = 2000;
  StateDict state;
  StateDict destinations;
  for (int i = 0; i < kTensors; ++i) {
    state["t" + std::to_string(i)] = at::full({256}, i, at::kFloat);
    destinations["t" + std::to_string(i)] = pattern({256});
  }
  files_->clear_trace();
  place_.save(state, "c");
  const auto count = [&](FileOp op) {
    std::size_t events = 0;
    for (const FileEvent& event : files_->trace()) {
      events += event.op == op && event.path.ends_with(".distcp") ? 1 : 0;
    }
    return events;
  };
  EXPECT_LE(count(FileOp::kAppend), 10u);  // 5 MB, a MiB at a time.
  files_->clear_trace();
  place_.load(destinations, "c");
  EXPECT_LE(count(FileOp::kRead), 100u);  // Checked, then read: twice 5 MB, 256 KiB at a time but for the first.
  for (int i = 0; i < kTensors; ++i) {
    const std::string key = "t" + std::to_string(i);
    ASSERT_TRUE(bit_equal(destinations[key].as_tensor(), state[key].as_tensor())) << key;
  }
}

/// Reads of data files, and their bytes.
struct Reads {
  std::uint64_t calls = 0;
  std::uint64_t bytes = 0;
};

Reads reads_of(const FaultInjectingFileSystem& files) {
  Reads reads;
  for (const FileEvent& event : files.trace()) {
    if (event.op != FileOp::kRead || !event.path.ends_with(".distcp")) continue;
    ++reads.calls;
    reads.bytes += event.bytes;
  }
  return reads;
}

/// A destination for a box of "t".
StateDict box_of(c10::IntArrayRef whole, Sizes offsets, Sizes sizes) {
  return {{"t", ShardedTensor(Sizes(whole), at::kFloat, {{pattern(sizes), std::move(offsets)}})}};
}

TEST_F(FileSystemTest, AColumnBlockTakesFarFewerReadsThanRows) {
  const at::Tensor whole = counted({3000, 64});
  place_.save({{"t", whole}}, "c");
  for (const bool merges : {true, false}) {
    StateDict columns = box_of({3000, 64}, {0, 10}, {3000, 20});
    files_->clear_trace();
    place_.load(columns, "c", {}, merges ? FileSystemReaderOptions{} : FileSystemReaderOptions{.merge_hole_bytes = 0});
    EXPECT_TRUE(bit_equal(columns["t"].as_sharded_tensor().local_shards()[0].tensor, whole.narrow(1, 10, 20)));
    const Reads reads = reads_of(*files_);
    if (merges) {
      EXPECT_LE(reads.calls, 10u);  // 768 KB, and what is around the elements.
      EXPECT_LE(reads.bytes, whole.nbytes() + 16'384);
    } else {
      EXPECT_GE(reads.calls, 3000u);
      EXPECT_LE(reads.bytes, 3000u * 80u + 16'384u);
    }
  }
}

TEST_F(FileSystemTest, TheStatedHoleJoinsRowsThatLieFarApart) {
  const at::Tensor whole = counted({60, 16'384});
  place_.save({{"t", whole}}, "c");
  for (const auto& [hole_bytes, most_calls] :
       std::vector<std::pair<std::size_t, std::uint64_t>>{{4096, 70}, {64 << 10, 20}, {SIZE_MAX, 20}}) {
    StateDict columns = box_of({60, 16'384}, {0, 5}, {60, 100});
    files_->clear_trace();
    place_.load(columns, "c", {}, {.merge_hole_bytes = hole_bytes});
    EXPECT_TRUE(bit_equal(columns["t"].as_sharded_tensor().local_shards()[0].tensor, whole.narrow(1, 5, 100)));
    EXPECT_LE(reads_of(*files_).calls, most_calls) << hole_bytes;
    EXPECT_EQ(reads_of(*files_).calls > 60, most_calls > 60) << hole_bytes;
  }
}

TEST_F(FileSystemTest, LargeSlicesReadLittleElse) {
  const at::Tensor whole = counted({512, 2048});
  place_.save({{"t", whole}}, "c");
  const std::vector<std::pair<Sizes, Sizes>> boxes = {{{0, 0}, {256, 2048}}, {{100, 0}, {300, 2048}},
                                                      {{0, 0}, {512, 1024}}, {{0, 512}, {512, 512}},
                                                      {{3, 1}, {400, 2047}}, {{1, 0}, {511, 2040}}};
  for (const auto& [offsets, sizes] : boxes) {
    StateDict part = box_of({512, 2048}, offsets, sizes);
    files_->clear_trace();
    place_.load(part, "c");
    const at::Tensor wanted = whole.narrow(0, offsets[0], sizes[0]).narrow(1, offsets[1], sizes[1]);
    EXPECT_TRUE(bit_equal(part["t"].as_sharded_tensor().local_shards()[0].tensor, wanted));
    EXPECT_LE(static_cast<double>(reads_of(*files_).bytes), 1.05 * static_cast<double>(sizes[0] * sizes[1] * 4))
        << dcp::to_string(c10::IntArrayRef(sizes));
  }
}

TEST_F(FileSystemTest, NeighbouringSmallItemsAreReadTogetherAndDistantOnesAlone) {
  constexpr int kTensors = 600;
  StateDict state;
  for (int i = 0; i < kTensors; ++i) state[c10::str("t", i)] = at::full({256}, i, at::kFloat);
  place_.save(state, "c");
  const auto load = [&](int step, std::size_t hole_bytes) {
    StateDict wanted;
    for (int i = 0; i < kTensors; i += step) wanted[c10::str("t", i)] = pattern({256});
    files_->clear_trace();
    place_.load(wanted, "c", {}, {.merge_hole_bytes = hole_bytes});
    for (const auto& [key, value] : wanted) {
      EXPECT_TRUE(bit_equal(value, state.at(key))) << dcp::to_string(key);
    }
    return reads_of(*files_);
  };
  // 1.5 MB in all, checked, then read: twice 256 KiB at a time.
  EXPECT_LE(load(1, 4096).calls, 16u);
  EXPECT_LE(load(2, 4096).calls, 16u);  // Over one other item.
  EXPECT_GE(load(1, 0).calls, 2u * kTensors);
  const Reads alone = load(10, 4096);  // Nine others are too many.
  EXPECT_GE(alone.calls, 2u * kTensors / 10);
  EXPECT_LE(alone.bytes, 3u * 2560u * kTensors / 10);
  const Reads joined = load(10, 64 << 10);
  EXPECT_LE(joined.calls, 16u);
  EXPECT_GT(joined.bytes, 10u * 2560u * kTensors / 10);
}

TEST_F(FileSystemTest, ManyObjectsTakeFewReads) {
  StateDict state;
  StateDict wanted;
  for (int i = 0; i < 1000; ++i) {
    state[c10::str("o", i)] = i;
    wanted[c10::str("o", i)] = None();
  }
  place_.save(state, "c");
  files_->clear_trace();
  place_.load(wanted, "c");
  EXPECT_LE(reads_of(*files_).calls, 8u);  // 1.3 MB.
  EXPECT_EQ(first_difference(wanted, state), "");
}

TEST_F(FileSystemTest, AFileThatWasCutIsToldOfEachSmallItemThatItLacks) {
  StateDict state;
  for (int i = 0; i < 20; ++i) state[c10::str("t", 10 + i)] = counted({16});
  const Metadata metadata = place_.save(state, "c");
  const Bytes bytes = contents_of(*files_, "c").at("__0_0.distcp");
  write_file(*files_, "c/__0_0.distcp", ByteSpan(bytes).first(bytes.size() / 2));
  StateDict wanted;
  for (const auto& [key, value] : state) wanted[key] = pattern({16});
  const std::string text = error_of([&] { place_.load(wanted, "c"); });
  for (int i = 0; i < 20; ++i) {
    const StorageInfo info = *metadata.storage_data.find({c10::str("t", 10 + i), Sizes{0}, {}});
    const bool is_cut = static_cast<std::size_t>(info.offset + info.length) > bytes.size() / 2;
    EXPECT_EQ(text.find(c10::str("t", 10 + i, " at")) != std::string::npos, is_cut) << text;
  }
}

TEST_F(FileSystemTest, AFaultInGatheredItemsNamesThemAndTheFile) {
  files_->fail({.op = FileOp::kAppend, .path_contains = "__0_0"});
  const std::string text = error_of([&] { place_.save({{"a", counted({4})}, {"b", counted({4})}}, "c"); });
  EXPECT_NE(text.find("while writing items up to b"), std::string::npos) << text;
  EXPECT_NE(text.find("__0_0.distcp"), std::string::npos) << text;
  EXPECT_EQ(names_in(*files_, "c"), Strings()) << "the failed save left files";
}

TEST_F(FileSystemTest, WithoutChecksumsNothingIsRecordedOrChecked) {
  const at::Tensor stored = counted({20'000});
  place_.save({{"t", stored}}, "c", {.checksums = false});
  StateDict destination = {{"t", pattern({20'000})}};
  place_.load(destination, "c");
  EXPECT_TRUE(bit_equal(destination["t"].as_tensor(), stored));
  for (const bool has_checksums : {false, true}) {
    place_.save({{"t", stored}}, "c", {.overwrite_form = OverwriteForm::kRevokeFirst, .checksums = has_checksums});
    Bytes bytes = contents_of(*files_, "c").at("__0_0.distcp");
    bytes[bytes.size() / 2] ^= 1;
    write_file(*files_, "c/__0_0.distcp", bytes);
    const std::string text = error_of([&] { place_.load(destination, "c"); });
    EXPECT_EQ(text.find("CRC-32") != std::string::npos, has_checksums) << text;
  }
}

TEST_F(FileSystemTest, ThreadsShareAFile) {
  StateDict state;
  StateDict destinations;
  for (int i = 0; i < 12; ++i) {
    state["t" + std::to_string(i)] = counted({300'000});
    destinations["t" + std::to_string(i)] = pattern({300'000});
  }
  place_.save(state, "c");
  place_.load(destinations, "c", {}, {.thread_count = 4});
  for (int i = 0; i < 12; ++i) {
    const std::string key = "t" + std::to_string(i);
    EXPECT_TRUE(bit_equal(destinations[key].as_tensor(), state[key].as_tensor())) << key;
  }
  // The last item is damaged: it is named, and what had been changed by then, by whatever thread.
  Bytes bytes = contents_of(*files_, "c").at("__0_0.distcp");
  bytes[bytes.size() - 100'000] ^= 1;
  write_file(*files_, "c/__0_0.distcp", bytes);
  const std::string text = error_of([&] { place_.load(destinations, "c", {}, {.thread_count = 4}); });
  EXPECT_NE(text.find("t11"), std::string::npos) << text;
  EXPECT_NE(text.find("destinations that have been changed already"), std::string::npos) << text;
}

TEST_F(FileSystemTest, AFailedSaveRemovesWhatItWroteAndNothingElse) {
  place_.save(a_, "c");
  const auto before = contents_of(*files_, "c");
  files_->fail({.op = FileOp::kSync, .path_contains = ".distcp"});
  EXPECT_NE(error_of([&] { place_.save(b_, "c"); }), "");
  EXPECT_EQ(contents_of(*files_, "c"), before);
  expect_loads(a_);
}

/// Throws before the writer has been told of the save.
class NoState final : public Stateful {
 public:
  Dict state_dict() override { throw std::runtime_error("no state today"); }
  void load_state_dict(const Dict&) override {}
};

TEST_F(FileSystemTest, AWriterThatIsUsedAgainNeverRemovesItsLastCheckpoint) {
  FileSystemWriter writer("c", {.file_system = files_});
  save(a_, writer);
  const auto before = contents_of(*files_, "c");
  EXPECT_NE(error_of([&] { save({{"app", std::make_shared<NoState>()}}, writer); }), "");
  EXPECT_EQ(contents_of(*files_, "c"), before);
  save(b_, writer);
  expect_loads(b_);
}

TEST_F(FileSystemTest, TwoJobsOnOneDirectoryDoNotWriteOverEachOther) {
  // The other job's file appears after this one has looked.
  files_->set_hook([&](const FileEvent& event) {
    if (event.op == FileOp::kCreate && event.path == "c/__0_0.distcp") write_file(*base_, event.path, Bytes(7, 7));
  });
  const std::string text = error_of([&] { place_.save(a_, "c"); });
  EXPECT_NE(text.find("c/__0_0.distcp"), std::string::npos) << text;
  EXPECT_EQ(contents_of(*files_, "c").at("__0_0.distcp"), Bytes(7, 7));
}

/// Gives the wrong results.
class CarelessWriter final : public FileSystemWriter {
 public:
  enum class Fault { kLosesOne, kDoublesOne, kRenamesOne };
  CarelessWriter(FileSystemWriterOptions options, Fault fault)
      : FileSystemWriter("c", std::move(options)), fault_(fault) {}

  Metadata finish(Metadata metadata, const std::vector<std::vector<WriteResult>>& results) override {
    auto changed = results;
    if (fault_ == Fault::kLosesOne) changed[0].pop_back();
    if (fault_ == Fault::kDoublesOne) changed[0].push_back(changed[0][0]);
    if (fault_ == Fault::kRenamesOne) changed[0][0].index.fqn = "other";
    return FileSystemWriter::finish(std::move(metadata), changed);
  }

 private:
  Fault fault_;
};

TEST_F(FileSystemTest, EveryPlannedItemMustHaveOneResult) {
  using Fault = CarelessWriter::Fault;
  for (const auto& [fault, what] :
       std::vector<std::pair<Fault, std::string>>{{Fault::kLosesOne, "planned but not written"},
                                                  {Fault::kDoublesOne, "was written twice"},
                                                  {Fault::kRenamesOne, "planned but not written"}}) {
    CarelessWriter writer({.file_system = files_}, fault);
    const std::string text = error_of([&] { save(a_, writer); });
    EXPECT_NE(text.find(what), std::string::npos) << text;
    EXPECT_FALSE(is_complete("c", files_));
  }
}

TEST_F(FileSystemTest, CleaningUpOutlivesWhateverAFileSystemThrows) {
  place_.save(a_, "old");
  files_->set_hook([](const FileEvent& event) {
    if (event.op == FileOp::kRename) DCP_THROW(kIo, "no rename");
    if (event.op == FileOp::kRemove) throw 42;
  });
  expect_error(ErrorKind::kIo, "no rename", [&] { place_.save(a_, "c"); });
  files_->set_hook({});
  EXPECT_EQ(first_difference(place_.rebuild("old"), a_), "");
}

TEST_F(FileSystemTest, IsCompleteLooksAtEveryFile) {
  EXPECT_FALSE(is_complete("c", files_));
  place_.save(a_, "c");
  EXPECT_TRUE(is_complete("c", files_));
  const Bytes data = contents_of(*files_, "c").at("__0_0.distcp");
  write_file(*files_, "c/__0_0.distcp", ByteSpan(data).first(data.size() - 1));
  EXPECT_FALSE(is_complete("c", files_));
  write_file(*files_, "c/__0_0.distcp", data);
  files_->clear_trace();
  EXPECT_TRUE(is_complete("c", files_));
  for (const FileEvent& event : files_->trace()) {
    EXPECT_FALSE(event.op == FileOp::kOpen && event.path.ends_with(".distcp")) << to_string(event);
  }
  files_->remove_file("c/__0_0.distcp");
  EXPECT_FALSE(is_complete("c", files_));
  files_->create_directories("c/__0_0.distcp");
  EXPECT_FALSE(is_complete("c", files_));
  write_file(*files_, "plain", Bytes(3, 1));
  EXPECT_FALSE(is_complete("plain", files_));
  files_->fail({.op = FileOp::kRead, .message = "Input/output error"});
  expect_error(ErrorKind::kIo, "Input/output error", [&] { is_complete("c", files_); });
}

TEST_F(FileSystemTest, IsCompleteOfACheckpointWithoutCollectives) {
  SaveOptions alone;
  alone.use_collectives = false;
  place_.save_with(a_, "c", alone);
  EXPECT_EQ(names_in(*files_, "c"), (Strings{"__0.metadata", "__0_0.distcp"}));
  EXPECT_TRUE(is_complete("c", files_));
  write_file(*files_, "c/__99999999999999999999.metadata", Bytes(3, 1));
  EXPECT_TRUE(is_complete("c", files_)) << "of no rank that there can be";
  const Bytes data = contents_of(*files_, "c").at("__0_0.distcp");
  write_file(*files_, "c/__0_0.distcp", ByteSpan(data).first(data.size() - 1));
  EXPECT_FALSE(is_complete("c", files_));
}

TEST_F(FileSystemTest, KindsOfCheckpointsDoNotHideEachOther) {
  SaveOptions alone;
  alone.use_collectives = false;
  place_.save(a_, "c");
  const std::string text = error_of([&] { place_.save_with(b_, "c", alone); });
  EXPECT_NE(text.find("saved with collectives"), std::string::npos) << text;
  expect_loads(a_);
  place_.save_with(b_, "d", alone);
  place_.save(a_, "d");
  expect_loads(a_, "d");
  EXPECT_EQ(names_in(*files_, "d").size(), 3u) << "what it replaces goes";
}

TEST_F(FileSystemTest, AFlippedBitIsNamed) {
  place_.save(a_, "c");
  Bytes data = contents_of(*files_, "c").at("__0_0.distcp");
  const Bytes three = {0, 0, 0x40, 0x40};
  const auto element = std::search(data.begin(), data.end(), three.begin(), three.end());
  ASSERT_NE(element, data.end()) << "the float 3 is not there";
  *element ^= 1;
  write_file(*files_, "c/__0_0.distcp", data);
  const std::string text = error_of([&] { place_.rebuild("c"); });
  for (const char* part : {"c/__0_0.distcp", "w at [0]", "CRC-32", "changed already"}) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  }
  StateDict state = {{"w", pattern({4})}, {"n", 0}};
  place_.load(state, "c", {}, {.verify_checksums = false});
}

TEST_F(FileSystemTest, IdsAreDirectories) {
  EXPECT_EQ(dynamic_cast<FileSystemWriter&>(*make_storage_writer("file:///a/b")).path(), "/a/b");
  EXPECT_EQ(dynamic_cast<FileSystemReader&>(*make_storage_reader("a/b")).path(), "a/b");
  expect_error(ErrorKind::kUnsupported, "s3://bucket", [] { make_storage_writer("s3://bucket"); });
  expect_error(ErrorKind::kUnsupported, "s3://bucket", [] { make_storage_reader("s3://bucket"); });
  expect_error(ErrorKind::kInvalidArgument, "path", [] { make_storage_writer(""); });
  expect_error(ErrorKind::kInvalidArgument, "path", [] { make_storage_reader("file://"); });
  expect_error(ErrorKind::kInvalidArgument, "thread_count", [] { FileSystemWriter("c", {.thread_count = 0}); });
}

}  // namespace
}  // namespace dcp::test

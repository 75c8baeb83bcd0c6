#include "torch_dcp/storage/safetensors_writer.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "test/storage/safetensors_support.h"
#include "test/support/crashing_file_system.h"
#include "test/support/expect_error.h"
#include "test/support/fault_injecting_file_system.h"
#include "torch_dcp/storage/safetensors_folder_writer.h"

namespace dcp::test {
namespace {

using Strings = std::vector<std::string>;

constexpr const char* kIndexName = "model.safetensors.index.json";
constexpr const char* kMarkerName = "model-save-unfinished.safetensors";

class SafetensorsWriterTest : public ::testing::Test {
 protected:
  void save(const StateDict& state, SafetensorsWriterOptions options = {}) const {
    save_safetensors(place_, state, "c", std::move(options));
  }
  Strings names(const std::string& path = "c") const { return names_in(*base_, path); }

  std::shared_ptr<FileSystem> base_ = make_memory_file_system();
  std::shared_ptr<FaultInjectingFileSystem> files_ = std::make_shared<FaultInjectingFileSystem>(base_);
  Place place_{files_};
  const StateDict a_ = {{"w", counted({4})}, {"m", Dict{{"v", counted({2, 3}, at::kLong)}}}};
};

TEST_F(SafetensorsWriterTest, WholeTensorsOfEveryDtype) {
  const StateDict state = many_tensors();
  save(state);
  EXPECT_EQ(names(), (Strings{"model-00001-of-00001.safetensors", kIndexName}));
  EXPECT_EQ(difference_of(place_.rebuild("c"), state), "");
  const SafetensorsHeader header = header_of(*files_, "c/model-00001-of-00001.safetensors");
  EXPECT_EQ(header.data_position % 8, 0);
  EXPECT_EQ(*header.metadata.find("format"), "pt");
  EXPECT_EQ(*header.metadata.find("DCP_VERSION"), "1.0");
  for (const SafetensorsTensor& tensor : header.tensors) {
    EXPECT_EQ(tensor.saved_offsets, Sizes(tensor.sizes.size(), 0)) << tensor.name;
  }
}

TEST_F(SafetensorsWriterTest, NestedKeysAndTheIndex) {
  save(a_);
  EXPECT_EQ(
      text_of(*files_, join_path("c", kIndexName)),
      "{\n  \"metadata\": {\n    \"total_size\": 64\n  },\n  \"weight_map\": {\n"
      "    \"w\": \"model-00001-of-00001.safetensors\",\n    \"m.v\": \"model-00001-of-00001.safetensors\"\n  }\n}");
}

TEST_F(SafetensorsWriterTest, AMapping) {
  StateDict state = {{"a", counted({2})}, {"b", counted({3})}, {"c", counted({4})}};
  save(state, {.fqn_to_index_mapping = {{"a", 3}, {"b", 1}, {"c", 3}, {"unused", 5}}, .thread_count = 2});
  EXPECT_EQ(names(), (Strings{"model-00001-of-00005.safetensors", "model-00003-of-00005.safetensors", kIndexName}));
  EXPECT_EQ(header_of(*files_, "c/model-00003-of-00005.safetensors").tensors.size(), 2u);
  EXPECT_EQ(difference_of(place_.rebuild("c"), state), "");
}

TEST_F(SafetensorsWriterTest, AnEmptyStateDict) {
  save({});
  EXPECT_EQ(names(), Strings{kIndexName});
  EXPECT_TRUE(place_.rebuild("c").empty());
  save({}, {.save_distributed = true});
  EXPECT_EQ(names(), Strings{"shard-00001-model-00001-of-00001.safetensors"});
  EXPECT_TRUE(place_.rebuild("c").empty());
  save({}, {.save_distributed = true, .enable_consolidation = true});
  EXPECT_TRUE(place_.rebuild("c").empty());
}

TEST_F(SafetensorsWriterTest, WhatTheFormLacksIsNamedBeforeAnythingIsWritten) {
  const StateDict state = {
      {"w", counted({4})}, {"step", 5}, {"cfg", Dict{{"name", "x"}}}, {"z", at::zeros({2}, at::kComplexDouble)}};
  const std::string error = error_of([&] { save(state); });
  for (const char* text : {"3 faults", "key 'step': an object", "key 'cfg.name': an object",
                           "key 'z': safetensors have no dtype complex128"}) {
    EXPECT_NE(error.find(text), std::string::npos) << error;
  }
  EXPECT_EQ(error.find("'w'"), std::string::npos) << error;
  EXPECT_EQ(base_->file_type("c"), FileType::kNone);
  const std::string unmapped = error_of([&] { save(a_, {.fqn_to_index_mapping = {{"w", 1}}}); });
  EXPECT_NE(unmapped.find("key 'm.v': fqn_to_index_mapping"), std::string::npos) << unmapped;
}

TEST_F(SafetensorsWriterTest, WrongOptions) {
  expect_error(ErrorKind::kInvalidArgument, "needs save_distributed",
               [] { SafetensorsWriter("c", {.enable_consolidation = true}); });
  expect_error(ErrorKind::kInvalidArgument, "files count from 1",
               [] { SafetensorsWriter("c", {.fqn_to_index_mapping = {{"w", 0}}}); });
  expect_error(ErrorKind::kInvalidArgument, "needs a path", [] { SafetensorsWriter(""); });
  expect_error(ErrorKind::kInvalidArgument, "thread_count", [] { SafetensorsWriter("c", {.thread_count = 0}); });
}

TEST_F(SafetensorsWriterTest, OrderOfASave) {
  save(a_);
  files_->clear_trace();
  save(a_);
  Strings changes = files_->changes();
  for (std::string& change : changes) {
    if (change.starts_with("append ")) change.resize(change.rfind(' '));
  }
  changes.erase(std::unique(changes.begin(), changes.end()), changes.end());
  const std::string data = "c/model-00001-of-00001.safetensors";
  const std::string index = join_path("c", kIndexName);
  const std::string marker = join_path("c", kMarkerName);
  EXPECT_EQ(changes, (Strings{"create_directories c",
                              "create " + data + ".tmp",
                              "append " + data + ".tmp",
                              "sync " + data + ".tmp",
                              "close " + data + ".tmp",
                              "sync_directory c",
                              "create " + marker,
                              "append " + marker,
                              "sync " + marker,
                              "close " + marker,
                              "sync_directory c",
                              "remove " + index,
                              "remove " + data,
                              "sync_directory c",
                              "rename " + data + ".tmp " + data,
                              "create " + index + ".tmp",
                              "append " + index + ".tmp",
                              "sync " + index + ".tmp",
                              "close " + index + ".tmp",
                              "rename " + index + ".tmp " + index,
                              "sync_directory c",
                              "remove " + marker,
                              "sync_directory c"}));
  files_->clear_trace();
  save(a_, {.sync_files = false});
  for (const std::string& change : files_->changes()) EXPECT_FALSE(change.starts_with("sync")) << change;
}

TEST_F(SafetensorsWriterTest, ASaveReplacesAllFilesOfSavesAndNoOthers) {
  save({{"a", counted({2})}, {"b", counted({3})}}, {.fqn_to_index_mapping = {{"a", 1}, {"b", 2}}});
  write_text(*files_, "c/config.json", "{}");
  write_text(*files_, "c/shard-00007-model-00001-of-00001.safetensors.tmp", "left by a crash");
  save(a_, {.save_distributed = true});
  EXPECT_EQ(names(), (Strings{"config.json", "shard-00001-model-00001-of-00001.safetensors"}));
  EXPECT_EQ(difference_of(place_.rebuild("c"), StateDict{{"w", a_.at("w")}, {"m.v", a_.at("m").as_dict().at("v")}}),
            "");
}

TEST_F(SafetensorsWriterTest, WhatIsNotOverwritten) {
  save(a_);
  const auto before = contents_of(*base_, "c");
  const std::string exists = error_of([&] { save(a_, {.overwrite = false}); });
  EXPECT_NE(exists.find("there is a checkpoint already (model-00001-of-00001.safetensors)"), std::string::npos)
      << exists;
  EXPECT_EQ(contents_of(*base_, "c"), before);
  write_safetensors(*files_, "c/adapter.safetensors", {{"x", counted({1})}});
  const std::string foreign = error_of([&] { save(a_); });
  EXPECT_NE(foreign.find("c: adapter.safetensors is of no save"), std::string::npos) << foreign;
  files_->remove_file("c/adapter.safetensors");
  write_text(*files_, "c/.metadata", "x");
  const std::string dcp = error_of([&] { save(a_); });
  EXPECT_NE(dcp.find("there is a DCP checkpoint"), std::string::npos) << dcp;
  files_->remove_file("c/.metadata");
  // What an unfinished save left is no checkpoint.
  write_text(*files_, join_path("c", kMarkerName), "unfinished");
  save(a_, {.overwrite = false});
  EXPECT_EQ(contents_of(*base_, "c"), before);
}

TEST_F(SafetensorsWriterTest, APartAloneIsRefused) {
  const auto mesh = DeviceMesh::make({2}, 0);
  const StateDict state = {{"w", DTensor::distribute(counted({4}), mesh, {Placement::shard(0)})}};
  const std::string whole = error_of([&] { save(state); });
  EXPECT_NE(whole.find("key 'w': rank 0 holds [0] + [2] of [4]"), std::string::npos) << whole;
  const std::string sharded = error_of([&] { save(state, {.save_distributed = true}); });
  EXPECT_NE(sharded.find("key 'w'"), std::string::npos) << sharded;
  EXPECT_TRUE(names().empty());
}

StateDict state_of(const RankContext& ranks, int generation) {
  return {{"w", split(counted({7, 3}) + 100 * generation, ranks)},
          {"cols", split(counted({3, 5}, at::kHalf) + generation, ranks, 1)},
          {"v", counted({3, 2}, at::kLong) - 50 * generation},
          {"flag", at::full({}, generation % 2 == 0)},
          {"few", split(counted({1}) + generation, ranks)}};
}

StateDict whole_state(int generation) {
  return {{"w", counted({7, 3}) + 100 * generation},
          {"cols", counted({3, 5}, at::kHalf) + generation},
          {"v", counted({3, 2}, at::kLong) - 50 * generation},
          {"flag", at::full({}, generation % 2 == 0)},
          {"few", counted({1}) + generation}};
}

TEST_F(SafetensorsWriterTest, ShardsOfSeveralRanks) {
  for (const int world : {1, 2, 3}) {
    SCOPED_TRACE(world);
    run_ranks(world, [&](RankContext& ranks) {
      save_safetensors(place_of(ranks, files_), state_of(ranks, 1), "c", {.save_distributed = true});
    });
    EXPECT_EQ(difference_of(place_.rebuild("c"), whole_state(1)), "");
    Strings wanted;
    for (int rank = 1; rank <= world; ++rank) {
      wanted.push_back("shard-0000" + std::to_string(rank) + "-model-00001-of-00001.safetensors");
    }
    EXPECT_EQ(names(), wanted);
    // And onto other numbers of ranks.
    run_ranks(2, [&](RankContext& ranks) {
      StateDict state = {{"w", split_pattern({7, 3}, ranks, 1)}, {"v", pattern({3, 2}, at::kLong)}};
      place_of(ranks, files_).load(state, "c");
      EXPECT_TRUE(bit_equal(state["w"].as_dtensor().local(), split(counted({7, 3}) + 100, ranks, 1).local()));
      EXPECT_TRUE(bit_equal(state["v"].as_tensor(), counted({3, 2}, at::kLong) - 50));
    });
  }
}

TEST_F(SafetensorsWriterTest, Consolidation) {
  const FqnToIndex mapping = {{"w", 2}, {"cols", 1}, {"v", 1}, {"flag", 2}, {"few", 3}};
  run_ranks(3, [&](RankContext& ranks) {
    save_safetensors(place_of(ranks, files_), state_of(ranks, 1), "c",
                     {.fqn_to_index_mapping = mapping,
                      .save_distributed = true,
                      .enable_consolidation = true,
                      .thread_count_consolidation = 2});
  });
  EXPECT_EQ(names(), (Strings{"model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors",
                              "model-00003-of-00003.safetensors", kIndexName}));
  EXPECT_EQ(difference_of(place_.rebuild("c"), whole_state(1)), "");
  EXPECT_EQ(difference_of(place_.rebuild("c/sharded"), whole_state(1)), "");
  EXPECT_EQ(*header_of(*files_, "c/model-00002-of-00003.safetensors").metadata.find("format"), "pt");
}

TEST_F(SafetensorsWriterTest, WithoutShardsSeveralRanksNeedFilesOfTheirOwn) {
  ErrorsByRank errors(2);
  run_ranks(2, [&](RankContext& ranks) {
    const Place place = place_of(ranks, files_);
    errors.run(ranks.rank(), [&] { save_safetensors(place, state_of(ranks, 1), "c"); });
    // Each tensor by one rank alone, each file too.
    const StateDict mine = ranks.rank() == 0 ? StateDict{{"a", counted({2})}} : StateDict{{"b", counted({3})}};
    save_safetensors(place, mine, "d", {.fqn_to_index_mapping = {{"a", 1}, {"b", 2}}});
  });
  errors.expect({0}, {"save_distributed", "key 'w'"});
  EXPECT_EQ(difference_of(place_.rebuild("d"), StateDict{{"a", counted({2})}, {"b", counted({3})}}), "");
}

TEST_F(SafetensorsWriterTest, AFailingRankLeavesTheOldCheckpoint) {
  run_ranks(2, [&](RankContext& ranks) {
    save_safetensors(place_of(ranks, files_), state_of(ranks, 1), "c", {.save_distributed = true});
  });
  const auto before = contents_of(*base_, "c");
  files_->fail({.op = FileOp::kAppend, .path_contains = "shard-00002", .message = "the disk broke"});
  ErrorsByRank errors(2);
  run_ranks(2, [&](RankContext& ranks) {
    const Place place = place_of(ranks, files_);
    errors.run(ranks.rank(), [&] { save_safetensors(place, state_of(ranks, 2), "c", {.save_distributed = true}); });
  });
  errors.expect({1}, {"the disk broke", "shard-00002"});
  EXPECT_EQ(contents_of(*base_, "c"), before);
}

TEST_F(SafetensorsWriterTest, AMarkerThatCannotBeWrittenLeavesTheOldCheckpoint) {
  save(a_);
  const auto before = contents_of(*base_, "c");
  for (const FileOp op : {FileOp::kCreate, FileOp::kAppend, FileOp::kSync, FileOp::kClose}) {
    SCOPED_TRACE(file_op_name(op));
    files_->fail({.op = op, .path_contains = "save-unfinished", .message = "the disk is full"});
    const std::string error = error_of([&] { save({{"w", counted({5})}}, {.fqn_to_index_mapping = {{"w", 1}}}); });
    EXPECT_NE(error.find("the disk is full"), std::string::npos) << error;
    files_->clear_faults();
    EXPECT_EQ(contents_of(*base_, "c"), before);

    files_->fail({.op = op, .path_contains = "save-unfinished", .message = "the disk is full"});
    {
      SafetensorsFolderWriter folder("c", {.file_system = files_});
      const auto file = folder.begin_file(safetensors_file_name(1, 1), {{"w", at::kFloat, {2}}});
      file->append(counted({2}));
      file->close();
      expect_error(ErrorKind::kIo, "the disk is full", [&] { folder.commit(); });
    }
    files_->clear_faults();
    EXPECT_EQ(contents_of(*base_, "c"), before);
  }
  // The marker of another save that was interrupted stays, for what that left is a mixture.
  write_text(*base_, join_path("c", kMarkerName), "");
  files_->fail({.op = FileOp::kSync, .path_contains = "save-unfinished", .message = "the disk is full"});
  EXPECT_NE(error_of([&] { save(a_); }), "");
  files_->clear_faults();
  EXPECT_NE(error_of([&] { place_.rebuild("c"); }).find("incomplete checkpoint"), std::string::npos);
}

TEST_F(SafetensorsWriterTest, WithoutCollectivesOnlyRankZeroSaves) {
  SafetensorsWriter writer("c", {.file_system = files_});
  StorageWriterContext context;
  context.world_size = 2;
  context.use_collectives = false;
  writer.set_up(context);
  context.rank = 1;
  expect_error(ErrorKind::kUnsupported, "without collectives rank 1", [&] { writer.set_up(context); });
  context.use_collectives = true;
  writer.set_up(context);
}

/// Which generation is found: exactly one, or none at all.
std::optional<int> generation_in(const std::shared_ptr<FileSystem>& files, const std::string& what) {
  StateDict found;
  try {
    found = Place{files}.rebuild("c");
  } catch (const CheckpointError& error) {
    EXPECT_EQ(error.failures().at(0).kind, ErrorKind::kNotFound) << what << ": " << error.what_without_backtrace();
    EXPECT_NE(std::string(error.what_without_backtrace()).find("incomplete checkpoint"), std::string::npos) << what;
    return std::nullopt;
  }
  const int generation = found.at("w").as_tensor().flatten()[0].item<float>() == 100.0f ? 1 : 2;
  EXPECT_EQ(difference_of(found, whole_state(generation)), "") << what;
  return generation;
}

/// A reader that takes every `*.safetensors` of the folder and knows no marker, as PyTorch's: it must fail, or find
/// nothing, where ours says that the checkpoint is incomplete.
void expect_plain_readers_fail(FileSystem& files, const std::string& what) {
  bool has_tensors = false;
  if (files.file_type("c") != FileType::kDirectory) return;
  for (const std::string& name : files.list_directory("c")) {
    if (!name.ends_with(".safetensors")) continue;
    try {
      header_of(files, join_path("c", name));
      has_tensors = true;
    } catch (const Error&) {
      return;
    }
  }
  EXPECT_FALSE(has_tensors) << what;
}

/// Saves that stop after 0, 1, 2, ... changes, and what a power cut then leaves.
class SafetensorsCrashRun {
 public:
  SafetensorsCrashRun(int world, SafetensorsWriterOptions options, bool has_old)
      : world_(world), options_(std::move(options)), has_old_(has_old) {}

  void run() {
    run_ranks(world_, [&](RankContext& ranks) {
      const auto communicator = std::make_shared<Communicator>(ranks.communicator());
      for (std::uint64_t stop = 0; !is_over_; ++stop) {
        ranks.note("stop after " + std::to_string(stop));
        if (ranks.rank() == 0) {
          medium_ = make_crashing_file_system();
          files_ = std::make_shared<FaultInjectingFileSystem>(medium_);
        }
        communicator->all_gather({});
        const Place place{files_, communicator};
        if (has_old_) save_safetensors(place, state_of(ranks, 1), "c", options_);
        communicator->all_gather({});
        if (ranks.rank() == 0) files_->stop_after_changes(stop);
        communicator->all_gather({});
        bool is_saved = false;
        try {
          save_safetensors(place, state_of(ranks, 2), "c", options_);
          is_saved = true;
        } catch (const CheckpointError&) {
        }
        communicator->all_gather({});
        if (ranks.rank() == 0) look(stop, is_saved);
        communicator->all_gather({});
      }
    });
    EXPECT_GT(stops_, 10u);
    std::set<std::optional<int>> wanted = {2, std::nullopt};
    if (has_old_) wanted.insert(1);
    EXPECT_EQ(found_, wanted);
  }

 private:
  void look(std::uint64_t stop, bool is_saved) {
    is_over_ = !files_->is_stopped();
    EXPECT_TRUE(is_saved || !is_over_);
    stops_ = stop;
    look_at(medium_->crash(CrashPolicy::kLoseUnsynced), c10::str("stop ", stop, ", unsynced lost"), is_saved);
    look_at(medium_->crash(CrashPolicy::kKeepAll), c10::str("stop ", stop, ", all kept"), is_saved);
    for (std::uint64_t seed = 0; seed < 6; ++seed) {
      look_at(medium_->crash(CrashPolicy::kTornWrites, seed), c10::str("stop ", stop, ", torn ", seed), is_saved);
    }
  }

  void look_at(const std::shared_ptr<FileSystem>& files, const std::string& what, bool is_saved) {
    const std::optional<int> generation = generation_in(files, what);
    found_.insert(generation);
    if (is_saved) {
      EXPECT_EQ(generation, 2) << what;
    }
    if (!has_old_) {
      EXPECT_NE(generation, 1) << what;
    }
    if (!generation) expect_plain_readers_fail(*files, what);
    // The next save clears all of it away.
    save_safetensors({files}, whole_state(2), "c", {.save_distributed = options_.save_distributed});
    EXPECT_EQ(generation_in(files, what), 2) << what;
    EXPECT_EQ(names_in(*files, "c").size(), options_.save_distributed ? 1u : 2u) << what;
  }

  int world_;
  SafetensorsWriterOptions options_;
  bool has_old_;
  std::shared_ptr<CrashingFileSystem> medium_;
  std::shared_ptr<FaultInjectingFileSystem> files_;
  std::atomic<bool> is_over_ = false;
  std::uint64_t stops_ = 0;
  std::set<std::optional<int>> found_;
};

const FqnToIndex kMapping = {{"w", 2}, {"cols", 1}, {"v", 1}, {"flag", 2}, {"few", 3}};

TEST(SafetensorsCrash, WholeFilesLeaveTheOldTheNewOrNothing) {
  SafetensorsCrashRun(1, {.fqn_to_index_mapping = kMapping}, true).run();
  SafetensorsCrashRun(1, {.fqn_to_index_mapping = kMapping}, false).run();
}

TEST(SafetensorsCrash, ShardsLeaveTheOldTheNewOrNothing) {
  SafetensorsCrashRun(2, {.save_distributed = true}, true).run();
  SafetensorsCrashRun(2, {.save_distributed = true}, false).run();
}

TEST(SafetensorsCrash, ConsolidationLeavesTheOldTheNewOrNothing) {
  SafetensorsCrashRun(2, {.fqn_to_index_mapping = kMapping, .save_distributed = true, .enable_consolidation = true},
                      true)
      .run();
}

TEST(SafetensorsFaults, EveryCallOfASaveFailsInTurn) {
  const std::vector<FileOp> ops = {FileOp::kCreate, FileOp::kAppend,        FileOp::kSync,
                                   FileOp::kClose,  FileOp::kList,          FileOp::kRemove,
                                   FileOp::kRename, FileOp::kSyncDirectory, FileOp::kCreateDirectories};
  int fault_count = 0;
  for (const FileOp op : ops) {
    for (std::uint64_t nth = 1;; ++nth) {
      const std::string what = c10::str(file_op_name(op), " ", nth);
      const auto files = std::make_shared<FaultInjectingFileSystem>(make_memory_file_system());
      const Place place{files};
      save_safetensors(place, whole_state(1), "c", {.fqn_to_index_mapping = kMapping});
      files->fail({.op = op, .nth = nth, .message = "the disk broke"});
      const std::string error =
          error_of([&] { save_safetensors(place, whole_state(2), "c", {.fqn_to_index_mapping = kMapping}); });
      files->clear_faults();
      const std::optional<int> generation = generation_in(files, what);
      if (error.empty()) {
        EXPECT_EQ(generation, 2) << what;
        break;
      }
      ++fault_count;
      EXPECT_NE(error.find("the disk broke"), std::string::npos) << what << ": " << error;
      save_safetensors(place, whole_state(2), "c", {.fqn_to_index_mapping = kMapping});
      EXPECT_EQ(generation_in(files, what), 2) << what;
      EXPECT_EQ(names_in(*files, "c").size(), 4u) << what;
    }
  }
  EXPECT_GT(fault_count, 25);
}

TEST(SafetensorsFileWriterTest, ChecksWhatItIsGiven) {
  const auto files = make_memory_file_system();
  SafetensorsFileWriter out(*files, "x.safetensors",
                            {{"b", at::kFloat, {2}}, {"a", at::kFloat, {3}}, {"l", at::kLong, {1}}});
  EXPECT_EQ(out.order()[0].name, "l");
  EXPECT_EQ(out.order()[1].name, "a");
  expect_error(ErrorKind::kShape, "'l' has sizes [2]", [&] { out.append(counted({2}, at::kLong)); });
  expect_error(ErrorKind::kType, "'l' is float32", [&] { out.append(counted({1})); });
  out.append(counted({1}, at::kLong));
  expect_error(ErrorKind::kState, "bytes have been written", [&] { out.close(); });
  out.append(counted({3}));
  expect_error(ErrorKind::kState, "more bytes", [&] { out.append_bytes(Bytes(9)); });
  out.append_bytes(Bytes(8));
  expect_error(ErrorKind::kState, "begins at byte", [&] { out.append(counted({2})); });
  out.close();
  EXPECT_TRUE(bit_equal(load_keys("x.safetensors", {"a"}, {.file_system = files}).at("a").as_tensor(), counted({3})));
}

TEST(SafetensorsFolderWriterTest, WritesTensorByTensorAndReplacesAtOnce) {
  const auto files = make_memory_file_system();
  const Place place{files};
  save_safetensors(place, StateDict{{"old", counted({2})}}, "c");
  {
    SafetensorsFolderWriter folder("c", {.file_system = files});
    const auto one = folder.begin_file(safetensors_file_name(1, 2), {{"w", at::kFloat, {2}}});
    one->append(counted({2}));
    one->close();
    expect_error(ErrorKind::kKey, "'w' is in model-00001-of-00002.safetensors already",
                 [&] { folder.begin_file(safetensors_file_name(2, 2), {{"w", at::kFloat, {2}}}); });
    expect_error(ErrorKind::kInvalidArgument, "was begun", [&] { folder.begin_file(safetensors_file_name(1, 2), {}); });
    expect_error(ErrorKind::kInvalidArgument, "no name", [&] { folder.begin_file("x.safetensors", {}); });
    EXPECT_EQ(difference_of(place.rebuild("c"), StateDict{{"old", counted({2})}}), "");
  }
  EXPECT_EQ(names_in(*files, "c"), (Strings{"model-00001-of-00001.safetensors", kIndexName}));  // no trace
  SafetensorsFolderWriter folder("c", {.file_system = files});
  const auto two = folder.begin_file(safetensors_file_name(2, 2), {{"v", at::kLong, {}}});
  two->append(at::full({}, 4, at::kLong));
  two->close();
  const auto one = folder.begin_file(safetensors_file_name(1, 2), {{"w", at::kFloat, {2}}});
  one->append(counted({2}));
  one->close();
  folder.commit();
  expect_error(ErrorKind::kState, "committed", [&] { folder.commit(); });
  EXPECT_EQ(difference_of(place.rebuild("c"), StateDict{{"v", at::full({}, 4, at::kLong)}, {"w", counted({2})}}), "");
  EXPECT_NE(text_of(*files, join_path("c", kIndexName)).find("\"total_size\": 16"), std::string::npos);
  expect_error(ErrorKind::kAlreadyExists, "overwriting is off",
               [&] { SafetensorsFolderWriter("c", {.overwrite = false, .file_system = files}); });
}

}  // namespace
}  // namespace dcp::test

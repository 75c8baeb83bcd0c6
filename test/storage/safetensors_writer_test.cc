#include "torch_dcp/storage/safetensors_writer.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "test/storage/safetensors_support.h"
#include "test/support/expect_error.h"
#include "test/support/fault_injecting_file_system.h"
#include "torch_dcp/storage/consolidate.h"
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
  const std::string id = *place_.metadata("c").storage_meta->save_id;
  Strings changes = files_->changes();
  for (std::string& change : changes) {
    if (change.starts_with("append ")) change.resize(change.rfind(' '));
    for (std::size_t at = change.find(id); at != std::string::npos; at = change.find(id)) {
      change.replace(at, id.size(), "ID");
    }
  }
  changes.erase(std::unique(changes.begin(), changes.end()), changes.end());
  const std::string data = "c/model-00001-of-00001.safetensors";
  const std::string index = join_path("c", kIndexName);
  const std::string marker = join_path("c", kMarkerName);
  EXPECT_EQ(changes, (Strings{"create_directories c",
                              "create " + data + ".ID.tmp",
                              "append " + data + ".ID.tmp",
                              "sync " + data + ".ID.tmp",
                              "close " + data + ".ID.tmp",
                              "sync_directory c",
                              "create " + marker + ".tmp",
                              "append " + marker + ".tmp",
                              "sync " + marker + ".tmp",
                              "close " + marker + ".tmp",
                              "rename " + marker + ".tmp " + marker,
                              "sync_directory c",
                              "remove " + index,
                              "remove " + data,
                              "sync_directory c",
                              "rename " + data + ".ID.tmp " + data,
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
  // A marker that names files is one of a checkpoint; what an unfinished save of an earlier version left is none.
  const auto leave_marker = [&](const std::string& text) { write_text(*files_, join_path("c", kMarkerName), text); };
  leave_marker("unfinished: a save into this folder has not come to its end\nsave x\nthe 0 files above are complete\n");
  const std::string marked = error_of([&] { save(a_, {.overwrite = false}); });
  EXPECT_NE(marked.find("there is a checkpoint already (model-save-unfinished.safetensors names its files)"),
            std::string::npos)
      << marked;
  leave_marker("unfinished: a save into this folder has not come to its end\n");
  save(a_, {.overwrite = false});
  EXPECT_EQ(names(), (Strings{"model-00001-of-00001.safetensors", kIndexName}));
  EXPECT_EQ(difference_of(place_.rebuild("c"), StateDict{{"w", a_.at("w")}, {"m.v", a_.at("m").as_dict().at("v")}}),
            "");
}

TEST_F(SafetensorsWriterTest, EveryFileTellsItsSave) {
  std::set<std::string> ids;
  for (const bool save_distributed : {false, true}) {
    run_ranks(3, [&](RankContext& ranks) {
      const Place place = place_of(ranks, files_);
      const StateDict whole = {{ranks.rank() == 0 ? "a" : "b", counted({2})}};
      const StateDict mine = save_distributed ? state_of(ranks, 1) : ranks.rank() == 2 ? StateDict() : whole;
      const Metadata metadata =
          save_safetensors(place, mine, "c",
                           {.fqn_to_index_mapping = save_distributed ? FqnToIndex() : FqnToIndex{{"a", 1}, {"b", 2}},
                            .save_distributed = save_distributed});
      if (ranks.rank() == 0) ids.insert(*metadata.storage_meta->save_id);
    });
    const std::string id = *place_.metadata("c").storage_meta->save_id;
    EXPECT_TRUE(ids.contains(id));  // the one that `save` returned
    int count = 0;
    for (const std::string& name : names()) {
      if (name == kIndexName) continue;
      ++count;
      const SafetensorsHeader header = header_of(*files_, join_path("c", name));
      EXPECT_EQ(*header.metadata.find("torch_dcp.save_id"), id) << name;
      EXPECT_EQ(*header.metadata.find("torch_dcp.file_count"), save_distributed ? "3" : "2") << name;
      for (const SafetensorsTensor& tensor : header.tensors) EXPECT_TRUE(tensor.global_size) << tensor.name;
    }
    EXPECT_EQ(count, save_distributed ? 3 : 2);
  }
  EXPECT_EQ(ids.size(), 2u);
}

TEST_F(SafetensorsWriterTest, ALostShardIsMissed) {
  const auto shard = [](int number) {
    return "c/shard-0000" + std::to_string(number) + "-model-00001-of-00001.safetensors";
  };
  for (const int lost : {1, 2, 3}) {
    SCOPED_TRACE(lost);
    run_ranks(3, [&](RankContext& ranks) {
      save_safetensors(place_of(ranks, files_), state_of(ranks, 1), "c", {.save_distributed = true});
    });
    files_->remove_file(shard(lost));
    const std::string error = error_of([&] { place_.rebuild("c"); });
    // 7 rows and 5 columns on 3 ranks: without the last shard the least size that holds the rest is a smaller one.
    const Strings rows = {"[0, 0] + [3, 3]", "[3, 0] + [3, 3]", "[6, 0] + [1, 3]"};
    const Strings columns = {"[0, 0] + [3, 2]", "[0, 2] + [3, 2]", "[0, 4] + [3, 1]"};
    for (const std::string& text : {std::string("2 of the 3 files of their save are there"), std::string("key 'w'"),
                                    std::string("elements of the size [7, 3]; none holds ") + rows.at(lost - 1),
                                    std::string("elements of the size [3, 5]; none holds ") + columns.at(lost - 1)}) {
      EXPECT_NE(error.find(text), std::string::npos) << text << " is not in " << error;
    }
    expect_error(ErrorKind::kCorruptData, "key 'cols'",
                 [&] { consolidate_safetensors("c", "out", {.file_system = files_}); });
  }
  // Of tensors that lie in the lost file alone nothing is left to tell.
  run_ranks(2, [&](RankContext& ranks) {
    const StateDict mine = {{ranks.rank() == 0 ? "a" : "b", counted({2})}};
    save_safetensors(place_of(ranks, files_), mine, "c", {.save_distributed = true});
  });
  files_->remove_file(shard(2));
  const std::string error = error_of([&] { place_.rebuild("c"); });
  EXPECT_NE(error.find("make no checkpoint: 1 of the 2 files of their save are there"), std::string::npos) << error;
}

TEST_F(SafetensorsWriterTest, LeftoversMakeRoomBeforeAnythingIsWritten) {
  save(a_);
  const std::string marked = "c/model-00002-of-00002.safetensors.00-aa.tmp";
  const Strings leftovers = {"c/model-00001-of-00001.safetensors.tmp", "c/model-00001-of-00001.safetensors.12ab-34.tmp",
                             "c/model.safetensors.index.json.tmp", "c/model-save-unfinished.safetensors.tmp"};
  const Strings others = {"c/model-00001-of-00001.safetensors.a_b.tmp", "c/notes.tmp", "c/x.safetensors.12ab.tmp"};
  for (const std::string& path : leftovers) write_text(*files_, path, "left");
  for (const std::string& path : others) write_text(*files_, path, "not ours");
  write_safetensors(*files_, marked, {{"x", counted({1})}});
  write_text(*files_, join_path("c", kMarkerName),
             "unfinished: a save into this folder has not come to its end\nsave 00-aa\n"
             "model-00002-of-00002.safetensors\nthe 1 files above are complete\n");
  files_->clear_trace();
  save(a_);
  const Strings changes = files_->changes();
  const auto place_of_change = [&](const std::string& text) {
    const auto found = std::find_if(changes.begin(), changes.end(),
                                    [&](const std::string& change) { return change.starts_with(text); });
    return found - changes.begin();
  };
  const auto first_create = place_of_change("create c/");
  for (const std::string& path : leftovers) EXPECT_LT(place_of_change("remove " + path), first_create) << path;
  // The only copy of what a marker names goes when the new marker is there.
  const auto marker_rename = place_of_change("rename " + join_path("c", kMarkerName));
  EXPECT_GT(place_of_change("remove " + marked), marker_rename);
  EXPECT_LT(place_of_change("remove " + marked), static_cast<std::ptrdiff_t>(changes.size()));
  for (const std::string& path : others) EXPECT_EQ(base_->file_type(path), FileType::kFile) << path;
  EXPECT_EQ(names().size(), 2 + others.size());
}

TEST_F(SafetensorsWriterTest, AFileOfTheSaveThatIsGoneKeepsTheOldCheckpoint) {
  save(a_);
  const auto before = contents_of(*base_, "c");
  SafetensorsFolderWriter folder("c", {.file_system = files_});
  const auto file = folder.begin_file(safetensors_file_name(1, 1), {{"w", at::kFloat, {2}}});
  file->append(counted({2}));
  file->close();
  for (const std::string& name : names()) {
    if (name.ends_with(".tmp")) base_->remove_file(join_path("c", name));
  }
  expect_error(ErrorKind::kIo, "is not there (has another one been into the folder?)", [&] { folder.commit(); });
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
  run_ranks(3, [&](RankContext& ranks) {
    save_safetensors(place_of(ranks, files_), state_of(ranks, 1), "c",
                     {.fqn_to_index_mapping = kMapping,
                      .save_distributed = true,
                      .enable_consolidation = true,
                      .thread_count_consolidation = 2});
  });
  EXPECT_EQ(names(), (Strings{"model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors",
                              "model-00003-of-00003.safetensors", kIndexName}));
  EXPECT_EQ(difference_of(place_.rebuild("c"), whole_state(1)), "");
  EXPECT_EQ(difference_of(place_.rebuild("c/sharded"), whole_state(1)), "");
  const SafetensorsHeader header = header_of(*files_, "c/model-00002-of-00003.safetensors");
  EXPECT_EQ(*header.metadata.find("format"), "pt");
  EXPECT_EQ(*header.metadata.find("torch_dcp.file_count"), "3");
  EXPECT_EQ(place_.metadata("c").storage_meta->save_id, place_.metadata("c/sharded").storage_meta->save_id);
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
  for (const FileOp op : {FileOp::kCreate, FileOp::kAppend, FileOp::kSync, FileOp::kClose, FileOp::kRename}) {
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
  // The marker that an earlier version's save left stays, for what that left is a mixture.
  write_text(*base_, join_path("c", kMarkerName), "");
  files_->fail({.op = FileOp::kSync, .path_contains = "save-unfinished", .message = "the disk is full"});
  EXPECT_NE(error_of([&] { save(a_); }), "");
  files_->clear_faults();
  EXPECT_NE(error_of([&] { place_.rebuild("c"); }).find("incomplete checkpoint"), std::string::npos);
}

TEST_F(SafetensorsWriterTest, AnErrorTellsWhetherTheNewCheckpointIsThere) {
  save(a_);
  // The marker of an earlier save, which cannot be read when this one would put its own there.
  write_text(*base_, join_path("c", kMarkerName),
             "unfinished: a save into this folder has not come to its end\nsave x\nmodel-00001-of-00001.safetensors\n"
             "the 1 files above are complete\n");
  const auto before = contents_of(*base_, "c");
  bool has_written = false;
  for (const FileOp op : {FileOp::kOpen, FileOp::kRead}) {
    has_written = false;
    files_->set_hook([&](const FileEvent& event) {
      has_written |= event.op == FileOp::kCreate;
      const bool is_marker = event.path == join_path("c", kMarkerName);
      DCP_CHECK(!has_written || event.op != op || !is_marker, kIo, "the disk broke");
    });
    const std::string error = error_of([&] { save(a_); });
    EXPECT_NE(error.find("the disk broke"), std::string::npos) << error;
    EXPECT_EQ(error.find("the new checkpoint"), std::string::npos) << error;
    EXPECT_EQ(contents_of(*base_, "c"), before);
  }
  // Its own is there, but neither synced nor to be read.
  bool is_renamed = false;
  files_->set_hook([&](const FileEvent& event) {
    is_renamed |= event.op == FileOp::kRename && event.to == join_path("c", kMarkerName);
    const bool is_read = event.op == FileOp::kOpen && event.path == join_path("c", kMarkerName);
    DCP_CHECK(!is_renamed || (event.op != FileOp::kSyncDirectory && !is_read), kIo, "the disk broke");
  });
  const std::string error = error_of([&] { save({{"w", counted({5})}}); });
  EXPECT_NE(error.find("the new checkpoint may be complete"), std::string::npos) << error;
  files_->clear_faults();
  EXPECT_EQ(difference_of(place_.rebuild("c"), StateDict{{"w", counted({5})}}), "");
}

TEST_F(SafetensorsWriterTest, ACheckpointThatComesMeanwhileIsNotOverwritten) {
  for (const bool enable_consolidation : {false, true}) {
    const auto base = make_memory_file_system();
    const auto files = std::make_shared<FaultInjectingFileSystem>(base);
    bool has_come = false;
    files->set_hook([&](const FileEvent& event) {
      if (has_come || event.op != FileOp::kAppend) return;
      has_come = true;
      save_safetensors({base}, {{"w", counted({2})}}, "c");
    });
    const std::string error = error_of([&] {
      save_safetensors(
          {files}, {{"w", counted({5})}}, "c",
          {.save_distributed = enable_consolidation, .enable_consolidation = enable_consolidation, .overwrite = false});
    });
    EXPECT_NE(error.find("overwriting is off"), std::string::npos) << error;
    EXPECT_EQ(difference_of(Place{base}.rebuild("c"), StateDict{{"w", counted({2})}}), "");
  }
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

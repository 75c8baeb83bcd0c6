#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include "test/checkpoint/checkpoint_support.h"
#include "test/support/expect_error.h"
#include "test/support/fault_injecting_file_system.h"
#include "torch_dcp/comm/codec.h"
#include "torch_dcp/plan/wire.h"
#include "torch_dcp/plan/write_items.h"
#include "torch_dcp/storage/filesystem_writer.h"
#include "torch_dcp/storage/storage_reader.h"
#include "torch_dcp/storage/storage_writer.h"

namespace dcp::test {
namespace {

void expect_same(const StateDict& state, const StateDict& wanted, const std::string& what = "") {
  EXPECT_EQ(first_difference(state, wanted), "") << what;
}

TEST(Save, EveryRankGetsTheSameMetadata) {
  const auto files = make_memory_file_system();
  std::vector<Bytes> metadata(3);
  run_ranks(3, [&](RankContext& ranks) {
    const StateDict state = {{"w", split(counted({7}), ranks)}, {"d", Dict{{"n", 1}, {"t", counted({2})}}}};
    metadata[static_cast<std::size_t>(ranks.rank())] = to_bytes(place_of(ranks, files).save(state, "c"));
  });
  EXPECT_FALSE(metadata[0].empty());
  EXPECT_EQ(metadata[1], metadata[0]);
  EXPECT_EQ(metadata[2], metadata[0]);
  EXPECT_EQ(to_bytes(Place{files}.metadata("c")), metadata[0]) << "and it is what was written";
}

TEST(Save, OneCommunicatorServesManySavesAndLoads) {
  const auto files = make_memory_file_system();
  run_ranks(3, [&](RankContext& ranks) {
    const Place place = place_of(ranks, files);
    for (int round = 0; round < 20; ++round) {
      const at::Tensor whole = counted({5}) + round;
      place.save({{"w", split(whole, ranks)}, {"round", round}}, "c");
      StateDict state = {{"w", split_pattern({5}, ranks)}, {"round", -1}};
      place.load(state, "c");
      expect_same(state, {{"w", split(whole, ranks)}, {"round", round}});
    }
    EXPECT_EQ(names_in(*files, "c").size(), 5u);
  });
}

// Only before the rename is it sure that nothing was committed, and what was written is removed.
TEST(Save, ACommitThatFailsInStorageLeavesTheOldOrTheNewWhole) {
  const std::string may_be = "it may have been committed; is_complete() and the metadata's save id tell";
  for (const FileOp op :
       {FileOp::kCreate, FileOp::kAppend, FileOp::kSync, FileOp::kClose, FileOp::kRename, FileOp::kSyncDirectory}) {
    SCOPED_TRACE(file_op_name(op));
    const auto files = std::make_shared<FaultInjectingFileSystem>(make_memory_file_system());
    ErrorsByRank errors(3);
    run_ranks(3, [&](RankContext& ranks) {
      const Place place = place_of(ranks, files);
      place.save({{"w", split(counted({7}), ranks)}}, "c");
      const auto before = contents_of(*files, "c");
      place.communicator->all_gather({});
      if (ranks.rank() == 0) {
        files->set_hook([=, is_renamed = std::make_shared<std::atomic<bool>>(false)](const FileEvent& event) {
          const bool is_of_commit = event.path == "c/.metadata.tmp" || (event.path == "c" && *is_renamed);
          DCP_CHECK(!is_of_commit || event.op != op, kIo, "the medium is broken");
          if (event.op == FileOp::kRename && event.to == "c/.metadata") *is_renamed = true;
        });
      }
      place.communicator->all_gather({});
      errors.run(ranks.rank(), [&] { place.save({{"w", split(counted({7}) + 1, ranks)}}, "c"); });
      place.communicator->all_gather({});
      if (ranks.rank() == 0) files->clear_faults();
      place.communicator->all_gather({});
      const bool is_committed = op == FileOp::kSyncDirectory;
      if (op != FileOp::kRename && !is_committed) {
        EXPECT_EQ(contents_of(*files, "c"), before) << "rank " << ranks.rank();
      }
      StateDict state = {{"w", split_pattern({7}, ranks)}};
      place.load(state, "c");
      expect_same(state, {{"w", split(counted({7}) + (is_committed ? 1 : 0), ranks)}});
    });
    errors.expect({0}, {"the medium is broken"});
    EXPECT_EQ(errors.text().find(may_be) != std::string::npos, op == FileOp::kRename || op == FileOp::kSyncDirectory)
        << errors.text();
    EXPECT_EQ(errors.error().step(), "commit");
  }
}

TEST(Save, AnyRankMayCoordinate) {
  const auto files = std::make_shared<FaultInjectingFileSystem>(make_memory_file_system());
  ErrorsByRank incomplete(3);
  run_ranks(3, [&](RankContext& ranks) {
    CommunicatorOptions options;
    options.coordinator = 2;
    const Place place = place_of(ranks, files, options);
    const StateDict state = {{"w", split(counted({7}), ranks)}, {"n", 4}};
    place.save(state, "c");
    place.save(state, "c");
    StateDict loaded = {{"w", split_pattern({7}, ranks)}, {"n", 0}};
    place.load(loaded, "c");
    expect_same(loaded, state);
    incomplete.run(ranks.rank(), [&] { place.load(loaded, "nowhere"); });
  });
  incomplete.expect({2}, {"incomplete checkpoint"});
}

// Of values that ranks have under one key, the lowest holder's counts.
TEST(Save, ObjectsThatDifferBetweenRanksAreThoseOfTheLowestHolder) {
  const auto files = make_memory_file_system();
  run_ranks(4, [&](RankContext& ranks) {
    StateDict state;
    for (int i = 0; i < 8; ++i) state["o" + std::to_string(i)] = 100 * ranks.rank() + i;
    if (ranks.rank() >= 2) state["late"] = ranks.rank();
    place_of(ranks, files).save(state, "c");
  });
  const StateDict found = Place{files}.rebuild("c");
  for (int i = 0; i < 8; ++i) EXPECT_EQ(found.at("o" + std::to_string(i)).as_int(), i);
  EXPECT_EQ(found.at("late").as_int(), 2);
}

TEST(Save, TensorsThatDifferBetweenRanksAreSavedFromOneRankWhole) {
  const auto files = make_memory_file_system();
  const auto save_to = [&](const std::string& path) {
    run_ranks(3, [&](RankContext& ranks) {
      StateDict state;
      for (int i = 0; i < 6; ++i) state["t" + std::to_string(i)] = at::full({50}, static_cast<double>(ranks.rank()));
      place_of(ranks, files).save(state, path);
    });
    return Place{files}.rebuild(path);
  };
  const StateDict first = save_to("c");
  for (const auto& [key, value] : first) {
    const at::Tensor& tensor = value.as_tensor();
    EXPECT_TRUE(bit_equal(tensor, at::full({50}, tensor[0].item<double>(), at::kFloat)));
  }
  expect_same(save_to("d"), first, "the same rank each time");
}

TEST(Save, WithoutCollectivesRanksWriteAndReadTheirOwn) {
  const auto files = make_memory_file_system();
  run_ranks(3, [&](RankContext& ranks) {
    const StateDict state = {{"w", split(counted({7}), ranks)}, {"n", ranks.rank()}};
    SaveOptions save_options;
    save_options.process_group = ranks.unconnected_group();
    save_options.use_collectives = false;
    Place{files}.save_with(state, "c", save_options);
    // Through the group and through a communicator, alone and together.
    const Place place = place_of(ranks, files);
    for (const bool use_collectives : {false, true}) {
      for (const bool has_communicator : {false, true}) {
        if (use_collectives && !has_communicator) continue;
        LoadOptions options;
        options.use_collectives = use_collectives;
        if (!has_communicator) options.process_group = ranks.unconnected_group();
        StateDict loaded = {{"w", split_pattern({7}, ranks)}, {"n", -1}};
        (has_communicator ? place : Place{files}).load(loaded, "c", options);
        const StateDict expected = {{"w", state.at("w")}, {"n", ranks.rank()}};
        expect_same(loaded, expected, c10::str("rank ", ranks.rank()));
      }
    }
    place.communicator->all_gather({});
    SaveOptions again;
    again.communicator = place.communicator;
    again.use_collectives = false;
    place.save_with(state, "c", again);
    place.communicator->all_gather({});
    if (ranks.rank() == 0) {
      EXPECT_EQ(names_in(*files, "c").size(), 6u) << "the old files went";
    }
    EXPECT_TRUE(is_complete("c", files));
  });
}

TEST(Save, WithoutCollectivesLoadsOnAnyWorldSize) {
  const auto files = make_memory_file_system();
  run_ranks(2, [&](RankContext& ranks) {
    SaveOptions options;
    options.process_group = ranks.unconnected_group();
    options.use_collectives = false;
    const StateDict state = {{"w", split(counted({7, 2}), ranks)}, {"same", counted({3})}, {"n", ranks.rank()}};
    Place{files}.save_with(state, "c", options);
  });
  const StateDict whole = {{"w", counted({7, 2})}, {"same", counted({3})}, {"n", 0}};
  for (const int world_size : {1, 2, 3}) {
    run_ranks(world_size, [&](RankContext& ranks) {
      // Of what both have saved each takes its own; who has not saved takes the lowest one's.
      const int own = ranks.rank() < 2 ? ranks.rank() : 0;
      const StateDict expected = {{"w", split(counted({7, 2}), ranks, 1)}, {"same", counted({3})}, {"n", own}};
      StateDict state = {{"w", split_pattern({7, 2}, ranks, 1)}, {"same", pattern({3})}, {"n", -1}};
      place_of(ranks, files).load(state, "c");
      expect_same(state, expected, c10::str("rank ", ranks.rank(), " of ", world_size));
    });
  }
  expect_same(Place{files}.rebuild("c"), whole, "rebuilt");
  const Metadata metadata = Place{files}.metadata("c");
  EXPECT_EQ(metadata.state_dict_metadata.size(), 3u);
  EXPECT_EQ(metadata.storage_data.size(), 4u) << "of what both ranks have one is taken";

  // A rank's part that is missing is a hole where the tensor is cut, and a gap in the names of the parts.
  const Bytes first = contents_of(*files, "c").at("__0.metadata");
  const Bytes second = contents_of(*files, "c").at("__1.metadata");
  files->remove_file("c/__1.metadata");
  StateDict state = {{"w", pattern({7, 2})}};
  const std::string hole = error_of([&] { Place{files}.load(state, "c"); });
  EXPECT_NE(hole.find("key 'w'"), std::string::npos) << hole;
  EXPECT_NE(hole.find("none holds [4, 0] + [3, 2]"), std::string::npos) << hole;
  files->remove_file("c/__0.metadata");
  write_file(*files, "c/__1.metadata", second);
  const std::string gap = error_of([&] { Place{files}.load(state, "c"); });
  EXPECT_NE(gap.find("c has __1.metadata but no __0.metadata"), std::string::npos) << gap;
  EXPECT_TRUE(is_pattern(state.at("w").as_tensor()));
  write_file(*files, "c/__0.metadata", first);
  Place{files}.load(state, "c");
}

TEST(Save, AFailureWithoutCollectivesHasTheRanksOwnNumber) {
  const auto files = std::make_shared<FaultInjectingFileSystem>(make_memory_file_system());
  files->fail({.op = FileOp::kAppend, .path_contains = "__1_", .is_lasting = true});
  run_ranks(2, [&](RankContext& ranks) {
    SaveOptions options;
    options.process_group = ranks.unconnected_group();
    options.use_collectives = false;
    try {
      Place{files}.save_with({{"w", split(counted({8}), ranks)}}, "c", options);
      EXPECT_EQ(ranks.rank(), 0);
    } catch (const CheckpointError& error) {
      EXPECT_EQ(ranks.rank(), 1);
      EXPECT_EQ(error.failures().at(0).rank, 1);
    }
  });
  EXPECT_EQ(names_in(*files, "c"), (std::vector<std::string>{"__0.metadata", "__0_0.distcp"}));
}

// A storage and planners that know nothing of the library's own.

struct Shelf {
  std::mutex mutex;
  Metadata metadata;
  std::map<std::string, at::Tensor> tensors;
  std::map<std::string, Value> objects;
  std::vector<std::string> calls;

  void note(const std::string& call) {
    const std::lock_guard lock(mutex);
    calls.push_back(call);
  }
};

class ShelfWriter final : public StorageWriter {
 public:
  explicit ShelfWriter(Shelf& shelf) : shelf_(shelf) {}

  void set_up(const StorageWriterContext& context) override {
    shelf_.note("set_up");
    rank_ = context.rank;
  }
  StorageMeta storage_meta() const override { return {"shelf", "first", {}}; }
  SavePlan prepare_local_plan(SavePlan plan) override {
    shelf_.note("prepare_local_plan");
    return plan;
  }
  std::vector<SavePlan> prepare_global_plan(std::vector<SavePlan> plans) override {
    shelf_.note("prepare_global_plan");
    for (std::size_t i = 0; i < plans.size(); ++i) plans[i].storage_data = "board " + std::to_string(i);
    return plans;
  }
  std::vector<WriteResult> write_data(const SavePlan& plan, const SavePlanner& planner) override {
    shelf_.note("write_data");
    EXPECT_EQ(plan.storage_data, "board " + std::to_string(rank_));
    std::vector<WriteResult> results;
    for (const WriteItem& item : plan.items) {
      const std::string name = dcp::to_string(item.index);
      const std::lock_guard lock(shelf_.mutex);
      if (item.is_tensor()) {
        shelf_.tensors[name] = planner.resolve_tensor(item).clone();
      } else {
        shelf_.objects[name] = planner.resolve_object(item);
      }
      results.push_back({item.index, 1, {name, 0, 1, {}}});
    }
    return results;
  }
  Metadata finish(Metadata metadata, const std::vector<std::vector<WriteResult>>& results) override {
    shelf_.note("finish");
    for (const auto& of_rank : results) {
      for (const WriteResult& result : of_rank) metadata.storage_data.insert(result.index, result.storage);
    }
    return shelf_.metadata = metadata;
  }
  void committed() noexcept override { shelf_.note("committed"); }
  void abort() noexcept override { shelf_.note("abort"); }

 private:
  Shelf& shelf_;
  int rank_ = -1;
};

class ShelfReader final : public StorageReader {
 public:
  explicit ShelfReader(Shelf& shelf) : shelf_(shelf) {}

  std::optional<Metadata> read_metadata() override { return shelf_.metadata; }
  void set_up(const Metadata&, const StorageReaderContext&) override {}
  void check(const LoadPlan& plan, LoadPlanner& planner) override {
    for (const ReadItem& item : plan.items) {
      if (item.type == ReadItemType::kByteIo)
        planner.load_object(item, shelf_.objects.at(dcp::to_string(item.storage_index)));
    }
  }
  void read_data(const LoadPlan& plan, LoadPlanner& planner) override {
    for (const ReadItem& item : plan.items) {
      if (item.type == ReadItemType::kByteIo) continue;
      at::Tensor stored = shelf_.tensors.at(dcp::to_string(item.storage_index));
      for (std::size_t d = 0; d < item.lengths.size(); ++d) {
        stored = stored.narrow(static_cast<std::int64_t>(d), item.storage_offsets[d], item.lengths[d]);
      }
      const at::Tensor destination = planner.resolve_tensor(item);
      destination.copy_(stored);
      planner.commit_tensor(item, destination);
    }
  }

 private:
  Shelf& shelf_;
};

/// Saves only the top-level tensors and ints.
class FlatPlanner final : public SavePlanner {
 public:
  void set_up(const StateDict& state, const SavePlannerContext& context) override {
    state_ = &state;
    context_ = context;
  }
  SavePlan create_local_plan() override {
    SavePlan plan;
    for (const auto& [key, value] : *state_) {
      for (auto& offered : create_write_items(dcp::to_string(key), value))
        plan.items.push_back(std::move(offered.item));
    }
    return plan;
  }
  std::pair<std::vector<SavePlan>, Metadata> create_global_plan(std::vector<SavePlan> plans) override {
    Metadata metadata;
    metadata.storage_meta = context_.storage_meta;
    for (SavePlan& plan : plans) {
      std::erase_if(plan.items, [&](const WriteItem& item) {
        return !item.is_tensor() && metadata.state_dict_metadata.contains(item.index.fqn);
      });
      for (const WriteItem& item : plan.items) {
        StorageMetadata& entry = metadata.state_dict_metadata[item.index.fqn];
        if (!item.is_tensor()) {
          entry = BytesStorageMetadata{};
          continue;
        }
        if (!std::holds_alternative<TensorStorageMetadata>(entry) ||
            std::get<TensorStorageMetadata>(entry).chunks.empty()) {
          entry = TensorStorageMetadata{item.properties, item.size, {}};
        }
        std::get<TensorStorageMetadata>(entry).chunks.push_back(item.chunk);
      }
    }
    return {std::move(plans), std::move(metadata)};
  }
  SavePlan finish_plan(SavePlan plan) override { return plan; }
  at::Tensor resolve_tensor(const WriteItem& item) const override {
    return create_write_items(item.index.fqn, state_->at(item.index.fqn)).at(0).view;
  }
  const Value& resolve_object(const WriteItem& item) const override { return state_->at(item.index.fqn); }

 private:
  const StateDict* state_ = nullptr;
  SavePlannerContext context_;
};

TEST(Save, StorageAndPlannerMayBeOfTheProgramsOwn) {
  Shelf shelf;
  run_ranks(2, [&](RankContext& ranks) {
    const auto communicator = std::make_shared<Communicator>(ranks.communicator());
    ShelfWriter writer(shelf);
    SaveOptions options;
    options.communicator = communicator;
    options.planner = std::make_shared<FlatPlanner>();
    const Metadata metadata = save({{"w", split(counted({5}), ranks)}, {"n", 9}}, writer, options);
    EXPECT_EQ(metadata.storage_meta->save_id, "first");
    EXPECT_EQ(metadata.storage_data.size(), 3u);
    ShelfReader reader(shelf);
    LoadOptions load_options;
    load_options.communicator = communicator;
    StateDict state = {{"w", split_pattern({5}, ranks)}, {"n", 0}};
    load(state, reader, load_options);
    expect_same(state, {{"w", split(counted({5}), ranks)}, {"n", 9}});
  });
  StateDict whole = {{"w", pattern({5})}, {"n", 0}};
  ShelfReader reader(shelf);
  load(whole, reader);
  expect_same(whole, {{"w", counted({5})}, {"n", 9}});
  std::map<std::string, int> counts;
  for (const std::string& call : shelf.calls) ++counts[call];
  EXPECT_EQ(counts, (std::map<std::string, int>{{"set_up", 2},
                                                {"prepare_local_plan", 2},
                                                {"prepare_global_plan", 1},
                                                {"write_data", 2},
                                                {"finish", 1},
                                                {"committed", 2}}));
}

/// Gives one result too few.
class ForgetfulWriter final : public FileSystemWriter {
 public:
  using FileSystemWriter::FileSystemWriter;
  std::vector<WriteResult> write_data(const SavePlan& plan, const SavePlanner& planner) override {
    auto results = FileSystemWriter::write_data(plan, planner);
    results.pop_back();
    return results;
  }
};

TEST(Save, AWriterThatReportsTooFewResultsIsCaught) {
  const auto files = make_memory_file_system();
  ForgetfulWriter writer("c", {.file_system = files});
  const std::string text = error_of([&] { save({{"a", 1}, {"b", 2}}, writer); });
  EXPECT_NE(text.find("1 results for 2 items"), std::string::npos) << text;
  EXPECT_TRUE(contents_of(*files, "c").empty());
}

}  // namespace
}  // namespace dcp::test

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "test/checkpoint/checkpoint_support.h"
#include "test/support/expect_error.h"
#include "torch_dcp/plan/default_load_planner.h"
#include "torch_dcp/plan/default_save_planner.h"
#include "torch_dcp/storage/filesystem_reader.h"
#include "torch_dcp/storage/filesystem_writer.h"

// Planners and storages of a program's own that do not do what they must.

namespace dcp::test {
namespace {

/// Gives a plan too few.
class ShortSavePlanner final : public DefaultSavePlanner {
 public:
  std::pair<std::vector<SavePlan>, Metadata> create_global_plan(std::vector<SavePlan> plans) override {
    auto global = DefaultSavePlanner::create_global_plan(std::move(plans));
    global.first.pop_back();
    return global;
  }
};

class ShortWriter final : public FileSystemWriter {
 public:
  using FileSystemWriter::FileSystemWriter;
  std::vector<SavePlan> prepare_global_plan(std::vector<SavePlan> plans) override {
    plans.pop_back();
    return plans;
  }
};

class ShortLoadPlanner final : public DefaultLoadPlanner {
 public:
  std::vector<LoadPlan> create_global_plan(std::vector<LoadPlan> plans) override {
    plans.pop_back();
    return plans;
  }
};

class ShortReader final : public FileSystemReader {
 public:
  using FileSystemReader::FileSystemReader;
  std::vector<LoadPlan> prepare_global_plan(std::vector<LoadPlan> plans) override {
    plans.pop_back();
    return plans;
  }
};

TEST(BrokenParts, AGlobalPlanWithoutAPartForEachRankIsCaught) {
  const auto files = make_memory_file_system();
  std::vector<ErrorsByRank> errors(4, ErrorsByRank(2));
  run_ranks(2, [&](RankContext& ranks) {
    const Place place = place_of(ranks, files);
    const int rank = ranks.rank();
    const StateDict saved = {{"w", split(counted({4}), ranks)}};
    place.save(saved, "c");
    place.communicator->all_gather({});
    const std::map<std::string, Bytes> before = contents_of(*files, "c");

    SaveOptions save_options;
    save_options.communicator = place.communicator;
    save_options.planner = std::make_shared<ShortSavePlanner>();
    errors[0].run(rank, [&] { place.save_with(saved, "c", save_options); });
    save_options.planner = nullptr;
    ShortWriter writer("c", {.file_system = files});
    errors[1].run(rank, [&] { dcp::save(saved, writer, save_options); });

    StateDict state = {{"w", split_pattern({4}, ranks)}};
    LoadOptions load_options;
    load_options.communicator = place.communicator;
    load_options.planner = std::make_shared<ShortLoadPlanner>();
    errors[2].run(rank, [&] { place.load(state, "c", load_options); });
    load_options.planner = nullptr;
    ShortReader reader("c", {.file_system = files});
    errors[3].run(rank, [&] { dcp::load(state, reader, load_options); });
    EXPECT_TRUE(is_pattern(state.at("w").as_dtensor().local()));

    place.communicator->all_gather({});
    EXPECT_EQ(contents_of(*files, "c"), before);
    place.load(state, "c");
    EXPECT_EQ(first_difference(state, saved), "");
  });
  for (const ErrorsByRank& of_one : errors) {
    of_one.expect({0}, {"the global plan has 1 parts for 2 ranks"});
    EXPECT_EQ(of_one.kind(), ErrorKind::kInternal);
  }
}

/// Tells of one item twice and of another one not at all.
class RepeatingWriter final : public FileSystemWriter {
 public:
  using FileSystemWriter::FileSystemWriter;
  std::vector<WriteResult> write_data(const SavePlan& plan, const SavePlanner& planner) override {
    auto results = FileSystemWriter::write_data(plan, planner);
    results.back() = results.front();
    return results;
  }
};

TEST(BrokenParts, AnItemWithTwoResultsIsCaught) {
  const Place place;
  const StateDict old = {{"a", 1}};
  place.save(old, "c");
  RepeatingWriter writer("c", {.file_system = place.files});
  expect_error(ErrorKind::kInternal, "written twice",
               [&] { dcp::save({{"a", counted({2})}, {"b", counted({3})}}, writer); });
  EXPECT_EQ(first_difference(place.rebuild("c"), old), "");
}

/// Has its destinations read into a tensor that it makes smaller before it fails.
class ShrinkingPlanner final : public DefaultLoadPlanner {
 public:
  at::Tensor resolve_tensor(const ReadItem&) override { return elsewhere_; }
  void commit_tensor(const ReadItem&, const at::Tensor&) override {
    elsewhere_.resize_({2});
    DCP_THROW(kState, "the planner gave up");
  }

 private:
  at::Tensor elsewhere_ = pattern({4});
};

TEST(BrokenParts, ARollbackThatFailsIsToldBesideTheErrorOfTheLoad) {
  const Place place;
  place.save({{"w", counted({4})}}, "c");
  StateDict state = {{"w", pattern({4})}};
  LoadOptions options;
  options.rollback = true;
  options.planner = std::make_shared<ShrinkingPlanner>();
  const std::string text = error_of([&] { place.load(state, "c", options); });
  for (const char* part : {"the planner gave up", "this rank could not put its destinations back"}) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  }
  EXPECT_EQ(text.find("have been put back"), std::string::npos) << text;
}

}  // namespace
}  // namespace dcp::test

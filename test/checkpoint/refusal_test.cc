// What a save or load refuses or tells, where it could have gone on in silence.

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <memory>
#include <string>

#include "test/checkpoint/checkpoint_support.h"
#include "test/support/expect_error.h"
#include "test/support/fault_injecting_file_system.h"
#include "torch_dcp/io/local_file_system.h"
#include "torch_dcp/plan/default_load_planner.h"
#include "torch_dcp/state_dict/stateful.h"
#include "torch_dcp/storage/filesystem_reader.h"

namespace dcp::test {
namespace {

TEST(RefusalTest, AnEmptyDictDoesNotEmptyAFullOne) {
  const Place place;
  place.save({{"a", Dict{}}, {"b", Dict{{"y", 2}}}}, "c");
  StateDict state = {{"a", Dict{{"x", 1}}}, {"b", Dict{{"y", 0}}}};
  expect_error(ErrorKind::kKey, "'a.x': missing", [&] { place.load(state, "c"); });
  EXPECT_EQ(state.at("a").as_dict().at("x").as_int(), 1);
  EXPECT_EQ(state.at("b").as_dict().at("y").as_int(), 0);

  LoadOptions options;
  options.partial = true;
  const LoadReport report = place.load(state, "c", options);
  EXPECT_EQ(report.missing, std::vector<std::string>{"a.x"});
  EXPECT_EQ(state.at("a").as_dict().at("x").as_int(), 1);
  EXPECT_EQ(state.at("b").as_dict().at("y").as_int(), 2);
}

TEST(RefusalTest, O25_StoredEntriesOfOneTensorThatDiffer) {
  const Place place;
  place.save({{"a", at::full({4}, 1.f)}, {"b", at::full({4}, 2.f)}, {"same", at::full({4}, 1.f)}}, "c");
  const at::Tensor tied = pattern({4});
  StateDict state = {{"a", tied}, {"b", tied}};
  for (const char* name : {"'a'", "'b'"}) expect_error(ErrorKind::kKey, name, [&] { place.load(state, "c"); });
  StateDict agreeing = {{"a", tied}, {"same", tied}};
  place.load(agreeing, "c");
  EXPECT_TRUE(bit_equal(tied, at::full({4}, 1.f)));
  LoadOptions options;
  options.partial = true;
  tied.zero_();
  place.load(state, "c", options);
  EXPECT_TRUE(bit_equal(tied, at::full({4}, 1.f))) << "the first name counts";
}

TEST(RefusalTest, AnExpandedDestinationBeforeAnythingChanges) {
  const Place place;
  place.save({{"a", counted({3})}, {"e", counted({4, 8})}}, "c");
  StateDict state = {{"a", pattern({3})}, {"e", pattern({4, 1}).expand({4, 8})}};
  expect_error(ErrorKind::kInvalidArgument, "key 'e'", [&] { place.load(state, "c"); });
  EXPECT_TRUE(is_pattern(state.at("a").as_tensor()));
}

TEST(RefusalTest, WhatCannotBeStoredBeforeTheOldCheckpointGoes) {
  const Place place;
  place.save({{"n", 1}}, "c");
  const auto before = contents_of(*place.files, "c");
  FileSystemWriterOptions revoke;
  revoke.overwrite_form = OverwriteForm::kRevokeFirst;
  const DTensor quantized = DTensor::empty({3}, at::kQInt8, DeviceMesh::make({1}, 0), {Placement::replicate()});
  expect_error(ErrorKind::kUnsupported, "key 'q'", [&] { place.save({{"q", quantized}}, "c", revoke); });
  expect_error(ErrorKind::kInvalidArgument, "without a quantizer",
               [&] { place.save({{"q", at::empty({3}, at::kQInt8)}}, "c", revoke); });
  const DTensor shard = DTensor::distribute(counted({3}), DeviceMesh::make({1}, 0), {Placement::shard(0)});
  const Tuple pair = {Value(1), Value(Dict{{"d", shard}})};
  expect_error(ErrorKind::kUnsupported, "[1]['d']", [&] { place.save({{"pair", pair}}, "c", revoke); });
  EXPECT_EQ(contents_of(*place.files, "c"), before);
}

TEST(RefusalTest, OverwriteOffMindsCheckpointsOfSingleRanks) {
  const Place place;
  SaveOptions alone;
  alone.use_collectives = false;
  place.save_with({{"n", 1}}, "c", alone);
  const auto before = contents_of(*place.files, "c");
  FileSystemWriterOptions keep;
  keep.overwrite = false;
  expect_error(ErrorKind::kAlreadyExists, "__0.metadata", [&] { place.save({{"n", 2}}, "c", keep); });
  EXPECT_EQ(contents_of(*place.files, "c"), before);
}

TEST(RefusalTest, PartsOfSomeRanksAreNotTheWhole) {
  const auto files = make_memory_file_system();
  run_ranks(3, [&](RankContext& ranks) {
    SaveOptions options;
    options.use_collectives = false;
    const StateDict state = {{"w", split(counted({6}), ranks)}, {"other", counted({ranks.rank() + 1})}};
    place_of(ranks, files).save_with(state, "c", options);
  });
  StateDict state = {{"w", pattern({6})}};
  expect_error(ErrorKind::kCorruptData,
               "a float32 tensor of size [1] on rank 0 and a float32 tensor of size [2] on rank 1",
               [&] { Place{files}.load(state, "c"); });
  expect_error(ErrorKind::kCorruptData, "key 'other'", [&] { Place{files}.rebuild("c"); });
  files->remove_file("c/__2.metadata");
  expect_error(ErrorKind::kCorruptData, "none holds [4] + [2]", [&] { Place{files}.load(state, "c"); });
  EXPECT_TRUE(is_pattern(state.at("w").as_tensor()));
}

TEST(RefusalTest, FilesOfACheckpointThatAreSymbolicLinks) {
  namespace fs = std::filesystem;
  const Place place{local_file_system()};
  const StateDict saved = {{"w", counted({4})}, {"n", 1}};
  for (const std::string name : {"__0_0.distcp", ".metadata"}) {
    SCOPED_TRACE(name);
    const fs::path folder = fs::path(::testing::TempDir()) / ("links" + name);
    const std::string file = folder / name;
    place.save(saved, folder);
    fs::create_symlink(folder, folder.string() + "_latest");
    EXPECT_EQ(first_difference(place.rebuild(folder.string() + "_latest"), saved), "") << "the folder may be a link";
    fs::rename(file, file + ".elsewhere");
    fs::create_symlink(file + ".elsewhere", file);

    StateDict state = {{"w", pattern({4})}, {"n", 0}};
    const std::string text = error_of([&] { place.load(state, folder); });
    EXPECT_NE(text.find(file + " is a symbolic link"), std::string::npos) << text;
    EXPECT_TRUE(is_pattern(state["w"].as_tensor()));
    EXPECT_FALSE(is_complete(folder));
    place.load(state, folder, {}, {.follow_links = true});
    EXPECT_EQ(first_difference(state, saved), "");

    place.save({{"w", counted({4}) + 1}, {"n", 2}}, folder);
    place.load(state, folder);
    EXPECT_EQ(state["n"].as_int(), 2);
    EXPECT_TRUE(fs::exists(file + ".elsewhere")) << "only the link goes";
  }
}

TEST(RefusalTest, WhatIsNoRegularFile) {
  namespace fs = std::filesystem;
  const Place place{local_file_system()};
  const fs::path folder = fs::path(::testing::TempDir()) / "no_files";
  const auto expect_named = [&](const fs::path& file) {
    StateDict state = {{"w", pattern({4})}};
    const std::string text = error_of([&] { place.load(state, folder); });
    EXPECT_NE(text.find(file.string() + " is not a regular file"), std::string::npos) << text;
    EXPECT_FALSE(is_complete(folder));
  };
  place.save({{"w", counted({4})}}, folder);
  fs::remove(folder / "__0_0.distcp");
  ASSERT_EQ(::mkfifo((folder / "__0_0.distcp").c_str(), 0600), 0);
  expect_named(folder / "__0_0.distcp");
  fs::remove(folder / ".metadata");
  fs::create_directory(folder / ".metadata");
  expect_named(folder / ".metadata");
}

TEST(RefusalTest, MoreFilesThanMayBeOpenAtOnce) {
  const Place place;
  StateDict saved;
  StateDict loaded;
  for (int i = 0; i < 300; ++i) {
    saved["t" + std::to_string(i)] = at::full({2}, static_cast<float>(i));
    loaded["t" + std::to_string(i)] = pattern({2});
  }
  FileSystemWriterOptions one_each;
  one_each.single_file_per_rank = false;
  place.save(saved, "c", one_each);
  place.load(loaded, "c", {}, {.thread_count = 3});
  EXPECT_EQ(first_difference(loaded, saved), "");
}

TEST(RefusalTest, AWrongIdOnOneRankIsEveryRanksError) {
  ErrorsByRank errors(2);
  const auto files = make_memory_file_system();
  run_ranks(2, [&](RankContext& ranks) {
    const Place place = place_of(ranks, files);
    errors.run(ranks.rank(), [&] { place.save({{"n", 1}}, ranks.rank() == 1 ? "s3://c" : "c"); });
    place.save({{"n", 1}}, "c");
  });
  errors.expect({1}, {"s3://c"});
}

/// Refuses its state on one rank.
class Picky final : public Stateful {
 public:
  explicit Picky(bool refuses) : refuses_(refuses) {}
  Dict state_dict() override { return {{"n", 1}}; }
  void load_state_dict(const Dict&) override { DCP_CHECK(!refuses_, kState, "not this"); }

 private:
  bool refuses_;
};

TEST(RefusalTest, AFailureToApplyIsToldOrUndone) {
  const auto files = make_memory_file_system();
  for (const bool rollback : {false, true}) {
    ErrorsByRank errors(2);
    run_ranks(2, [&](RankContext& ranks) {
      const Place place = place_of(ranks, files);
      place.save({{"t", counted({4})}, {"n", 5}, {"s", std::make_shared<Picky>(false)}}, "c");
      StateDict state = {{"t", pattern({4})}, {"n", 0}, {"s", std::make_shared<Picky>(ranks.rank() == 1)}};
      const at::Tensor live = state.at("t").as_tensor();
      LoadOptions options;
      options.rollback = rollback;
      errors.run(ranks.rank(), [&] { place.load(state, "c", options); });
      EXPECT_EQ(is_pattern(live), rollback);
      if (rollback) {
        EXPECT_EQ(state.at("n").as_int(), 0);
      }
    });
    errors.expect({1}, {"not this"});
    EXPECT_NE(errors.text().find(rollback ? "put back, but for what Stateful objects have taken over"
                                          : "all tensors have been loaded"),
              std::string::npos)
        << errors.text();
  }
}

}  // namespace
}  // namespace dcp::test

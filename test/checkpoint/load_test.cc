#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "test/checkpoint/checkpoint_support.h"
#include "test/support/expect_error.h"
#include "test/support/fault_injecting_file_system.h"
#include "torch_dcp/plan/default_load_planner.h"
#include "torch_dcp/storage/filesystem_reader.h"

namespace dcp::test {
namespace {

void expect_same(const StateDict& state, const StateDict& wanted, const std::string& what = "") {
  EXPECT_EQ(first_difference(state, wanted), "") << what;
}

void expect_text(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    EXPECT_NE(text.find(part), std::string::npos) << "\"" << part << "\" is not in: " << text;
  }
}

/// Two ranks, two tensors each in a file of its own; the second one of rank 1 cannot be read.
class ReadFault {
 public:
  ReadFault() {
    run_ranks(2, [&](RankContext& ranks) {
      place_of(ranks, files).save(state_of(ranks), "c", {.single_file_per_rank = false});
    });
  }

  static StateDict state_of(const RankContext& ranks) {
    return {{"a", split(counted({6}), ranks)}, {"b", split(counted({6}) + 10, ranks)}, {"n", 3}};
  }
  static StateDict blank(const RankContext& ranks) {
    return {{"a", split_pattern({6}, ranks)}, {"b", split_pattern({6}, ranks)}, {"n", 0}};
  }

  ErrorsByRank load(const LoadOptions& options,
                    const std::function<void(int rank, const StateDict&, RankContext&)>& look) {
    ErrorsByRank errors(2);
    run_ranks(2, [&](RankContext& ranks) {
      const Place place = place_of(ranks, files);
      if (ranks.rank() == 0) damage();
      place.communicator->all_gather({});
      StateDict state = blank(ranks);
      errors.run(ranks.rank(), [&] { place.load(state, "c", options); });
      look(ranks.rank(), state, ranks);
    });
    return errors;
  }

  std::shared_ptr<FaultInjectingFileSystem> files =
      std::make_shared<FaultInjectingFileSystem>(make_memory_file_system());

 private:
  /// A bit of the elements of `b` on rank 1, which nothing but its checksum tells.
  void damage() {
    const Metadata metadata = Place{files}.metadata("c");
    const StorageInfo info = *metadata.storage_data.find({"b", Sizes{3}, {}});
    Bytes bytes = contents_of(*files, "c").at(info.relative_path);
    const Bytes thirteen = {0, 0, 0x50, 0x41};
    const auto element = std::search(bytes.begin(), bytes.end(), thirteen.begin(), thirteen.end());
    ASSERT_NE(element, bytes.end());
    *element ^= 1;
    write_file(*files, "c/" + info.relative_path, bytes);
  }
};

TEST(Load, AFaultWhileReadingListsWhatWasChanged) {
  ReadFault fault;
  const ErrorsByRank errors = fault.load({}, [](int rank, const StateDict& state, RankContext& ranks) {
    EXPECT_EQ(state.at("n").as_int(), 0) << "objects come last";
    if (rank == 1) expect_same({{"a", state.at("a")}}, {{"a", ReadFault::state_of(ranks).at("a")}});
  });
  errors.expect({1}, {"CRC-32", "b at [3]", "changed already: a at [3], b at [3]"});
  EXPECT_EQ(errors.error().step(), "read");
  expect_text(errors.text(), {"tensors of ranks that are not listed may have been changed"});
}

TEST(Load, RollbackPutsEverythingBackOnEveryRank) {
  ReadFault fault;
  LoadOptions options;
  options.rollback = true;
  const ErrorsByRank errors = fault.load(options, [](int, const StateDict& state, RankContext& ranks) {
    expect_same(state, ReadFault::blank(ranks), c10::str("rank ", ranks.rank()));
  });
  errors.expect({1}, {"CRC-32"});
  expect_text(errors.text(), {"all destinations have been put back"});
}

TEST(Load, RollbackOfViewsLeavesTheirNeighbours) {
  const auto files = std::make_shared<FaultInjectingFileSystem>(make_memory_file_system());
  const Place place{files};
  place.save({{"a", counted({3, 2})}, {"b", counted({4})}}, "c", {.single_file_per_rank = false});
  LoadOptions options;
  options.rollback = true;
  const at::Tensor base = pattern({5, 5});
  StateDict state = {{"a", base.narrow(0, 1, 2).narrow(1, 1, 3).t()}, {"b", pattern({4})}};
  files->fail({.op = FileOp::kRead, .path_contains = "__0_1", .nth = 4, .is_lasting = true});
  std::string text;
  for (std::uint64_t nth = 1; text.find("put back") == std::string::npos; ++nth) {
    ASSERT_LT(nth, 20u) << text;
    files->clear_faults();
    files->fail({.op = FileOp::kRead, .path_contains = "__0_1", .nth = nth});
    text = error_of([&] { place.load(state, "c", options); });
    ASSERT_NE(text, "");
    EXPECT_TRUE(is_pattern(base));
    EXPECT_TRUE(is_pattern(state.at("b").as_tensor()));
  }
  files->clear_faults();
  place.load(state, "c", options);
  expect_same(state, {{"a", counted({3, 2})}, {"b", counted({4})}});
}

TEST(Load, EverythingIsCheckedOnAllRanksBeforeAnythingChanges) {
  const auto files = make_memory_file_system();
  ErrorsByRank errors(2);
  run_ranks(2, [&](RankContext& ranks) {
    const Place place = place_of(ranks, files);
    place.save({{"w", split(counted({4}), ranks)}, {"n", 1}}, "c");
    if (ranks.rank() == 1) {
      // Rank 1's own part has a good size, but is no item.
      Bytes bytes = contents_of(*files, "c").at("__1_0.distcp");
      std::fill(bytes.begin(), bytes.end(), 0);
      write_file(*files, "c/__1_0.distcp", bytes);
    }
    place.communicator->all_gather({});
    StateDict state = {{"w", split_pattern({4}, ranks)}, {"n", 0}};
    errors.run(ranks.rank(), [&] { place.load(state, "c"); });
    expect_same(state, {{"w", split_pattern({4}, ranks)}, {"n", 0}}, c10::str("rank ", ranks.rank()));
  });
  errors.expect({1}, {"c/__1_0.distcp", "w at [2]"});
  EXPECT_EQ(errors.error().step(), "check");
}

TEST(Load, AnObjectOfAnotherKindIsNamedBeforeAnythingChanges) {
  const Place place;
  place.save({{"w", counted({2})}, {"n", 1}, {"m", "text"}}, "c");
  StateDict state = {{"w", pattern({2})}, {"n", "one"}, {"m", 3}};
  expect_text(error_of([&] { place.load(state, "c"); }), {"'n'", "'m'", "c/__0_0.distcp"});
  EXPECT_TRUE(is_pattern(state.at("w").as_tensor()));
}

TEST(Load, PartialAndConversionsAreReported) {
  const Place place;
  place.save({{"m", Dict{{"w", counted({2}, at::kHalf)}, {"v", counted({2})}}}, {"old", 1}}, "c");
  StateDict state = {{"m", Dict{{"w", pattern({2}, at::kFloat)}, {"new", pattern({1})}}}, {"n", 7}};
  LoadOptions options;
  options.partial = true;
  const LoadReport report = place.load(state, "c", options);
  EXPECT_EQ(report.missing, (std::vector<std::string>{"m.new", "n"}));
  EXPECT_EQ(report.unexpected, (std::vector<std::string>{"m.v", "old"}));
  EXPECT_EQ(report.converted, (std::vector<DtypeConversion>{{"m.w", "float16", "float32"}}));
  expect_same(state, {{"m", Dict{{"w", counted({2})}, {"new", pattern({1})}}}, {"n", 7}});
  options.dtype_policy = DtypePolicy::kExact;
  expect_text(error_of([&] { place.load(state, "c", options); }), {"'m.w'", "float16", "float32"});
}

TEST(Load, GradientsAreNeitherSavedNorTouched) {
  const Place place;
  const auto parameter = [](double value) {
    at::Tensor tensor = at::full({3}, value).requires_grad_(true);
    tensor.mutable_grad() = at::full({3}, -value);
    return tensor;
  };
  const Metadata metadata = place.save({{"p", parameter(1)}}, "c");
  EXPECT_EQ(metadata.state_dict_metadata.size(), 1u);
  EXPECT_TRUE(std::get<TensorStorageMetadata>(*metadata.state_dict_metadata.find("p")).properties.requires_grad);
  const at::Tensor live = parameter(2);
  const at::Tensor gradient = live.grad();
  StateDict state = {{"p", live}};
  place.load(state, "c");
  EXPECT_TRUE(bit_equal(live.detach(), at::full({3}, 1.0)));
  EXPECT_TRUE(live.requires_grad() && live.is_leaf());
  EXPECT_TRUE(live.grad().is_same(gradient));
  EXPECT_TRUE(bit_equal(gradient, at::full({3}, -2.0)));
}

StateDict typed_state() {
  return {{"state", Dict{{Key(std::int64_t{0}), Dict{{"step", counted({}) + 3}}}, {Key(std::int64_t{-7}), Dict{}}}},
          {"groups", List{Dict{{"lr", 0.1}, {"betas", Tuple{0.9, 0.999}}, {"params", List{0, 1}}}, Dict{{"lr", 0.2}}}},
          {"nested", List{List{counted({2}), List{counted({1}), 5}}, "text"}},
          {"plain list", List{1, "two", 3.0, true, None()}},
          {"tuple", Tuple{1, Tuple{"a", List{2}}, Dict{{"k", None()}}}},
          {"empty", Dict{}},
          {"empty list", List{}},
          {"none", None()},
          {"bytes", Bytes{0, 1, 255}}};
}

TEST(LoadKeys, TypesOfKeysAndContainersComeBack) {
  const Place place;
  place.save(typed_state(), "c");
  expect_same(place.rebuild("c"), typed_state());
}

TEST(LoadKeys, WithoutTheSideFileIntegerKeysAreText) {
  const Place place;
  const Metadata metadata = place.save(typed_state(), "c");
  place.files->remove_file("c/.torch_dcp-" + *metadata.storage_meta->save_id + ".json");
  StateDict wanted = typed_state();
  wanted["state"] = Dict{{"0", Dict{{"step", counted({}) + 3}}}, {"-7", Dict{}}};
  expect_same(place.rebuild("c"), wanted);
  EXPECT_TRUE(is_complete("c", place.files));
  // Into a dict that has them it makes no difference.
  StateDict state = typed_state();
  state["state"].as_dict().at(Key(std::int64_t{0})).as_dict()["step"] = pattern({});
  place.load(state, "c");
  expect_same(state, typed_state());
}

TEST(LoadKeys, IntegerKeysOfASaveWithoutCollectivesComeBack) {
  const Place place;
  SaveOptions alone;
  alone.use_collectives = false;
  const Metadata metadata = place.save_with(typed_state(), "c", alone);
  expect_same(place.rebuild("c"), typed_state());
  place.files->remove_file("c/__0.torch_dcp-" + *metadata.storage_meta->save_id + ".json");
  EXPECT_TRUE(place.rebuild("c").at("state").as_dict().contains(Key("0")));
}

TEST(LoadKeys, ADamagedSideFileIsNamed) {
  const Place place;
  const Metadata metadata = place.save(typed_state(), "c");
  const std::string name = "c/.torch_dcp-" + *metadata.storage_meta->save_id + ".json";
  write_file(*place.files, name, Bytes(10, '{'));
  expect_text(error_of([&] { place.rebuild("c"); }), {name});
}

TEST(LoadKeys, KeysPrefixesAndUnknownNames) {
  const Place place;
  const StateDict saved = {{"model", Dict{{"a", counted({2})}, {"b", Dict{{"c", counted({1})}, {"d", 4}}}}},
                           {"modelling", 5},
                           {"list", List{counted({1}), Dict{{"x", 1}}}}};
  place.save(saved, "c");
  expect_same(place.rebuild("c", {"model.b"}), {{"model", Dict{{"b", Dict{{"c", counted({1})}, {"d", 4}}}}}});
  expect_same(place.rebuild("c", {"model.a", "modelling"}), {{"model", Dict{{"a", counted({2})}}}, {"modelling", 5}});
  expect_same(place.rebuild("c", {"model"}), {{"model", saved.at("model")}});
  expect_same(place.rebuild("c", {"list"}), {{"list", saved.at("list")}});
  expect_same(place.rebuild("c", {}), saved);
  expect_text(error_of([&] { place.rebuild("c", {"model.a", "modell", "zzz"}); }), {"'modell'", "'zzz'"});
}

TEST(LoadKeys, OfManyRanksIsWhole) {
  const auto files = make_memory_file_system();
  run_ranks(3, [&](RankContext& ranks) {
    const auto mesh = mesh_of(ranks);
    place_of(ranks, files)
        .save({{"w", split(counted({7, 2}), ranks)},
               {"r", DTensor::distribute(counted({3}), mesh, {Placement::replicate()})},
               {"n", 2}},
              "c");
  });
  // In the order of the dict that was saved, whoever wrote what.
  expect_same(Place{files}.rebuild("c"), {{"w", counted({7, 2})}, {"r", counted({3})}, {"n", 2}});
}

/// The bytes of every object item of a checkpoint.
std::map<std::string, Bytes> object_bytes(const Place& place, const std::string& path) {
  std::map<std::string, Bytes> items;
  const Metadata metadata = place.metadata(path);
  FileSystemReader reader(path, {.file_system = place.files});
  for (const auto& [index, info] : metadata.storage_data) {
    if (!index.offset) items[index.fqn] = reader.read_item(info);
  }
  return items;
}

TEST(Load, AnItemThatNobodyUnderstandsIsSavedAgainUnchanged) {
  const Place place;
  const auto item = std::make_shared<const Bytes>(Bytes{1, 2, 3, 4, 5});
  place.save({{"o", Opaque{item, "some.Class"}}, {"n", 1}}, "c");
  EXPECT_EQ(object_bytes(place, "c").at("o"), *item);
  place.save({{"n", 1}, {"t", Tuple{1, 2}}}, "d");
  // As stored, an object item is that of any other save.
  const Bytes stored = object_bytes(place, "d").at("t");
  place.save({{"o", Opaque{std::make_shared<const Bytes>(stored), "tuple"}}}, "e");
  EXPECT_EQ(object_bytes(place, "e").at("o"), stored);
  expect_same(place.rebuild("e"), {{"o", Tuple{1, 2}}});
}

/// Counts what it is asked for.
class CountingPlanner final : public DefaultLoadPlanner {
 public:
  void commit_tensor(const ReadItem& item, const at::Tensor& tensor) override {
    keys.push_back(item.dest_index.fqn);
    DefaultLoadPlanner::commit_tensor(item, tensor);
  }
  std::vector<std::string> keys;
};

TEST(Load, APlannerOfTheProgramsOwn) {
  const Place place;
  place.save({{"a", counted({2})}, {"b", counted({3})}, {"n", 1}}, "c");
  LoadOptions options;
  const auto planner = std::make_shared<CountingPlanner>();
  options.planner = planner;
  StateDict state = {{"b", pattern({3})}, {"a", pattern({2})}};
  place.load(state, "c", options);
  EXPECT_EQ(planner->keys, (std::vector<std::string>{"a", "b"})) << "as they lie in the file";
  place.load(state, "c", options);
  EXPECT_EQ(planner->keys.size(), 4u);
}

TEST(Load, AReaderServesOneLoadAfterAnother) {
  const Place place;
  place.save({{"a", counted({2})}}, "c");
  FileSystemReader reader("c", {.file_system = place.files});
  for (int round = 0; round < 2; ++round) {
    StateDict state = {{"a", pattern({2})}};
    load(state, reader);
    expect_same(state, {{"a", counted({2}) + 10 * round}});
    place.save({{"a", counted({2}) + 10}}, "c");
    EXPECT_NE(error_of([&] {
                StateDict other = {{"zzz", 1}};
                load(other, reader);
              }),
              "");
  }
}

}  // namespace
}  // namespace dcp::test

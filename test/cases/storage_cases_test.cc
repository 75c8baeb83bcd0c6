#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <chrono>
#include <filesystem>
#include <map>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "test/checkpoint/checkpoint_support.h"
#include "test/support/fault_injecting_file_system.h"
#include "torch_dcp/io/local_file_system.h"
#include "torch_dcp/plan/default_load_planner.h"
#include "torch_dcp/plan/default_save_planner.h"
#include "torch_dcp/state_dict/stateful.h"
#include "torch_dcp/storage/filesystem_reader.h"
#include "torch_dcp/storage/filesystem_writer.h"

// What happens when something fails, is damaged, or does not fit.

namespace dcp::test {
namespace {

void expect_same(const StateDict& state, const StateDict& wanted, const std::string& what = "") {
  EXPECT_EQ(first_difference(state, wanted), "") << what;
}

/// What the tests of O10 throw: an ordinary exception, or one of no known type.
struct Thrower {
  bool is_standard = true;
  void operator()(const char* text) const {
    if (is_standard) throw std::runtime_error(text);
    throw 42;
  }
};

class FailingSavePlanner final : public DefaultSavePlanner {
 public:
  FailingSavePlanner(Thrower thrower, bool in_local) : thrower_(thrower), in_local_(in_local) {}

  SavePlan create_local_plan() override {
    if (in_local_) thrower_("the local save plan broke");
    return DefaultSavePlanner::create_local_plan();
  }
  std::pair<std::vector<SavePlan>, Metadata> create_global_plan(std::vector<SavePlan> plans) override {
    if (!in_local_) thrower_("the global plan broke");
    return DefaultSavePlanner::create_global_plan(std::move(plans));
  }

 private:
  Thrower thrower_;
  bool in_local_;
};

/// Throws when its second item is asked for.
class FailingResolver final : public DefaultSavePlanner {
 public:
  explicit FailingResolver(Thrower thrower) : thrower_(thrower) {}

  at::Tensor resolve_tensor(const WriteItem& item) const override {
    if (++count_ == 2) thrower_("the write broke");
    return DefaultSavePlanner::resolve_tensor(item);
  }

 private:
  Thrower thrower_;
  mutable std::atomic<int> count_ = 0;
};

class FailingLoadPlanner final : public DefaultLoadPlanner {
 public:
  explicit FailingLoadPlanner(Thrower thrower) : thrower_(thrower) {}
  LoadPlan create_local_plan() override {
    thrower_("the local load plan broke");
    return {};
  }

 private:
  Thrower thrower_;
};

class FailingFinish final : public FileSystemWriter {
 public:
  FailingFinish(std::string path, FileSystemWriterOptions options, Thrower thrower)
      : FileSystemWriter(std::move(path), std::move(options)), thrower_(thrower) {}
  Metadata finish(Metadata, const std::vector<std::vector<WriteResult>>&) override {
    thrower_("the commit broke");
    return {};
  }

 private:
  Thrower thrower_;
};

class FailingReader final : public FileSystemReader {
 public:
  FailingReader(std::string path, FileSystemReaderOptions options, Thrower thrower, bool in_metadata)
      : FileSystemReader(std::move(path), std::move(options)), thrower_(thrower), in_metadata_(in_metadata) {}
  std::optional<Metadata> read_metadata() override {
    if (in_metadata_) thrower_("reading the metadata broke");
    return FileSystemReader::read_metadata();
  }
  void read_data(const LoadPlan& plan, LoadPlanner& planner) override {
    if (!in_metadata_) thrower_("reading the data broke");
    FileSystemReader::read_data(plan, planner);
  }

 private:
  Thrower thrower_;
  bool in_metadata_;
};

/// Three ranks, one of which fails in one phase.
class O10 {
 public:
  explicit O10(Thrower thrower) : thrower_(thrower) {}

  void save_fails(int failing_rank, const std::string& text,
                  const std::function<void(const Place&, const StateDict&, bool is_failing)>& save) {
    ErrorsByRank errors(3);
    ErrorsByRank incomplete(3);
    const auto files = std::make_shared<FaultInjectingFileSystem>(make_memory_file_system());
    files_ = files.get();
    run_ranks(3, [&](RankContext& ranks) {
      const Place place = place_of(ranks, files);
      const StateDict state = state_of(ranks);
      errors.run(ranks.rank(), [&] { save(place, state, ranks.rank() == failing_rank); });
      StateDict loaded = blank_of(ranks);
      incomplete.run(ranks.rank(), [&] { place.load(loaded, "c"); });
      expect_same(loaded, blank_of(ranks), "after the failed load");
      if (ranks.rank() == failing_rank) files->clear_faults();
      expect_works(place, ranks);
    });
    expect_one(errors, failing_rank, text);
    incomplete.expect({0}, {"incomplete", "c"});
    EXPECT_EQ(incomplete.kind(), ErrorKind::kNotFound);
  }

  void load_fails(int failing_rank, const std::string& text,
                  const std::function<void(const Place&, StateDict&, bool is_failing)>& load) {
    ErrorsByRank errors(3);
    const auto files = make_memory_file_system();
    run_ranks(3, [&](RankContext& ranks) {
      const Place place = place_of(ranks, files);
      place.save(state_of(ranks), "c");
      StateDict state = blank_of(ranks);
      errors.run(ranks.rank(), [&] { load(place, state, ranks.rank() == failing_rank); });
      expect_works(place, ranks);
    });
    expect_one(errors, failing_rank, text);
  }

  FaultInjectingFileSystem& files() const { return *files_; }
  Thrower thrower() const { return thrower_; }

 private:
  static StateDict state_of(const RankContext& ranks) {
    return {{"a", split(counted({64, 3}), ranks)}, {"b", split(counted({64, 2}) + 1, ranks)}, {"n", 3}};
  }
  static StateDict blank_of(const RankContext& ranks) {
    return {{"a", split_pattern({64, 3}, ranks)}, {"b", split_pattern({64, 2}, ranks)}, {"n", 0}};
  }

  static void expect_works(const Place& place, const RankContext& ranks) {
    place.save(state_of(ranks), "c");
    StateDict state = blank_of(ranks);
    place.load(state, "c");
    expect_same(state, state_of(ranks), "after the failure");
  }

  void expect_one(const ErrorsByRank& errors, int failing_rank, const std::string& text) const {
    errors.expect({failing_rank}, {thrower_.is_standard ? text : "no std::exception"});
  }

  Thrower thrower_;
  FaultInjectingFileSystem* files_ = nullptr;
};

SaveOptions with_planner(std::shared_ptr<SavePlanner> planner) {
  SaveOptions options;
  options.planner = std::move(planner);
  return options;
}

void run_o10(Thrower thrower) {
  O10 test(thrower);
  {
    SCOPED_TRACE("a: local save plan");
    test.save_fails(1, "the local save plan broke", [&](const Place& place, const StateDict& state, bool is_failing) {
      place.save_with(state, "c",
                      with_planner(is_failing ? std::make_shared<FailingSavePlanner>(thrower, true) : nullptr));
    });
  }
  {
    SCOPED_TRACE("b: global plan");
    test.save_fails(0, "the global plan broke", [&](const Place& place, const StateDict& state, bool is_failing) {
      place.save_with(state, "c",
                      with_planner(is_failing ? std::make_shared<FailingSavePlanner>(thrower, false) : nullptr));
    });
  }
  {
    SCOPED_TRACE("c: write");
    test.save_fails(2, "the write broke", [&](const Place& place, const StateDict& state, bool is_failing) {
      place.save_with(state, "c", with_planner(is_failing ? std::make_shared<FailingResolver>(thrower) : nullptr));
    });
  }
  {
    SCOPED_TRACE("d: finish");
    test.save_fails(0, "the commit broke", [&](const Place& place, const StateDict& state, bool is_failing) {
      if (!is_failing) {
        place.save(state, "c");
        return;
      }
      FailingFinish writer("c", {.file_system = place.files}, thrower);
      SaveOptions options;
      options.communicator = place.communicator;
      dcp::save(state, writer, options);
    });
  }
  const auto load_with_reader = [&](bool in_metadata) {
    return [&thrower, in_metadata](const Place& place, StateDict& state, bool is_failing) {
      if (!is_failing) {
        place.load(state, "c");
        return;
      }
      FailingReader reader("c", {.file_system = place.files}, thrower, in_metadata);
      LoadOptions options;
      options.communicator = place.communicator;
      dcp::load(state, reader, options);
    };
  };
  {
    SCOPED_TRACE("e: metadata");
    test.load_fails(0, "reading the metadata broke", load_with_reader(true));
  }
  {
    SCOPED_TRACE("f: local load plan");
    test.load_fails(1, "the local load plan broke", [&](const Place& place, StateDict& state, bool is_failing) {
      LoadOptions options;
      if (is_failing) options.planner = std::make_shared<FailingLoadPlanner>(thrower);
      place.load(state, "c", options);
    });
  }
  {
    SCOPED_TRACE("g: data");
    test.load_fails(2, "reading the data broke", load_with_reader(false));
  }
}

TEST(Cases, O10_AFaultOnOneRankInEveryPhase) { run_o10(Thrower{true}); }

TEST(Cases, O10_AnExceptionOfNoKnownType) { run_o10(Thrower{false}); }

TEST(Cases, O10_AStreamThatRefusesAfter100Bytes) {
  O10 test(Thrower{});
  test.save_fails(2, "No space left on device", [&](const Place& place, const StateDict& state, bool is_failing) {
    if (is_failing) test.files().fail({.op = FileOp::kAppend, .path_contains = "__2_", .after_bytes = 100});
    place.save(state, "c");
  });
}

TEST(Cases, O11_AFailedOverwriteLeavesTheOldCheckpoint) {
  const auto files = std::make_shared<FaultInjectingFileSystem>(make_memory_file_system());
  ErrorsByRank errors(2);
  std::atomic<bool> rank_0_is_done = false;
  const auto load_fresh = [&](float value) {
    run_ranks(2, [&](RankContext& ranks) {
      StateDict state = {{"w", split_pattern({4}, ranks)}};
      place_of(ranks, files).load(state, "c");
      expect_same(state, {{"w", split(at::full({4}, value), ranks)}});
    });
  };
  run_ranks(2, [&](RankContext& ranks) {
    const Place place = place_of(ranks, files);
    place.save({{"w", split(at::zeros({4}), ranks)}}, "c");
    if (ranks.rank() == 0) {
      files->set_hook([&](const FileEvent& event) {
        const bool is_rank_0 = event.path.find("/__0_") != std::string::npos;
        if (is_rank_0 && event.op == FileOp::kClose) rank_0_is_done = true;
        if (event.op != FileOp::kAppend || event.path.find("/__1_") == std::string::npos) return;
        while (!rank_0_is_done) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        DCP_THROW(kIo, event.path, ": the disk broke");
      });
    }
    place.communicator->all_gather({});  // The hook is set.
    errors.run(ranks.rank(), [&] { place.save({{"w", split(at::ones({4}), ranks)}}, "c"); });
  });
  errors.expect({1}, {"the disk broke", "c/__1_", "w at [2]"});
  files->clear_faults();
  load_fresh(0);
  run_ranks(2, [&](RankContext& ranks) {
    const Place place = place_of(ranks, files);
    if (ranks.rank() == 0) files->clear_trace();
    place.communicator->all_gather({});
    place.save({{"w", split(at::ones({4}), ranks)}}, "c");
  });
  load_fresh(1);

  // The order in which things went to the medium.
  const std::vector<FileEvent> trace = files->trace();
  std::map<std::string, std::vector<FileOp>> by_file;
  std::map<std::string, std::size_t> last;
  std::size_t renamed = 0;
  for (std::size_t i = 0; i < trace.size(); ++i) {
    const FileEvent& event = trace[i];
    if (!is_change(event.op)) continue;
    if (event.op == FileOp::kRename && event.to == "c/.metadata") renamed = i;
    by_file[event.path].push_back(event.op);
    if (event.op == FileOp::kClose) last[event.path] = i;
  }
  const std::vector<FileOp> whole_life = {FileOp::kCreate, FileOp::kAppend, FileOp::kSync, FileOp::kClose};
  int data_file_count = 0;
  for (const auto& [path, place] : last) {
    if (path.find(".distcp") == std::string::npos) continue;
    ++data_file_count;
    EXPECT_EQ(by_file[path], whole_life) << path;
    EXPECT_LT(place, last.at("c/.metadata.tmp")) << path;
  }
  EXPECT_EQ(data_file_count, 2);
  std::vector<FileOp> metadata_life = whole_life;
  metadata_life.push_back(FileOp::kRename);
  EXPECT_EQ(by_file["c/.metadata.tmp"], metadata_life);
  ASSERT_GT(renamed, last.at("c/.metadata.tmp"));
  ASSERT_LT(renamed + 1, trace.size());
  EXPECT_EQ(to_string(trace[renamed + 1]), "sync_directory c");
}

TEST(Cases, O12a_OverwriteOffChangesNothing) {
  const auto files = make_memory_file_system();
  ErrorsByRank errors(2);
  std::map<std::string, Bytes> before;
  run_ranks(2, [&](RankContext& ranks) {
    const Place place = place_of(ranks, files);
    place.save({{"w", split(at::zeros({4}), ranks)}}, "c");
    if (ranks.rank() == 0) before = contents_of(*files, "c");
    errors.run(ranks.rank(), [&] { place.save({{"w", split(at::ones({4}), ranks)}}, "c", {.overwrite = false}); });
  });
  errors.expect({0, 1}, {"c", "overwriting is off"});
  EXPECT_EQ(errors.kind(), ErrorKind::kAlreadyExists);
  EXPECT_EQ(contents_of(*files, "c"), before);
}

TEST(Cases, O12b_TheOldWorldWasLarger) {
  const auto files = make_memory_file_system();
  run_ranks(4, [&](RankContext& ranks) {
    place_of(ranks, files).save({{"w", split(at::zeros({8}), ranks)}, {"only_a", split(at::zeros({8}), ranks)}}, "c");
  });
  const StateDict wanted = {{"w", counted({8})}};
  run_ranks(2, [&](RankContext& ranks) { place_of(ranks, files).save({{"w", split(counted({8}), ranks)}}, "c"); });
  const Place place{files};
  expect_same(place.rebuild("c"), wanted);
  files->create_directories("copy");
  std::set<std::string> names = {".metadata"};
  for (const auto& [index, info] : place.metadata("c").storage_data) names.insert(info.relative_path);
  for (const std::string& name : names) write_file(*files, "copy/" + name, contents_of(*files, "c").at(name));
  expect_same(place.rebuild("copy"), wanted);
  EXPECT_TRUE(is_complete("copy", files));
  // Nothing of the larger world is left over.
  names.insert(".torch_dcp-" + *place.metadata("c").storage_meta->save_id + ".json");
  EXPECT_EQ(names_in(*files, "c"), std::vector<std::string>(names.begin(), names.end()));
}

TEST(Cases, O12c_AllRanksMakeTheDirectoryAtOnce) {
  constexpr int kRounds = 50;
  const std::string root = ::testing::TempDir() + "/o12c";
  std::filesystem::remove_all(root);
  std::barrier release(8);
  run_ranks(8, [&](RankContext& ranks) {
    const Place place = place_of(ranks, local_file_system());
    for (int round = 0; round < kRounds; ++round) {
      const std::string path = c10::str(root, "/p", round, "/q/r");
      release.arrive_and_wait();
      place.save({{"w", split(counted({8}), ranks)}}, path, {.sync_files = false});
    }
  });
  for (int round = 0; round < kRounds; ++round) EXPECT_TRUE(is_complete(c10::str(root, "/p", round, "/q/r")));
  std::filesystem::remove_all(root);
}

TEST(Cases, O12d_APlainFileInTheWay) {
  const auto files = make_memory_file_system();
  write_file(*files, "p", Bytes(3, 1));
  ErrorsByRank errors(2);
  ErrorsByRank below(2);
  run_ranks(2, [&](RankContext& ranks) {
    const Place place = place_of(ranks, files);
    errors.run(ranks.rank(), [&] { place.save({{"w", split(counted({4}), ranks)}}, "p"); });
    below.run(ranks.rank(), [&] { place.save({{"w", split(counted({4}), ranks)}}, "p/q/r"); });
  });
  errors.expect({0, 1}, {"p"});
  below.expect({0, 1}, {"p/q/r"});
  EXPECT_EQ(read_whole_file(*files, "p", 100), Bytes(3, 1));
}

struct Damage {
  std::string name;
  std::function<void(FileSystem&)> apply;
  std::vector<std::string> texts;
  bool is_of_data = false;
};

std::vector<Damage> damages() {
  const auto rewrite = [](const std::string& path, const std::function<Bytes(Bytes)>& change) {
    return [=](FileSystem& files) { write_file(files, path, change(read_whole_file(files, path, 1 << 20))); };
  };
  const auto noise = [](const Bytes&) {
    std::mt19937 random(7);
    Bytes bytes(1024);
    for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random());
    return bytes;
  };
  return {
      {"a", [](FileSystem& files) { files.remove_file("c/.metadata"); }, {"incomplete checkpoint", "c"}},
      {"b",
       rewrite("c/.metadata",
               [](Bytes bytes) {
                 bytes.resize(bytes.size() / 2);
                 return bytes;
               }),
       {"c/.metadata"}},
      {"c",
       [](FileSystem& files) { files.remove_file("c/__1_0.distcp"); },
       {"c/__1_0.distcp", "missing", "w at [2]"},
       true},
      {"d",
       rewrite("c/__1_0.distcp",
               [](Bytes bytes) {
                 bytes.resize(bytes.size() - 16);
                 return bytes;
               }),
       {"c/__1_0.distcp", "cut", "w at [2]"},
       true},
      {"e", [](FileSystem&) {}, {"incomplete checkpoint", "nowhere", "does not exist"}},
      {"f",
       [](FileSystem& files) {
         for (const std::string& name : files.list_directory("c")) files.remove_file("c/" + name);
       },
       {"incomplete checkpoint", "c"}},
      {"g", rewrite("c/.metadata", noise), {"c/.metadata"}},
  };
}

TEST(Cases, O13_DamagedOrForeignDirectories) {
  for (const Damage& damage : damages()) {
    SCOPED_TRACE(damage.name);
    const auto files = make_memory_file_system();
    const std::string path = damage.name == "e" ? "nowhere" : "c";
    ErrorsByRank errors(2);
    run_ranks(2, [&](RankContext& ranks) {
      const Place place = place_of(ranks, files);
      place.save({{"w", split(counted({4}), ranks)}}, "c");
      EXPECT_TRUE(is_complete("c", files));
      place.communicator->all_gather({});
      if (ranks.rank() == 0) damage.apply(*files);
      place.communicator->all_gather({});
      // In c and d only rank 1 reads the bad file.
      StateDict state = {{"w", split_pattern({4}, ranks)}};
      errors.run(ranks.rank(), [&] { place.load(state, path); });
      EXPECT_TRUE(is_pattern(state.at("w").as_dtensor().local()));
    });
    errors.expect({damage.is_of_data ? 1 : 0}, damage.texts);
    const bool is_absent = damage.texts[0] == "incomplete checkpoint";
    EXPECT_EQ(errors.kind(), is_absent ? ErrorKind::kNotFound : ErrorKind::kCorruptData) << errors.text();
    EXPECT_FALSE(is_complete(path, files));
    // Rebuilt without a state dict it is refused for the same reason.
    const std::string rebuilding = error_of([&] { Place{files}.rebuild(path); });
    for (const std::string& text : damage.texts) EXPECT_NE(rebuilding.find(text), std::string::npos) << rebuilding;
  }
}

TEST(Cases, O14_MissingAndUnexpectedKeys) {
  for (const int world : {1, 2}) {
    SCOPED_TRACE(world);
    const auto files = make_memory_file_system();
    ErrorsByRank errors(world);
    run_ranks(world, [&](RankContext& ranks) {
      const Place place = place_of(ranks, files);
      place.save({{"a", split(counted({4}), ranks)}, {"b", counted({3})}, {"x", 1}}, "c");
      const auto blank = [&] {
        return StateDict{{"a", split_pattern({4}, ranks)}, {"b", pattern({3})}, {"c", pattern({2})}, {"d", 5}};
      };
      StateDict strict = blank();
      errors.run(ranks.rank(), [&] { place.load(strict, "c"); });
      expect_same(strict, blank(), "strict");

      LoadOptions options;
      options.partial = true;
      StateDict partial = blank();
      const LoadReport report = place.load(partial, "c", options);
      StateDict wanted = blank();
      wanted["a"] = split(counted({4}), ranks);
      wanted["b"] = counted({3});
      expect_same(partial, wanted, "partial");
      EXPECT_EQ(report.missing, (std::vector<std::string>{"c", "d"}));
      EXPECT_EQ(report.unexpected, std::vector<std::string>{"x"});

      StateDict fitting = {{"a", split_pattern({4}, ranks)}, {"b", pattern({3})}};
      const LoadReport fit = place.load(fitting, "c");
      EXPECT_TRUE(fit.missing.empty());
      EXPECT_EQ(fit.unexpected, std::vector<std::string>{"x"});
    });
    errors.expect(all_of(world), {"'c'", "'d'"});
    EXPECT_EQ(errors.kind(), ErrorKind::kKey);
    EXPECT_EQ(errors.error().failures()[0].message.find("'a'"), std::string::npos);
  }
}

TEST(Cases, O15_SizesDiffer) {
  const std::vector<std::pair<std::vector<std::int64_t>, std::vector<std::int64_t>>> pairs = {
      {{4, 3}, {3, 4}}, {{4, 3}, {12}}, {{4, 3}, {4}}, {{4, 3}, {4, 3, 1}}, {{5}, {}}, {{}, {5}}};
  for (const int world : {1, 2}) {
    for (const auto& [stored, current] : pairs) {
      for (const bool is_partial : {false, true}) {
        const auto files = make_memory_file_system();
        ErrorsByRank errors(world);
        run_ranks(world, [&, stored = stored, current = current](RankContext& ranks) {
          const Place place = place_of(ranks, files);
          place.save({{"k1", counted(stored)}, {"k2", counted(stored)}, {"k3", counted(stored)}, {"ok", counted({2})}},
                     "c");
          StateDict state = {
              {"k1", pattern(current)}, {"k2", pattern(current)}, {"k3", pattern(current)}, {"ok", pattern({2})}};
          LoadOptions options;
          options.partial = is_partial;
          errors.run(ranks.rank(), [&] { place.load(state, "c", options); });
          for (const auto& [key, value] : state) EXPECT_TRUE(is_pattern(value.as_tensor())) << dcp::to_string(key);
        });
        errors.expect(all_of(world), {"'k1'", "'k2'", "'k3'", dcp::to_string(c10::IntArrayRef(stored)),
                                      dcp::to_string(c10::IntArrayRef(current))});
        EXPECT_EQ(errors.kind(), ErrorKind::kShape);
      }
    }
  }
}

TEST(Cases, O15_SizesOfSpreadTensorsDiffer) {
  constexpr int kWorld = 2;
  for (const bool is_partial : {false, true}) {
    const auto files = make_memory_file_system();
    ErrorsByRank errors(kWorld);
    run_ranks(kWorld, [&](RankContext& ranks) {
      const Place place = place_of(ranks, files);
      place.save({{"spread", split(counted({4, 3}), ranks)}, {"whole", counted({4, 3})}, {"cut", counted({4, 3})}},
                 "c");
      // The first has local parts of the stored size; the last none on rank 1.
      const auto blank = [&] {
        std::vector<Shard> shards;
        if (ranks.rank() == 0) shards.push_back({pattern({4, 2}), {0, 0}});
        return StateDict{{"spread", pattern_on(mesh_of(ranks), {Placement::replicate()}, {2, 3})},
                         {"whole", split_pattern({5, 3}, ranks)},
                         {"cut", ShardedTensor({4, 2}, at::kFloat, std::move(shards))}};
      };
      StateDict state = blank();
      LoadOptions options;
      options.partial = is_partial;
      errors.run(ranks.rank(), [&] { place.load(state, "c", options); });
      expect_same(state, blank());
    });
    errors.expect(all_of(kWorld), {"'spread'", "'whole'", "'cut'", "[4, 3]", "[2, 3]", "[5, 3]", "[4, 2]"});
    EXPECT_EQ(errors.kind(), ErrorKind::kShape);
  }
}

TEST(Cases, O16_DtypesDiffer) {
  struct Pair {
    std::string key;
    at::Tensor stored;
    at::ScalarType wanted;
  };
  const std::vector<Pair> lossy = {
      {"f32_bf16", at::randn({16}), at::kBFloat16},
      {"i64_f32", at::full({2}, 16777217, at::kLong), at::kFloat},
      {"f32_i8", at::full({2}, 7.5), at::kChar},
  };
  const std::vector<Pair> lossless = {
      {"bool_u8", at::arange(4).remainder(2).to(at::kBool), at::kByte},
      {"bf16_f32", at::randn({7}).to(at::kBFloat16), at::kFloat},
      {"f32_f64", at::randn({7}), at::kDouble},
  };
  std::vector<Pair> all = lossy;
  all.insert(all.end(), lossless.begin(), lossless.end());
  const auto blank = [](const std::vector<Pair>& pairs) {
    StateDict state;
    for (const Pair& pair : pairs) state[pair.key] = pattern(pair.stored.sizes(), pair.wanted);
    return state;
  };
  const auto expect_converted = [](const StateDict& state, const LoadReport& report, const std::vector<Pair>& pairs) {
    std::vector<std::string> keys;
    for (const Pair& pair : pairs) {
      EXPECT_TRUE(bit_equal(state.at(pair.key), pair.stored.to(pair.wanted))) << pair.key;
      keys.push_back(pair.key);
    }
    std::vector<std::string> reported;
    for (const DtypeConversion& conversion : report.converted) reported.push_back(conversion.key);
    EXPECT_EQ(reported, keys);
  };
  for (const int world : {1, 2}) {
    const auto files = make_memory_file_system();
    ErrorsByRank by_default(world);
    ErrorsByRank exact(world);
    run_ranks(world, [&](RankContext& ranks) {
      const Place place = place_of(ranks, files);
      StateDict saved;
      for (const Pair& pair : all) saved[pair.key] = pair.stored;
      place.save(saved, "c");

      StateDict state = blank(all);
      by_default.run(ranks.rank(), [&] { place.load(state, "c"); });
      expect_same(state, blank(all), "refused by default");
      LoadOptions options;
      options.dtype_policy = DtypePolicy::kExact;
      exact.run(ranks.rank(), [&] { place.load(state, "c", options); });
      expect_same(state, blank(all), "refused by 'exact'");

      StateDict wider = blank(lossless);
      expect_converted(wider, place.load(wider, "c"), lossless);
      options.dtype_policy = DtypePolicy::kAny;
      StateDict any = blank(all);
      expect_converted(any, place.load(any, "c", options), all);
    });
    by_default.expect(all_of(world), {"'f32_bf16'", "'i64_f32'", "'f32_i8'", "float32", "bfloat16", "int64", "int8"});
    for (const Pair& pair : lossless) EXPECT_EQ(by_default.text().find(pair.key), std::string::npos);
    exact.expect(all_of(world),
                 {"'f32_bf16'", "'i64_f32'", "'f32_i8'", "'bool_u8'", "'bf16_f32'", "'f32_f64'", "float64"});
    EXPECT_EQ(exact.kind(), ErrorKind::kType);
  }
}

TEST(Cases, O17_TwoPathsOneFlatName) {
  const at::Tensor t1 = counted({2});
  const at::Tensor t2 = counted({3});
  struct Clash {
    StateDict state;
    std::vector<std::string> texts;
  };
  const std::vector<Clash> clashes = {
      {{{"a", Dict{{"b", t1}}}, {"a.b", t2}}, {"'a.b'", "['a']['b']", "['a.b']"}},
      {{{"a", Dict{{"b", Dict{{"c", t1}}}}}, {"a.b", Dict{{"c", t2}}}}, {"'a.b.c'", "['a']['b']['c']", "['a.b']['c']"}},
      {{{"l", List{t1}}, {"l.0", t2}}, {"'l.0'", "['l'][0]", "['l.0']"}},
  };
  for (const int world : {1, 2}) {
    for (const Clash& clash : clashes) {
      const auto files = make_memory_file_system();
      ErrorsByRank errors(world);
      run_ranks(world, [&](RankContext& ranks) {
        const Place place = place_of(ranks, files);
        errors.run(ranks.rank(), [&] { place.save(clash.state, "c"); });
        EXPECT_TRUE(contents_of(*files, "c").empty());
        const StateDict alone = {{"a.b", Dict{{"c", t1}}}};
        place.save(alone, "d");
        StateDict state = {{"a.b", Dict{{"c", pattern({2})}}}};
        place.load(state, "d");
        expect_same(state, alone);
        expect_same(place.rebuild("d"), alone);
      });
      errors.expect(all_of(world), clash.texts);
    }
  }
}

TEST(Cases, O18_ContainersThatChangedShape) {
  const Place place;
  const StateDict saved = {
      {"log", List{Dict{{"k", 1}}, Dict{{"k", 2}}}}, {"names", Dict{}}, {"pair", List{counted({2}), counted({2}) + 5}}};
  place.save(saved, "c");
  StateDict state = {{"log", List{}}, {"names", Dict{}}, {"pair", List{pattern({2}), pattern({2})}}};
  const StateDict before = {{"log", List{}}, {"names", Dict{}}, {"pair", List{pattern({2}), pattern({2})}}};
  const std::string text = error_of([&] { place.load(state, "c"); });
  EXPECT_NE(text.find("'log'"), std::string::npos) << text;
  EXPECT_NE(text.find("stored as 2 children"), std::string::npos) << text;
  EXPECT_EQ(text.find("'pair"), std::string::npos) << text;
  expect_same(state, before);
  expect_same(place.rebuild("c"), saved);
}

/// A counter and a tensor that train together.
class Training final : public Stateful {
 public:
  Dict state_dict() override { return {{"counter", counter}, {"tensor", tensor}}; }
  void load_state_dict(const Dict& state) override {
    counter = state.at("counter").as_int();
    tensor = state.at("tensor").as_tensor();
  }

  void train_to(std::int64_t step) {
    counter = step;
    tensor.fill_(static_cast<double>(step));
    weight.fill_(static_cast<double>(10 * step));
  }

  std::int64_t counter = 0;
  at::Tensor tensor = pattern({3});
  at::Tensor weight = pattern({2});
};

TEST(Cases, O20_ResumeTwice) {
  for (const int world : {1, 2}) {
    const auto files = make_memory_file_system();
    const auto in_fresh_process = [&](const std::function<void(const Place&, Training&, StateDict&)>& body) {
      run_ranks(world, [&](RankContext& ranks) {
        const auto training = std::make_shared<Training>();
        StateDict state = {{"app", training}, {"model", Dict{{"weight", training->weight}}}};
        const void* address = training->weight.data_ptr();
        body(place_of(ranks, files), *training, state);
        EXPECT_EQ(state.at("app").as_stateful().get(), training.get());
        EXPECT_EQ(state.at("model").as_dict().at("weight").as_tensor().data_ptr(), address);
      });
    };
    const auto expect_step = [](const Training& training, std::int64_t step) {
      EXPECT_EQ(training.counter, step);
      EXPECT_TRUE(bit_equal(training.tensor, at::full({3}, static_cast<double>(step), at::kFloat)));
      EXPECT_TRUE(bit_equal(training.weight, at::full({2}, static_cast<double>(10 * step), at::kFloat)));
    };
    in_fresh_process([&](const Place& place, Training& training, StateDict& state) {
      training.train_to(1);
      place.save(state, "c");
    });
    in_fresh_process([&](const Place& place, Training& training, StateDict& state) {
      const void* address = training.tensor.data_ptr();
      place.load(state, "c");
      expect_step(training, 1);
      EXPECT_EQ(training.tensor.data_ptr(), address);
      training.train_to(5);
      place.save(state, "c");
    });
    in_fresh_process([&](const Place& place, Training& training, StateDict& state) {
      place.load(state, "c");
      expect_step(training, 5);
    });
  }
}

}  // namespace
}  // namespace dcp::test

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include "test/checkpoint/checkpoint_support.h"
#include "test/support/fault_injecting_file_system.h"
#include "torch_dcp/plan/default_save_planner.h"

// How state is spread over ranks, and comes back on others.

namespace dcp::test {
namespace {

void expect_same(const StateDict& state, const StateDict& wanted, const std::string& what) {
  EXPECT_EQ(first_difference(state, wanted), "") << what;
}

std::vector<Box> real_chunks(const Metadata& metadata, const std::string& key) {
  std::vector<Box> chunks = std::get<TensorStorageMetadata>(*metadata.state_dict_metadata.find(key)).chunks.boxes();
  std::erase_if(chunks, [](const Box& chunk) { return chunk.empty(); });
  std::sort(chunks.begin(), chunks.end(), [](const Box& a, const Box& b) { return a.offsets < b.offsets; });
  return chunks;
}

TEST(Cases, O01_SixRowsOnFourRanks) {
  const at::Tensor t = counted({6});
  const auto state_of = [&](const RankContext& ranks) {
    return StateDict{{"t", split(t, ranks)},
                     {"optim", Dict{{"exp_avg", split(t * 0.5, ranks)}, {"exp_avg_sq", split(t * t, ranks)}}}};
  };
  const auto files = make_memory_file_system();
  run_ranks(4, [&](RankContext& ranks) {
    const Metadata metadata = place_of(ranks, files).save(state_of(ranks), "c");
    for (const std::string key : {"t", "optim.exp_avg", "optim.exp_avg_sq"}) {
      const auto& tensor = std::get<TensorStorageMetadata>(*metadata.state_dict_metadata.find(key));
      EXPECT_EQ(tensor.size, Sizes{6});
      const std::vector<Box> real = {{{0}, {2}}, {{2}, {2}}, {{4}, {2}}};
      EXPECT_EQ(real_chunks(metadata, key), real);
      for (const Box& chunk : tensor.chunks) EXPECT_TRUE(!chunk.empty() || chunk.offsets == Sizes{6});
    }
  });
  for (const int world : {1, 2, 3, 4, 5, 8}) {
    run_ranks(world, [&](RankContext& ranks) {
      StateDict state = {
          {"t", split_pattern({6}, ranks)},
          {"optim", Dict{{"exp_avg", split_pattern({6}, ranks)}, {"exp_avg_sq", split_pattern({6}, ranks)}}}};
      place_of(ranks, files).load(state, "c");
      expect_same(state, state_of(ranks), c10::str("rank ", ranks.rank(), " of ", world));
      const std::int64_t rows = chunk_of(6, world, ranks.rank()).length;
      EXPECT_EQ(state.at("t").as_dtensor().local().numel(), rows);
    });
  }
}

/// What O03 saves, spread over the ranks; with the values, or with a pattern.
class Chain {
 public:
  StateDict state(const RankContext& ranks, bool is_blank) const {
    StateDict state;
    Dict moments;
    for (const auto& [name, whole] : sharded_) {
      const std::int64_t dim = whole.dim() - 1;
      state[name] = spread(whole, ranks, dim, is_blank);
      moments[name] = Dict{{"exp_avg", spread(whole.to(at::kFloat) * 0.5, ranks, dim, is_blank)},
                           {"exp_avg_sq", spread(whole.to(at::kFloat) * 3, ranks, dim, is_blank)}};
    }
    state["optim"] = std::move(moments);
    for (const auto& [name, whole] : plain_) {
      state[name] = is_blank ? pattern(whole.sizes(), whole.scalar_type()) : whole.clone();
    }
    state["by_hand"] = by_hand(ranks, is_blank);
    return state;
  }

 private:
  static DTensor spread(const at::Tensor& whole, const RankContext& ranks, std::int64_t dim, bool is_blank) {
    return is_blank ? split_pattern(whole.sizes(), ranks, dim, whole.scalar_type()) : split(whole, ranks, dim);
  }

  ShardedTensor by_hand(const RankContext& ranks, bool is_blank) const {
    const std::map<int, std::vector<std::int64_t>> ends = {
        {1, {0, 8}}, {3, {0, 1, 6, 8}}, {8, {0, 1, 2, 3, 4, 5, 6, 7, 8}}};
    const std::int64_t begin = ends.at(ranks.size())[static_cast<std::size_t>(ranks.rank())];
    const std::int64_t size = ends.at(ranks.size())[static_cast<std::size_t>(ranks.rank()) + 1] - begin;
    const at::Tensor part = is_blank ? pattern({size}) : counted({8}).narrow(0, begin, size).clone();
    return ShardedTensor({8}, at::kFloat, {{part, {begin}}});
  }

  const std::vector<std::pair<std::string, at::Tensor>> sharded_ = {
      {"l1", counted({1}) + 7},
      {"l7", at::randn({7})},
      {"l8", at::randn({8})},
      {"l9", at::randn({9})},
      {"m", at::randn({5, 4})},
      {"mask", at::arange(9).remainder(2).to(at::kBool)},
      {"bf16", at::randn({7}).to(at::kBFloat16)},
      {"big", at::full({3}, (std::int64_t{1} << 53) + 1, at::kLong)},
  };
  const std::vector<std::pair<std::string, at::Tensor>> plain_ = {
      {"scalar", at::full({}, 0.1)},
      {"empty", at::empty({0, 5})},
      {"big_scalar", at::full({}, (std::int64_t{1} << 53) + 1, at::kLong)},
  };
};

TEST(Cases, O03_ChainOfWorldSizes) {
  const auto files = make_memory_file_system();
  const Chain chain;
  const std::vector<int> worlds = {8, 1, 3, 8};
  for (std::size_t hop = 0; hop < worlds.size(); ++hop) {
    run_ranks(worlds[hop], [&](RankContext& ranks) {
      const Place place = place_of(ranks, files);
      const bool is_first = hop == 0;
      StateDict state = chain.state(ranks, !is_first);
      if (!is_first) {
        const LoadReport report = place.load(state, "c" + std::to_string(hop - 1));
        EXPECT_TRUE(report.converted.empty() && report.missing.empty() && report.unexpected.empty());
      }
      expect_same(state, chain.state(ranks, false), c10::str("hop ", hop, " rank ", ranks.rank()));
      place.save(state, "c" + std::to_string(hop));
    });
  }
}

TEST(Cases, O04_ARankWithoutAPieceDoesNotMissTheKey) {
  const auto files = make_memory_file_system();
  const at::Tensor a = counted({1, 6});
  const at::Tensor b = counted({1, 2, 3}) - 1;
  run_ranks(4, [&](RankContext& ranks) {
    place_of(ranks, files).save({{"a", split(a, ranks)}, {"b", split(b, ranks)}}, "c");
  });
  for (const int world : {4, 2}) {
    run_ranks(world, [&](RankContext& ranks) {
      StateDict state = {{"a", split_pattern({1, 6}, ranks)}, {"b", split_pattern({1, 2, 3}, ranks)}};
      const LoadReport report = place_of(ranks, files).load(state, "c");
      EXPECT_TRUE(report.missing.empty() && report.unexpected.empty() && report.converted.empty());
      expect_same(state, {{"a", split(a, ranks)}, {"b", split(b, ranks)}}, c10::str("rank ", ranks.rank()));
    });
  }
}

TEST(Cases, O05_SameDimensionSplitTwice) {
  const auto files = make_memory_file_system();
  const at::Tensor whole = counted({10});
  const Placements twice = {Placement::shard(0), Placement::shard(0)};
  const auto load_on_mesh = [&](const std::string& path) {
    run_ranks(8, [&](RankContext& ranks) {
      const auto mesh = DeviceMesh::make({2, 4}, ranks.rank());
      StateDict state = {{"t", pattern_on(mesh, twice, {10})}};
      place_of(ranks, files).load(state, path);
      expect_same(state, {{"t", DTensor::distribute(whole, mesh, twice)}}, c10::str("rank ", ranks.rank()));
    });
  };
  run_ranks(8, [&](RankContext& ranks) {
    const std::vector<std::int64_t> lengths = {2, 2, 1, 0, 2, 2, 1, 0};
    const DTensor mine = DTensor::distribute(whole, DeviceMesh::make({2, 4}, ranks.rank()), twice);
    EXPECT_EQ(mine.local().numel(), lengths[static_cast<std::size_t>(ranks.rank())]);
    const Metadata metadata = place_of(ranks, files).save({{"t", mine}}, "c");
    const std::vector<Box> real = {{{0}, {2}}, {{2}, {2}}, {{4}, {1}}, {{5}, {2}}, {{7}, {2}}, {{9}, {1}}};
    EXPECT_EQ(real_chunks(metadata, "t"), real);
  });
  load_on_mesh("c");
  run_ranks(3, [&](RankContext& ranks) {
    const Place place = place_of(ranks, files);
    StateDict state = {{"t", split_pattern({10}, ranks)}};
    place.load(state, "c");
    expect_same(state, {{"t", split(whole, ranks)}}, c10::str("rank ", ranks.rank()));
    place.save(state, "d");
  });
  load_on_mesh("d");
}

/// Chunks that each rank wrote, from the names of its files.
std::map<std::string, int> chunks_by_writer(const Metadata& metadata) {
  std::map<std::string, int> counts;
  for (const auto& [index, info] : metadata.storage_data) ++counts[info.relative_path.substr(0, 4)];
  return counts;
}

void expect_eight_tensors_load(const std::shared_ptr<FileSystem>& files, const std::string& path) {
  for (const int world : {1, 2, 3}) {
    run_ranks(world, [&](RankContext& ranks) {
      StateDict state;
      StateDict wanted;
      for (int i = 0; i < 8; ++i) {
        const std::string key = "t" + std::to_string(i);
        state[key] = split_pattern({4, 2}, ranks);
        wanted[key] = split(counted({4, 2}) + i, ranks);
      }
      place_of(ranks, files).load(state, path);
      expect_same(state, wanted, c10::str("rank ", ranks.rank(), " of ", world));
    });
  }
}

TEST(Cases, O07_HybridMeshEachElementOnceWorkShared) {
  const auto files = make_memory_file_system();
  const std::map<std::string, int> four_each = {{"__0_", 4}, {"__1_", 4}, {"__2_", 4}, {"__3_", 4}};
  const std::map<std::string, int> two_each = {{"__0_", 2}, {"__1_", 2}, {"__2_", 2}, {"__3_", 2}};
  run_ranks(4, [&](RankContext& ranks) {
    const auto mesh = DeviceMesh::make({2, 2}, ranks.rank());
    StateDict hybrid;
    StateDict plain;
    for (int i = 0; i < 8; ++i) {
      const std::string key = "t" + std::to_string(i);
      hybrid[key] = DTensor::distribute(counted({4, 2}) + i, mesh, {Placement::replicate(), Placement::shard(0)});
      plain[key] = counted({4, 2}) + i;
    }
    const Place place = place_of(ranks, files);
    const Metadata metadata = place.save(hybrid, "hybrid");
    EXPECT_EQ(metadata.storage_data.size(), 16u);
    EXPECT_EQ(chunks_by_writer(metadata), four_each);
    for (int i = 0; i < 8; ++i) {
      for (const Box& chunk : real_chunks(metadata, "t" + std::to_string(i))) EXPECT_EQ(chunk.numel() * 4, 16);
    }
    const Metadata once = place.save(plain, "plain");
    EXPECT_EQ(once.storage_data.size(), 8u);
    EXPECT_EQ(chunks_by_writer(once), two_each);
    StateDict blank;
    for (const auto& [key, value] : plain) blank[key] = pattern({4, 2});
    place.load(blank, "hybrid");
    expect_same(blank, plain, "full tensors");
  });
  expect_eight_tensors_load(files, "hybrid");
  expect_eight_tensors_load(files, "plain");
}

std::string rng_key(int rank) { return "rng.rank" + std::to_string(rank); }
std::string cursor_key(int rank) { return "cursor.rank" + std::to_string(rank); }

at::Generator generator_of(int rank) {
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(1000 + rank));
  at::randn({5}, generator);
  return generator;
}

TEST(Cases, O08_StateThatBelongsToARank) {
  const auto files = make_memory_file_system();
  std::vector<at::Tensor> next(4);
  run_ranks(4, [&](RankContext& ranks) {
    at::Generator generator = generator_of(ranks.rank());
    const StateDict state = {{rng_key(ranks.rank()), generator.get_state()},
                             {cursor_key(ranks.rank()), 100 + ranks.rank()}};
    const Metadata metadata = place_of(ranks, files).save(state, "c");
    EXPECT_EQ(metadata.state_dict_metadata.size(), 8u);
    next[static_cast<std::size_t>(ranks.rank())] = at::randn({3}, generator);
  });
  const std::int64_t state_bytes = generator_of(0).get_state().numel();
  const auto blank = [&](int rank) {
    return StateDict{{rng_key(rank), pattern({state_bytes}, at::kByte)}, {cursor_key(rank), -1}};
  };
  const auto expect_own = [&](const StateDict& state, int rank) {
    EXPECT_EQ(state.at(cursor_key(rank)).as_int(), 100 + rank);
    at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(std::uint64_t{1});
    generator.set_state(state.at(rng_key(rank)).as_tensor());
    EXPECT_TRUE(bit_equal(at::randn({3}, generator), next[static_cast<std::size_t>(rank)]));
  };
  run_ranks(4, [&](RankContext& ranks) {
    StateDict state = blank(ranks.rank());
    place_of(ranks, files).load(state, "c");
    expect_own(state, ranks.rank());
  });
  ErrorsByRank errors(6);
  run_ranks(6, [&](RankContext& ranks) {
    const Place place = place_of(ranks, files);
    const int rank = ranks.rank();
    StateDict state = blank(rank);
    errors.run(rank, [&] { place.load(state, "c"); });
    expect_same(state, blank(rank), "after the failed load");
    LoadOptions partial;
    partial.partial = true;
    const LoadReport report = place.load(state, "c", partial);
    if (rank < 4) {
      EXPECT_TRUE(report.missing.empty());
      expect_own(state, rank);
    } else {
      EXPECT_EQ(report.missing, (std::vector<std::string>{rng_key(rank), cursor_key(rank)}));
      expect_same(state, blank(rank), "untouched");
    }
  });
  errors.expect({4, 5});
  for (int rank = 0; rank < 6; ++rank) {
    for (const std::string& key : {rng_key(rank), cursor_key(rank)}) {
      EXPECT_EQ(errors.text().find(key) != std::string::npos, rank >= 4) << key << " in " << errors.text();
    }
  }
  run_ranks(2, [&](RankContext& ranks) {
    StateDict state = blank(ranks.rank());
    const LoadReport report = place_of(ranks, files).load(state, "c");
    expect_own(state, ranks.rank());
    const std::set<std::string> unexpected(report.unexpected.begin(), report.unexpected.end());
    std::set<std::string> others;
    for (int rank = 0; rank < 4; ++rank) {
      if (rank != ranks.rank()) others.insert({rng_key(rank), cursor_key(rank)});
    }
    EXPECT_EQ(unexpected, others);
  });
}

/// Tells which rank of the whole run merged the plans.
class WhoMerges final : public DefaultSavePlanner {
 public:
  WhoMerges(int global_rank, int& merged_by) : global_rank_(global_rank), merged_by_(merged_by) {}

  std::pair<std::vector<SavePlan>, Metadata> create_global_plan(std::vector<SavePlan> plans) override {
    merged_by_ = global_rank_;
    return DefaultSavePlanner::create_global_plan(std::move(plans));
  }

 private:
  int global_rank_;
  int& merged_by_;
};

TEST(Cases, O09_TwoSubGroupsAtOnce) {
  constexpr int kRounds = 20;
  const auto files = make_memory_file_system();
  int merged_by[2] = {-1, -1};
  run_ranks(4, [&](RankContext& ranks) {
    const int side = ranks.rank() / 2;
    const std::string path = side == 0 ? "a" : "b";
    const float value = static_cast<float>(side + 1);
    // A group without a backend: any collective on it throws.
    const auto group = ranks.unconnected_sub_group(side == 0 ? std::vector{0, 1} : std::vector{2, 3}, path);
    const auto mesh = DeviceMesh::make({2}, ranks.rank() % 2);
    std::mt19937 random(static_cast<unsigned>(ranks.rank()));
    SaveOptions save_options;
    save_options.process_group = group;
    save_options.communicator_options.group_factory = gloo_group_factory({.hostname = "127.0.0.1", .interface = ""});
    save_options.communicator_options.deadline = std::chrono::seconds(20);
    save_options.planner = std::make_shared<WhoMerges>(ranks.rank(), merged_by[side]);
    LoadOptions load_options;
    load_options.process_group = save_options.process_group;
    load_options.communicator_options = save_options.communicator_options;
    for (int round = 0; round < kRounds; ++round) {
      std::this_thread::sleep_for(std::chrono::milliseconds(random() % 5));
      const at::Tensor whole = at::full({3}, value);
      const Metadata metadata = dcp::save({{"x", DTensor::distribute(whole, mesh, {Placement::shard(0)})}}, path,
                                          save_options, {.file_system = files});
      EXPECT_EQ(metadata.storage_meta->checkpoint_id, path);
      std::this_thread::sleep_for(std::chrono::milliseconds(random() % 5));
      StateDict state = {{"x", pattern({3})}};
      dcp::load(state, path, load_options, {.file_system = files});
      expect_same(state, {{"x", whole}}, path);
    }
  });
  EXPECT_EQ(merged_by[0], 0);
  EXPECT_EQ(merged_by[1], 2);
}

TEST(Cases, O19_PlainValues) {
  const auto files = make_memory_file_system();
  const StateDict saved = {{"epoch", 7},
                           {"lr", 1e-3},
                           {"name", "run"},
                           {"flag", true},
                           {"big", (std::int64_t{1} << 53) + 1},
                           {"text", std::string(300 << 10, 'x')},
                           {"bytes", Bytes(300 << 10, 0x7f)}};
  run_ranks(2, [&](RankContext& ranks) {
    const Place place = place_of(ranks, files);
    place.save(saved, "c");
    StateDict zeros = {{"epoch", 0}, {"lr", 0.0},  {"name", ""},      {"flag", false},
                       {"big", 0},   {"text", ""}, {"bytes", Bytes()}};
    place.load(zeros, "c");
    expect_same(zeros, saved, "from zeros");
    EXPECT_EQ(zeros.at("flag").kind(), ValueKind::kBool);
    StateDict other = {{"epoch", ranks.rank()},
                       {"lr", 0.5 + ranks.rank()},
                       {"name", std::to_string(ranks.rank())},
                       {"flag", ranks.rank() == 1},
                       {"big", -ranks.rank()},
                       {"text", std::string(static_cast<std::size_t>(ranks.rank()), 'y')},
                       {"bytes", Bytes(static_cast<std::size_t>(ranks.rank()), 1)}};
    place.load(other, "c");
    expect_same(other, saved, "from other values on each rank");
  });
}

/// Tensors whose elements do not lie in order, and the same with a pattern in their whole storage.
struct Strided {
  at::Tensor base;
  std::function<at::Tensor(const at::Tensor&)> view;
};

std::map<std::string, Strided> strided_tensors() {
  const auto identity = [](const at::Tensor& tensor) { return tensor; };
  return {
      {"transposed", {counted({4, 3}), [](const at::Tensor& base) { return base.t(); }}},
      {"channels_last", {counted({2, 3, 4, 5}).contiguous(at::MemoryFormat::ChannelsLast), identity}},
      {"rows", {counted({1'000'000, 4}), [](const at::Tensor& base) { return base.narrow(0, 10, 10); }}},
      {"columns", {counted({6, 8}), [](const at::Tensor& base) { return base.narrow(1, 2, 3); }}},
      {"expanded", {counted({4, 1}), [](const at::Tensor& base) { return base.expand({4, 8}); }}},
      {"reversed", {counted({2, 3, 4}), [](const at::Tensor& base) { return base.permute({2, 1, 0}); }}},
      {"nothing", {counted({4, 5}), [](const at::Tensor& base) { return base.narrow(0, 2, 0); }}},
  };
}

void expect_strided_load(const Place& place) {
  StateDict saved;
  StateDict contiguous;
  StateDict views;
  std::map<std::string, at::Tensor> bases;
  for (const auto& [name, tensor] : strided_tensors()) {
    saved[name] = tensor.view(tensor.base);
    const at::Tensor whole = pattern(saved.at(name).as_tensor().sizes());
    contiguous[name] = whole;
    if (name == "expanded") continue;
    bases[name] = pattern(tensor.base.sizes());
    if (name == "channels_last") bases[name] = bases[name].contiguous(at::MemoryFormat::ChannelsLast);
    views[name] = tensor.view(bases[name]);
  }
  place.save(saved, "c");
  place.load(contiguous, "c");
  expect_same(contiguous, saved, "contiguous destinations");
  place.load(views, "c");
  saved.erase("expanded");
  expect_same(views, saved, "strided destinations");
  // What lies beside the views is as it was: where it is put back, the pattern is whole.
  for (const auto& [name, base] : bases) {
    const at::Tensor view = strided_tensors().at(name).view(base);
    view.copy_(pattern(view.sizes()));
    EXPECT_TRUE(is_pattern(base)) << name;
  }
}

TEST(Cases, O33_StridesAndStorage) {
  for (const int world : {1, 2}) {
    const auto files = make_memory_file_system();
    run_ranks(world, [&](RankContext& ranks) { expect_strided_load(place_of(ranks, files)); });
  }
  const Place alone;
  const at::Tensor buffer = counted({1'000'000, 4});
  alone.save({{"rows", buffer.narrow(0, 10, 10)}}, "slice");
  std::uint64_t bytes = 0;
  for (const auto& [name, contents] : contents_of(*alone.files, "slice")) {
    if (name.ends_with(".distcp")) bytes += contents.size();
  }
  EXPECT_GE(bytes, 160u);
  EXPECT_LE(bytes, 160u + 4096u);
}

void expect_works_alone(const std::shared_ptr<FileSystem>& base, const StateDict& wanted, SaveOptions save_options,
                        LoadOptions load_options) {
  const auto files = std::make_shared<FaultInjectingFileSystem>(base);
  const Place place{files};
  StateDict whole = {{"t", pattern({6})}, {"n", 0}};
  place.load(whole, "of_four", load_options);
  expect_same(whole, wanted, "of four, into whole tensors");
  expect_same(place.rebuild("of_four"), wanted, "of four, rebuilt");
  place.save_with(whole, "alone", save_options);
  StateDict again = {{"t", pattern({6})}, {"n", 0}};
  place.load(again, "alone", load_options);
  expect_same(again, wanted, "saved alone");

  files->clear_trace();
  const Metadata metadata = place.metadata("of_four");
  EXPECT_EQ(metadata.state_dict_metadata.size(), 2u);
  const auto& tensor = std::get<TensorStorageMetadata>(*metadata.state_dict_metadata.find("t"));
  EXPECT_EQ(tensor.size, Sizes{6});
  EXPECT_EQ(tensor.properties.dtype, at::kFloat);
  EXPECT_TRUE(std::holds_alternative<BytesStorageMetadata>(*metadata.state_dict_metadata.find("n")));
  for (const FileEvent& event : files->trace()) {
    EXPECT_EQ(event.path.find(".distcp"), std::string::npos) << to_string(event);
  }
}

TEST(Cases, O29_WithoutAProcessGroup) {
  const auto files = make_memory_file_system();
  const at::Tensor t = counted({6});
  const StateDict wanted = {{"t", t}, {"n", 5}};
  run_ranks(4, [&](RankContext& ranks) { place_of(ranks, files).save({{"t", split(t, ranks)}, {"n", 5}}, "of_four"); });
  expect_works_alone(files, wanted, {}, {});
  run_ranks(4, [&](RankContext& ranks) {
    if (ranks.rank() != 0) return std::this_thread::sleep_for(std::chrono::milliseconds(50));
    SaveOptions save_options;
    save_options.process_group = ranks.unconnected_group();
    save_options.use_collectives = false;
    save_options.communicator_options.group_factory = [](auto...) -> c10::intrusive_ptr<c10d::ProcessGroup> {
      throw std::runtime_error("a group was made");
    };
    LoadOptions load_options;
    load_options.process_group = save_options.process_group;
    load_options.use_collectives = false;
    load_options.communicator_options.group_factory = save_options.communicator_options.group_factory;
    const auto own_files = make_memory_file_system();
    own_files->create_directories("of_four");
    for (const auto& [name, bytes] : contents_of(*files, "of_four")) write_file(*own_files, "of_four/" + name, bytes);
    expect_works_alone(own_files, wanted, save_options, load_options);
    EXPECT_EQ(names_in(*own_files, "alone"), (std::vector<std::string>{"__0.metadata", "__0_0.distcp"}));
  });
}

}  // namespace
}  // namespace dcp::test

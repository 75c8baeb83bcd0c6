// The benchmark runs, at sizes that say nothing about speed.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>

#include "test/bench/run.h"

namespace dcp::bench {
namespace {

TEST(Bench, MeasuresEverySection) {
  Settings settings;
  settings.rounds = 2;
  settings.large_bytes = 1 << 20;
  settings.large_count = 4;
  settings.small_count = 20;
  settings.slice_tensor_bytes = 8 << 20;
  settings.ranks = 4;
  settings.sharded = 10;
  settings.replicated = 2;
  settings.keys = 1000;
  settings.scale_ranks = {2, 4};
  settings.peer_ranks = 2;
  settings.peer_bytes = 1 << 20;
  settings.peer_count = 2;
  settings.disk = testing::TempDir() + "/bench_disk";
  settings.memory = testing::TempDir() + "/bench_memory";
  settings.json = testing::TempDir() + "/bench.json";
  settings.peer_script = std::filesystem::absolute("test/bench/peer.py");
  std::ostringstream out;
  run(settings, out);

  std::ifstream file(settings.json);
  const nlohmann::json results = nlohmann::json::parse(file);
  std::set<std::string> contests;
  for (const auto& row : results.at("measured")) {
    contests.insert(row.at("contest"));
    EXPECT_GT(row.at("best").get<double>(), 0) << row;
    EXPECT_GE(row.at("median").get<double>(), row.at("best").get<double>()) << row;
  }
  for (const char* contest :
       {"large tensors, durable save", "large tensors, save into the page cache", "large tensors, warm load, disk",
        "large tensors, cold load, disk", "large tensors, save into the memory file system",
        "small tensors, save, disk, durable", "small tensors, warm load, memory file system",
        "one row of 4 KiB of a large tensor", "global plan of 4 ranks", "metadata of 1000 keys",
        "planning, sharded, 4 ranks", "planning, flat shards, 4 ranks", "planning, experts, 4 ranks",
        "checkpoint into the ranks' memory, one copy with another rank", "a state comes back after a rank was lost"}) {
    EXPECT_TRUE(contests.contains(contest)) << contest << " is not in:\n" << out.str();
  }
  EXPECT_NE(out.str().find("half of the columns: bytes read / needed"), std::string::npos);
  // What does not depend on speed holds at any size.
  for (const auto& row : results.at("ratios")) {
    if (row.at("what").get<std::string>().find("bytes read") == std::string::npos) continue;
    EXPECT_TRUE(row.at("holds").get<bool>()) << row;
  }
  EXPECT_TRUE(std::filesystem::is_empty(settings.memory)) << "files were left in memory";
}

}  // namespace
}  // namespace dcp::bench

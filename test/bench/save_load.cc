// Saves and loads beside the machine's limits and beside PyTorch, in one run: prints times, ratios and the targets
// that they are held against.

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

#include "test/bench/run.h"

namespace {

/// Small enough for two or three minutes; what it says of the disk is rough.
void make_quick(dcp::bench::Settings& settings) {
  settings.rounds = 3;
  settings.large_bytes = std::int64_t{256} << 20;
  settings.large_count = 16;
  settings.small_count = 2'000;
  settings.ranks = 64;
  settings.keys = 100'000;
  settings.peer_bytes = std::int64_t{64} << 20;
  settings.scale_ranks = {8, 64, 512};
}

}  // namespace

int main(int argc, char** argv) {
  dcp::bench::Settings settings;
  settings.peer_script = std::filesystem::absolute("test/bench/peer.py");
  CLI::App app{"Measures saves and loads beside raw I/O, Python DCP and LibTorch's archive."};
  bool is_quick = false;
  bool has_no_python = false;
  std::vector<std::string> sections;
  app.add_flag("--quick", is_quick, "smaller sizes and 3 rounds; flags given beside it win");
  app.add_option("--disk", settings.disk, "folder on the disk to measure; what is in its sub-folders is removed")
      ->required();
  app.add_option("--memory", settings.memory, "folder on a memory file system; '' leaves it out");
  app.add_option("--rounds", settings.rounds)->check(CLI::PositiveNumber);
  app.add_option("--threads", settings.threads)->check(CLI::PositiveNumber);
  app.add_option("--large-bytes", settings.large_bytes);
  app.add_option("--large-count", settings.large_count);
  app.add_option("--small-bytes", settings.small_bytes);
  app.add_option("--small-count", settings.small_count);
  app.add_option("--slice-tensor-bytes", settings.slice_tensor_bytes);
  app.add_option("--ranks", settings.ranks);
  app.add_option("--keys", settings.keys);
  app.add_option("--scale-ranks", settings.scale_ranks, "ranks of the simulated jobs, rising")->delimiter(',');
  app.add_option("--peer-ranks", settings.peer_ranks, "that save into each other's memory")->check(CLI::Range(2, 64));
  app.add_option("--peer-bytes", settings.peer_bytes, "that they save in all");
  app.add_option("--python-slow-rounds", settings.python_slow_rounds, "of what takes Python a minute");
  app.add_option("--only", sections, "sections: large small slice planning metadata scale memory")->delimiter(',');
  app.add_flag("--no-python", has_no_python);
  app.add_option("--json", settings.json, "file for all results");
  for (int i = 1; i < argc; ++i) {
    if (std::string(argv[i]) == "--quick") make_quick(settings);
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error);
  }
  if (const char* folder = std::getenv("BUILD_WORKING_DIRECTORY")) std::filesystem::current_path(folder);
  if (has_no_python) settings.peer_script.clear();
  if (!sections.empty()) settings.sections = {sections.begin(), sections.end()};
  // Folders of its own, since what is in them is removed.
  settings.disk = std::filesystem::absolute(settings.disk) / "torch_dcp_bench";
  if (!settings.memory.empty()) settings.memory = std::filesystem::absolute(settings.memory) / "torch_dcp_bench";
  try {
    dcp::bench::run(settings, std::cout);
  } catch (const std::exception& error) {
    std::cerr << "save_load: " << error.what() << "\n";
    return 1;
  }
  return 0;
}

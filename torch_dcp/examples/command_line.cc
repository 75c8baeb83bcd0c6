#include "torch_dcp/examples/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <filesystem>

namespace dcp::examples {
namespace {

constexpr const char* kDescription =
    "Trains a character-level language model on several ranks and saves it with torch_dcp. "
    "Without --ranks, and not started by torchrun, mpirun or srun, it shows what checkpoints are for: it trains "
    "without interruption, then again on 3 ranks of which one is killed, resumes on 2 ranks from the newest complete "
    "checkpoint, and compares both runs bit for bit. With --memory-every it does so with files alone and with "
    "checkpoints in the ranks' memory, and says what was lost in each.";

/// So that there are steps after a kill in the second half.
constexpr std::int64_t kDiskSavesInMemoryRun = 2;

/// `bazel run` starts programs in a folder of its own and tells where the user was.
std::string absolute_path(const std::string& path) {
  if (path.empty()) return path;
  const char* user_folder = std::getenv("BUILD_WORKING_DIRECTORY");
  const std::filesystem::path base = user_folder != nullptr ? user_folder : std::filesystem::current_path();
  return (base / path).lexically_normal().string();
}

void add_options(CLI::App& app, CommandLine& line) {
  RunOptions& run = line.run;
  app.add_option("--ranks", line.ranks, "Train on this number of ranks, each a process that is started here")
      ->check(CLI::Range(1, 1024));
  app.add_option("--text", run.text, "File to learn from (default: a licence that Debian has)");
  app.add_option("--dir", run.folder, "Folder of the checkpoints (default: a temporary one)");
  app.add_flag("--keep", line.keep, "Keep the temporary folder");
  app.add_option("--steps", run.steps, "Steps in all")->capture_default_str()->check(CLI::Range(1, 1000000));
  app.add_option("--save-every,--disk-every", run.save_every, "Steps from one checkpoint in files to the next")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000000));
  app.add_option("--memory-every", run.memory_every,
                 "Steps from one checkpoint in the ranks' memory to the next; 0: none")
      ->capture_default_str()
      ->check(CLI::Range(0, 1000000));
  app.add_option("--vault", run.vaults, "mem://SOCKET of the dcp_memory on each rank's machine, by rank");
  app.add_option("--kill", line.kill, "The rank that --memory-every loses (default: the last of 3, or of --ranks)")
      ->check(CLI::Range(0, 1023));
  app.add_flag("--replace", line.replace, "What was killed comes back, on a machine with empty memory");
  app.add_flag("--resume", run.resume, "Go on from the newest complete checkpoint in --dir");
  app.add_option("--seed", run.seed, "Of all random numbers")->capture_default_str();
  app.add_option("--batch", run.sequences, "Sequences in a batch, of all ranks together")
      ->capture_default_str()
      ->check(CLI::Range(1, 4096));
  app.add_option("--layers", run.sizes.layers)->capture_default_str()->check(CLI::Range(1, 1000));
  app.add_option("--width", run.sizes.width, "Features; a multiple of 4")
      ->capture_default_str()
      ->check(CLI::Range(4, 65536));
  app.add_option("--context", run.sizes.context, "Characters in a sequence")
      ->capture_default_str()
      ->check(CLI::Range(1, 65536));
  app.add_option("--compare", line.compare, "Only compare the newest checkpoints of two runs' folders")->expected(2);
}

}  // namespace

std::variant<CommandLine, int> read_command_line(int argc, char** argv) {
  CLI::App app{kDescription};
  CommandLine line;
  add_options(app, line);
  try {
    app.parse(argc, argv);
    if (line.kill && line.run.memory_every == 0) throw CLI::RequiresError("--kill", "--memory-every");
    if (line.run.memory_every > 0 && app.count("--steps") == 0) {
      line.run.steps = std::max(line.run.steps, kDiskSavesInMemoryRun * line.run.save_every);
    }
    if (line.run.sizes.width % line.run.sizes.heads != 0) {
      throw CLI::ValidationError("--width", "must be a multiple of " + std::to_string(line.run.sizes.heads));
    }
  } catch (const CLI::ParseError& error) {
    return app.exit(error);
  }
  line.run.text = absolute_path(line.run.text);
  line.run.folder = absolute_path(line.run.folder);
  for (std::string& folder : line.compare) folder = absolute_path(folder);
  return line;
}

std::vector<std::string> to_arguments(const RunOptions& run) {
  std::vector<std::string> arguments = {
      "--text",       run.text,
      "--dir",        run.folder,
      "--steps",      std::to_string(run.steps),
      "--save-every", std::to_string(run.save_every),
      "--seed",       std::to_string(run.seed),
      "--batch",      std::to_string(run.sequences),
      "--layers",     std::to_string(run.sizes.layers),
      "--width",      std::to_string(run.sizes.width),
      "--context",    std::to_string(run.sizes.context),
  };
  if (run.resume) arguments.emplace_back("--resume");
  if (run.memory_every > 0) {
    arguments.insert(arguments.end(), {"--memory-every", std::to_string(run.memory_every)});
  }
  for (const std::string& vault : run.vaults) arguments.insert(arguments.end(), {"--vault", vault});
  return arguments;
}

}  // namespace dcp::examples

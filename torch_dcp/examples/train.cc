// Trains a small language model with torch_dcp: saves, loses a process, and comes back with another number of ranks.
//
// Exit codes: 0 fine (and, where something was compared, equal), 1 not; wrong use has those of CLI11.

#include <c10/util/Exception.h>

#include <exception>
#include <filesystem>
#include <iostream>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>

#include "tools/progress/progress_bar.h"
#include "torch_dcp/examples/command_line.h"
#include "torch_dcp/examples/compare_runs.h"
#include "torch_dcp/examples/demonstration.h"
#include "torch_dcp/examples/local_job.h"
#include "torch_dcp/examples/memory_demonstration.h"
#include "torch_dcp/examples/progress_link.h"
#include "torch_dcp/examples/run_folder.h"
#include "torch_dcp/examples/temporary_folder.h"
#include "torch_dcp/examples/train_run.h"

namespace dcp::examples {
namespace {

constexpr int kRanksToLoseOneOf = 3;

std::string default_text() {
  for (const char* name : {"GPL-3", "GPL-2", "Apache-2.0"}) {
    const std::string path = std::string("/usr/share/common-licenses/") + name;
    if (std::filesystem::exists(path)) return path;
  }
  throw std::runtime_error("there is no licence in /usr/share/common-licenses to learn from: give a --text");
}

std::string count_of_ranks(int ranks) { return std::to_string(ranks) + (ranks == 1 ? " rank" : " ranks"); }

int run_as_rank(const RunOptions& run, const LaunchEnvironment& environment) {
  if (run.folder.empty()) throw std::runtime_error("give all ranks one folder for the checkpoints: --dir");
  std::optional<ProgressLink> link = ProgressLink::inherited(process_variables());
  if (link || environment.rank != 0) {
    run_rank(run, environment, [&](const StepReport& report) { link->report(report); });
    return 0;
  }
  tool::ProgressBar bar(std::cout, tool::stdout_is_terminal(), count_of_ranks(environment.world_size),
                        tool::ProgressBar::Unit::kSteps, run.steps);
  run_rank(run, environment, [&](const StepReport& report) { bar.update(report.step, loss_note(report)); });
  return 0;
}

int run_job(const RunOptions& run, int ranks) {
  const LocalJobResult result = run_local_job(run, {ranks, count_of_ranks(ranks), {}}, std::cout);
  if (!result.is_clean()) throw std::runtime_error("training failed: " + result.describe_failures());
  return 0;
}

std::string newest_path(const std::string& folder) {
  const auto newest = newest_checkpoint(folder);
  if (!newest) throw std::runtime_error("no complete checkpoint in '" + folder + "'");
  return newest->path;
}

int compare(const std::string& a, const std::string& b) {
  const RunComparison comparison = compare_checkpoints(newest_path(a), newest_path(b));
  if (!comparison.is_equal()) {
    std::cout << "not equal: '" << a << "' and '" << b << "': " << comparison.difference << std::endl;
    return 1;
  }
  std::cout << "equal: " << comparison.losses << " losses and " << comparison.tensors << " tensors of '" << a
            << "' and '" << b << "', bit for bit" << std::endl;
  return 0;
}

int run(CommandLine line) {
  if (!line.compare.empty()) return compare(line.compare[0], line.compare[1]);
  RunOptions& run = line.run;
  if (run.text.empty()) run.text = default_text();
  if (!line.ranks && !line.kill) {
    if (const auto environment = read_launch_environment(process_variables())) return run_as_rank(run, *environment);
  }
  if (run.resume && run.folder.empty()) throw std::runtime_error("--resume needs the folder of a run: --dir");
  if (run.resume && !line.ranks) throw std::runtime_error("--resume needs a number of ranks: --ranks");
  std::optional<TemporaryFolder> temporary;
  if (run.folder.empty()) run.folder = temporary.emplace("train", line.keep).path();
  if (line.kill || (run.memory_every > 0 && !line.ranks)) {
    const int ranks = line.ranks.value_or(kRanksToLoseOneOf);
    return demonstrate_memory(run, {ranks, line.kill.value_or(ranks - 1), line.replace}, std::cout) ? 0 : 1;
  }
  if (line.ranks) return run_job(run, *line.ranks);
  return demonstrate(run, std::cout) ? 0 : 1;
}

/// Whose error it is, where several processes write to one terminal.
std::string speaker() {
  const std::optional<std::string> rank = process_variables()("RANK");
  return rank ? "rank " + *rank : "train";
}

}  // namespace
}  // namespace dcp::examples

int main(int argc, char** argv) {
  const auto line = dcp::examples::read_command_line(argc, argv);
  if (const int* exit_code = std::get_if<int>(&line)) return *exit_code;
  try {
    return dcp::examples::run(std::get<dcp::examples::CommandLine>(line));
  } catch (const c10::Error& error) {
    std::cerr << dcp::examples::speaker() << ": " << error.what_without_backtrace() << std::endl;
  } catch (const std::exception& error) {
    std::cerr << dcp::examples::speaker() << ": " << error.what() << std::endl;
  }
  return 1;
}

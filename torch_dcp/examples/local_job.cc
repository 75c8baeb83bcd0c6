#include "torch_dcp/examples/local_job.h"

#include <algorithm>
#include <chrono>

#include "tools/progress/progress_bar.h"
#include "torch_dcp/examples/command_line.h"

namespace dcp::examples {
namespace {

/// A rank whose peer was killed notices at once; this is for one that does not.
constexpr std::chrono::seconds kGrace{20};

}  // namespace

bool LocalJobResult::is_clean() const {
  return std::all_of(exits.begin(), exits.end(), [](const RankExit& exit) { return exit.is_clean(); });
}

std::string LocalJobResult::describe_failures() const {
  std::string text;
  for (std::size_t rank = 0; rank < exits.size(); ++rank) {
    const RankExit& exit = exits[rank];
    if (exit.is_clean()) continue;
    text += (text.empty() ? "rank " : ", rank ") + std::to_string(rank) + ": ";
    if (exit.by_launcher) {
      text += "did not end by itself";
    } else if (exit.signal != 0) {
      text += "signal " + std::to_string(exit.signal);
    } else {
      text += "exit code " + std::to_string(exit.exit_code);
    }
  }
  return text;
}

LocalJobResult run_local_job(const RunOptions& run, const LocalJobOptions& options, std::ostream& out) {
  LocalJobResult result;
  tool::ProgressBar bar(out, tool::stdout_is_terminal(), options.label, tool::ProgressBar::Unit::kSteps, run.steps);
  ProcessLauncher launcher(options.ranks, to_arguments(run));
  const auto on_report = [&](const StepReport& report) {
    result.losses[report.step] = report.loss;
    result.told_at[report.step] = LocalJobResult::Clock::now();
    result.last_report = report;
    bar.update(report.step, loss_note(report));
    if (!options.kill || report.step != options.kill->after_step) return;
    bar.finish();  // the others will have something to say
    result.killed_at = LocalJobResult::Clock::now();
    launcher.kill_rank(options.kill->rank);
  };
  result.exits = launcher.wait(on_report, kGrace);
  result.ended_at = LocalJobResult::Clock::now();
  return result;
}

}  // namespace dcp::examples

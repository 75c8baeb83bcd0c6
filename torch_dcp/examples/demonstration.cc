#include "torch_dcp/examples/demonstration.h"

#include <algorithm>
#include <bit>
#include <csignal>
#include <ostream>
#include <sstream>
#include <stdexcept>
#include <string>

#include "torch_dcp/examples/compare_runs.h"
#include "torch_dcp/examples/local_job.h"
#include "torch_dcp/examples/run_folder.h"

namespace dcp::examples {
namespace {

constexpr int kRanksBefore = 3;
constexpr int kRanksAfter = 2;

/// Between two checkpoints, in the second half of the run.
std::int64_t step_to_kill_after(const RunOptions& run) {
  const std::int64_t saved = std::max<std::int64_t>(1, run.steps * 3 / 5 / run.save_every) * run.save_every;
  const std::int64_t step = saved + std::max<std::int64_t>(1, run.save_every / 2);
  if (step >= run.steps) {
    throw std::runtime_error("--steps " + std::to_string(run.steps) +
                             " leaves no step between a checkpoint (--save-every " + std::to_string(run.save_every) +
                             ") and the end to kill a rank in");
  }
  return step;
}

LocalJobResult run_to_the_end(const RunOptions& run, const LocalJobOptions& job, std::ostream& out) {
  LocalJobResult result = run_local_job(run, job, out);
  if (!result.is_clean()) throw std::runtime_error(job.label + ": failed: " + result.describe_failures());
  return result;
}

LocalJobResult run_until_killed(const RunOptions& run, const LocalJobOptions& job, std::ostream& out) {
  LocalJobResult result = run_local_job(run, job, out);
  const bool was_killed = result.exits.back().signal == SIGKILL && !result.exits.back().by_launcher;
  const bool others_failed = std::all_of(result.exits.begin(), result.exits.end() - 1,
                                         [](const RankExit& exit) { return exit.exit_code != 0 && !exit.by_launcher; });
  if (!was_killed || !others_failed) {
    throw std::runtime_error(job.label + ": the last rank was to be killed and the others to end with an error, but: " +
                             (result.is_clean() ? "all ended well" : result.describe_failures()));
  }
  return result;
}

/// The first loss that differs from the reference's; empty if none does.
std::string loss_difference(const LocalJobResult& reference, const LocalJobResult& other) {
  for (const auto& [step, loss] : other.losses) {
    const double expected = reference.losses.at(step);
    if (std::bit_cast<std::uint64_t>(loss) == std::bit_cast<std::uint64_t>(expected)) continue;
    std::ostringstream text;
    text << "loss of step " << step << ": " << std::hexfloat << expected << " and " << loss;
    return text.str();
  }
  return {};
}

}  // namespace

bool demonstrate(const RunOptions& run, std::ostream& out) {
  const std::int64_t kill_step = step_to_kill_after(run);
  RunOptions whole = run;
  whole.folder = run.folder + "/uninterrupted";
  RunOptions broken = run;
  broken.folder = run.folder + "/interrupted";

  const LocalJobResult reference = run_to_the_end(whole, {1, "uninterrupted, 1 rank ", {}}, out);
  const LocalJobResult before = run_until_killed(broken, {kRanksBefore, "interrupted,   3 ranks", kill_step}, out);
  const auto newest = newest_checkpoint(broken.folder);
  if (!newest) throw std::runtime_error("the interrupted run left no complete checkpoint");
  out << "rank " << kRanksBefore - 1 << " was killed after step " << kill_step << " (" << before.describe_failures()
      << "); the newest complete checkpoint is of step " << newest->step << std::endl;
  broken.resume = true;
  const LocalJobResult after = run_to_the_end(broken, {kRanksAfter, "resumed,       2 ranks", {}}, out);

  RunComparison comparison =
      compare_checkpoints(checkpoint_path(whole.folder, run.steps), checkpoint_path(broken.folder, run.steps));
  for (const LocalJobResult* job : {&after, &before}) {
    if (const std::string difference = loss_difference(reference, *job); !difference.empty()) {
      comparison.difference = difference;
    }
  }
  if (!comparison.is_equal()) {
    out << "not equal: uninterrupted run and resumed run: " << comparison.difference << std::endl;
    return false;
  }
  out << "equal: " << comparison.losses << " losses and " << comparison.tensors << " tensors of the run interrupted on "
      << kRanksBefore << " ranks and resumed on " << kRanksAfter << " are bit for bit those of the uninterrupted run"
      << std::endl;
  return true;
}

}  // namespace dcp::examples

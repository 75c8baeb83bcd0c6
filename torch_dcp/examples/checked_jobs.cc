#include "torch_dcp/examples/checked_jobs.h"

#include <algorithm>
#include <bit>
#include <csignal>
#include <cstddef>
#include <ios>
#include <sstream>
#include <stdexcept>

#include "torch_dcp/examples/run_folder.h"

namespace dcp::examples {
namespace {

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

/// Whether that rank was killed, and the others noticed.
bool went_as_planned(const LocalJobResult& result, int killed_rank) {
  for (std::size_t rank = 0; rank < result.exits.size(); ++rank) {
    const RankExit& exit = result.exits[rank];
    const bool is_right = static_cast<int>(rank) == killed_rank ? exit.signal == SIGKILL : exit.exit_code != 0;
    if (!is_right || exit.by_launcher) return false;
  }
  return true;
}

}  // namespace

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
  if (!went_as_planned(result, job.kill->rank)) {
    throw std::runtime_error(job.label + ": rank " + std::to_string(job.kill->rank) +
                             " was to be killed and the others to end with an error, but: " +
                             (result.is_clean() ? "all ended well" : result.describe_failures()));
  }
  return result;
}

RunComparison compare_runs(const WholeRun& whole, const BrokenRun& broken, std::int64_t step) {
  RunComparison comparison =
      compare_checkpoints(checkpoint_path(whole.folder, step), checkpoint_path(broken.folder, step));
  for (const LocalJobResult* job : {&broken.after, &broken.before}) {
    if (const std::string difference = loss_difference(whole.job, *job); !difference.empty()) {
      comparison.difference = difference;
    }
  }
  return comparison;
}

}  // namespace dcp::examples

#include "torch_dcp/examples/demonstration.h"

#include <ostream>
#include <stdexcept>
#include <string>

#include "torch_dcp/examples/checked_jobs.h"
#include "torch_dcp/examples/compare_runs.h"
#include "torch_dcp/examples/local_job.h"
#include "torch_dcp/examples/run_folder.h"

namespace dcp::examples {
namespace {

constexpr int kRanksBefore = 3;
constexpr int kRanksAfter = 2;

}  // namespace

bool demonstrate(const RunOptions& run, std::ostream& out) {
  const std::int64_t kill_step = step_to_kill_after(run);
  RunOptions whole = run;
  whole.folder = run.folder + "/uninterrupted";
  RunOptions broken = run;
  broken.folder = run.folder + "/interrupted";

  const LocalJobResult reference = run_to_the_end(whole, {1, "uninterrupted, 1 rank ", {}}, out);
  const Kill kill{kRanksBefore - 1, kill_step};
  const LocalJobResult before = run_until_killed(broken, {kRanksBefore, "interrupted,   3 ranks", kill}, out);
  const auto newest = newest_checkpoint(broken.folder);
  if (!newest) throw std::runtime_error("the interrupted run left no complete checkpoint");
  out << "rank " << kill.rank << " was killed after step " << kill_step << " (" << before.describe_failures()
      << "); the newest complete checkpoint is of step " << newest->step << std::endl;
  broken.resume = true;
  const LocalJobResult after = run_to_the_end(broken, {kRanksAfter, "resumed,       2 ranks", {}}, out);

  const RunComparison comparison = compare_runs({whole.folder, reference}, {broken.folder, before, after}, run.steps);
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

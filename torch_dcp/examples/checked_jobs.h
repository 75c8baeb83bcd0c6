#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>

#include "torch_dcp/examples/compare_runs.h"
#include "torch_dcp/examples/local_job.h"
#include "torch_dcp/examples/train_run.h"

namespace dcp::examples {

/// The step after which demonstrations kill a rank: between two checkpoints in files, in the second half of the run.
/// \throws std::runtime_error if the run has none.
std::int64_t step_to_kill_after(const RunOptions& run);

/// \throws std::runtime_error if a rank fails.
LocalJobResult run_to_the_end(const RunOptions& run, const LocalJobOptions& job, std::ostream& out);

/// \param job  With a rank to kill.
/// \throws std::runtime_error unless that rank is killed and each other one ends with an error of its own.
LocalJobResult run_until_killed(const RunOptions& run, const LocalJobOptions& job, std::ostream& out);

/// A run that was not interrupted, and how its job went.
struct WholeRun {
  const std::string& folder;
  const LocalJobResult& job;
};

/// A run that was interrupted, and how its jobs went.
struct BrokenRun {
  const std::string& folder;
  const LocalJobResult& before;
  const LocalJobResult& after;
};

/// Compares every loss that any process told, and all that the checkpoints of `step` hold.
RunComparison compare_runs(const WholeRun& whole, const BrokenRun& broken, std::int64_t step);

}  // namespace dcp::examples

#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "torch_dcp/examples/launch_environment.h"
#include "torch_dcp/examples/step_report.h"
#include "torch_dcp/examples/transformer_sizes.h"

namespace dcp::examples {

/// The job's name at its memory servers.
inline constexpr const char* kMemoryJob = "train";

/// What to train, how long, and where to save. Alike on every rank.
struct RunOptions {
  std::string text;    ///< file
  std::string folder;  ///< of the run's checkpoints
  std::int64_t steps = 30;
  std::int64_t save_every = 5;      ///< steps, to files; the last step is always saved
  std::int64_t memory_every = 0;    ///< steps, to the ranks' memory; 0: to files alone
  std::vector<std::string> vaults;  ///< by rank: its machine's memory server; none: the trainer's own memory
  bool resume = false;              ///< from the newest complete checkpoint, in memory or in `folder`
  std::uint64_t seed = 1;
  std::int64_t sequences = 6;  ///< in a batch
  TransformerSizes sizes = {};
};

/// Trains as one rank of a job, from the start or from the newest complete checkpoint, to the last step.
///
/// \param on_step  Called on rank 0 after each step, before it is saved.
/// \throws std::runtime_error if there is nothing to resume from, or a run in the folder that must not be mixed with
///         this one; dcp::Error or c10::Error if another rank is gone.
/// Collective: yes, all ranks of the job.
void run_rank(const RunOptions& options, const LaunchEnvironment& environment,
              const std::function<void(const StepReport&)>& on_step);

}  // namespace dcp::examples

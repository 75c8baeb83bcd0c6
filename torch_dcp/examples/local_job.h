#pragma once

#include <chrono>
#include <cstdint>
#include <iosfwd>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "torch_dcp/examples/process_launcher.h"
#include "torch_dcp/examples/train_run.h"

namespace dcp::examples {

/// A rank that is to be lost.
struct Kill {
  int rank = 0;
  std::int64_t after_step = 0;  ///< while this step's report is handled, so before the step is saved
};

/// How a run is carried out on this machine.
struct LocalJobOptions {
  int ranks = 1;
  std::string label;  ///< in front of its progress
  std::optional<Kill> kill;
};

struct LocalJobResult {
  using Clock = std::chrono::steady_clock;

  std::vector<RankExit> exits;                        ///< by rank
  std::map<std::int64_t, double> losses;              ///< step -> loss, as rank 0 told them
  std::map<std::int64_t, Clock::time_point> told_at;  ///< step -> when
  StepReport last_report;                             ///< with what the run was resumed from
  std::optional<Clock::time_point> killed_at;
  Clock::time_point ended_at;

  bool is_clean() const;
  /// How the ranks that did not end well ended, such as `rank 2: signal 9`.
  std::string describe_failures() const;
};

/// Starts the ranks as processes, shows their progress, and waits for them.
/// \throws std::system_error if the system refuses.
LocalJobResult run_local_job(const RunOptions& run, const LocalJobOptions& options, std::ostream& out);

}  // namespace dcp::examples

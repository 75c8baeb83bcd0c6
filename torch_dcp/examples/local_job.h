#pragma once

#include <cstdint>
#include <iosfwd>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "torch_dcp/examples/process_launcher.h"
#include "torch_dcp/examples/train_run.h"

namespace dcp::examples {

/// How a run is carried out on this machine.
struct LocalJobOptions {
  int ranks = 1;
  std::string label;                            ///< in front of its progress
  std::optional<std::int64_t> kill_after_step;  ///< kills the last rank while this step's report is handled
};

struct LocalJobResult {
  std::vector<RankExit> exits;            ///< by rank
  std::map<std::int64_t, double> losses;  ///< step -> loss, as rank 0 told them

  bool is_clean() const;
  /// How the ranks that did not end well ended, such as `rank 2: signal 9`.
  std::string describe_failures() const;
};

/// Starts the ranks as processes, shows their progress, and waits for them.
/// \throws std::system_error if the system refuses.
LocalJobResult run_local_job(const RunOptions& run, const LocalJobOptions& options, std::ostream& out);

}  // namespace dcp::examples

#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "torch_dcp/examples/progress_link.h"

namespace dcp::examples {

/// How a rank's process ended.
struct RankExit {
  int exit_code = 0;
  int signal = 0;            ///< that ended it; 0 if it ended by itself
  bool by_launcher = false;  ///< killed since others had failed and it did not end by itself

  bool is_clean() const { return exit_code == 0 && signal == 0; }
};

/// Runs this program again as the processes of one job on this machine.
///
/// Each gets its rank and the meeting place as torchrun would give it, and one thread for LibTorch and its
/// BLAS. Rank 0 also gets the bound socket of the store and the link over which it reports.
class ProcessLauncher {
 public:
  /// Starts the processes; a rank runs `/proc/self/exe` with `arguments`.
  /// \throws std::system_error if the system refuses. What was started is killed.
  ProcessLauncher(int ranks, const std::vector<std::string>& arguments);
  /// Kills what still runs.
  ~ProcessLauncher();
  ProcessLauncher(const ProcessLauncher&) = delete;
  ProcessLauncher& operator=(const ProcessLauncher&) = delete;

  /// Called for each report of rank 0, which waits until it returns.
  using ReportHandler = std::function<void(const StepReport&)>;

  /// Handles reports until all processes have ended. Once one has failed the others have `grace` to end by themselves.
  /// \returns Entry per rank.
  std::vector<RankExit> wait(const ReportHandler& on_report, std::chrono::milliseconds grace);

  /// Kills a rank as a machine that fails would: SIGKILL.
  void kill_rank(int rank);

 private:
  struct Process {
    pid_t id = -1;
    bool is_running = false;
    RankExit exit;
  };

  void start(int rank, int ranks, const std::vector<std::string>& arguments, int store_socket, int link_socket,
             int store_port);
  void handle_reports(const ReportHandler& on_report, std::chrono::milliseconds patience);
  void reap();
  void kill_running();
  bool any_running() const;
  bool any_failed() const;

  std::vector<Process> processes_;
  std::unique_ptr<ProgressLink> link_;
};

}  // namespace dcp::examples

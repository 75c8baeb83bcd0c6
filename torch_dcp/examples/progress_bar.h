#pragma once

#include <chrono>
#include <iosfwd>
#include <string>

namespace dcp::examples {

/// Shows how far a run is, with loss and rate: on a terminal one line that is written over and over, elsewhere a plain
/// line now and then.
class ProgressBar {
 public:
  ProgressBar(std::ostream& out, bool is_terminal, std::string label, int total_steps);
  /// Finishes.
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  /// \param step  Steps done, from 1; ascends. A run that was resumed begins with a later one.
  void update(int step, double loss);

  /// Ends the line, so that others can write.
  void finish();

 private:
  std::string line(int step, double loss) const;

  std::ostream& out_;
  bool is_terminal_;
  std::string label_;
  int total_steps_;
  int first_step_ = 0;
  bool has_open_line_ = false;
  std::chrono::steady_clock::time_point start_;
};

/// Whether standard output is a terminal.
bool stdout_is_terminal();

}  // namespace dcp::examples

#pragma once

#include <cstdint>
#include <cstdio>
#include <string>

namespace dcp::examples {

/// What rank 0 tells after each step.
struct StepReport {
  std::int64_t step = 0;  ///< steps done
  double loss = 0;        ///< of the step's whole batch, before the step

  // Of the run's start, alike in all its reports.
  std::int64_t resumed_from = -1;  ///< the step whose checkpoint was loaded; -1 for none
  bool from_memory = false;        ///< of ranks, not a file
  double load_seconds = 0;         ///< from the meeting of the ranks until the state was back
};

/// What a progress bar says of it.
inline std::string loss_note(const StepReport& report) {
  char text[64];
  std::snprintf(text, sizeof text, "loss %.4f", report.loss);
  return text;
}

}  // namespace dcp::examples

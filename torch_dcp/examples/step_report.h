#pragma once

#include <cstdint>

namespace dcp::examples {

/// What rank 0 tells after each step.
struct StepReport {
  std::int64_t step = 0;  ///< steps done
  double loss = 0;        ///< of the step's whole batch, before the step
};

}  // namespace dcp::examples

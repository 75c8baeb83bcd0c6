#pragma once

#include <iosfwd>

#include "torch_dcp/examples/train_run.h"

namespace dcp::examples {

/// A machine that fails.
struct LostMachine {
  int ranks = 3;             ///< of the job, each on a machine of its own
  int killed = 2;            ///< this one fails, and its memory with it
  bool is_replaced = false;  ///< the job goes on with another in its place, whose memory is empty; else without it
};

/// Shows what a machine that fails costs with checkpoints in the memory of ranks, and what with those in files alone:
/// trains three times, without interruption, with files, and with memory and files, kills a rank at the same step of
/// both of the latter, and resumes. Prints for both the steps and the time that were lost.
///
/// \param run  `memory_every` is of the third run; `folder` is for all, in folders of their own.
/// \returns Whether all losses and checkpoints of the three are equal, to the last bit.
/// \throws std::runtime_error if a run does not go as it should.
bool demonstrate_memory(const RunOptions& run, const LostMachine& lost, std::ostream& out);

}  // namespace dcp::examples

#pragma once

#include <iosfwd>

#include "torch_dcp/examples/train_run.h"

namespace dcp::examples {

/// Shows that a run that loses a process and comes back with another number of ranks is the run that was never
/// interrupted: trains on 1 rank; trains on 3 ranks, kills one in mid-training, and resumes on 2 from the newest
/// complete checkpoint; compares every loss that any process told, and all that the last checkpoints hold.
///
/// \param run  `folder` is for both runs, in folders of their own.
/// \returns Whether all was equal, to the last bit. The last line on `out` says what was compared.
/// \throws std::runtime_error if a run does not go as it should.
bool demonstrate(const RunOptions& run, std::ostream& out);

}  // namespace dcp::examples

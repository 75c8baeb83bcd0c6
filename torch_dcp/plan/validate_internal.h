#pragma once

#include <optional>
#include <string>

#include "torch_dcp/plan/box_sweep_internal.h"
#include "torch_dcp/plan/metadata.h"

namespace dcp {

/// What a look at the chunks of one tensor says.
struct ChunkCheck {
  /// The first fault but uncovered elements: then nothing else here means anything.
  std::optional<std::string> fault;
  std::int64_t numel = 0;          ///< elements of the tensor
  std::int64_t covered_numel = 0;  ///< elements that chunks hold

  bool covers_all() const { return covered_numel == numel; }
};

/// \param counters  Grows by the comparisons made; may be null.
ChunkCheck check_chunks(const TensorStorageMetadata& tensor, SweepCounters* counters = nullptr);

}  // namespace dcp

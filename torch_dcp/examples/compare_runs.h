#pragma once

#include <cstddef>
#include <string>

namespace dcp::examples {

/// What the comparison of two checkpoints has found.
struct RunComparison {
  std::size_t losses = 0;   ///< compared
  std::size_t tensors = 0;  ///< compared: parameters, moments and random states
  std::string difference;   ///< the first one; empty if all is equal to the last bit

  bool is_equal() const { return difference.empty(); }
};

/// Compares all that two checkpoints of training runs hold.
///
/// \throws dcp::Error or dcp::CheckpointError if one cannot be read; dcp::Error kKey or kType if it is of no such run.
RunComparison compare_checkpoints(const std::string& a, const std::string& b);

}  // namespace dcp::examples

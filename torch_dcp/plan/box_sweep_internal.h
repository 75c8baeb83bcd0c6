#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "torch_dcp/tensor/box.h"

namespace dcp {

// Geometry of many boxes at once, by sweeping instead of comparing all pairs. All boxes have the
// same ndim, no negative numbers, and ends (offset + size) that fit 64 bits.

/// What a sweep cost; tests hold it to n log n.
struct SweepCounters {
  std::uint64_t sort_comparisons = 0;  ///< of coordinates, while sorting and searching
  std::uint64_t pair_tests = 0;        ///< of two boxes for overlap
};

/// Numbers of two boxes that overlap, or nothing. Empty boxes overlap nothing.
///
/// O(n log n) for boxes that differ in one or two dimensions, and, per dimension, for all that cutting and cutting
/// again can make.
/// \throws dcp::Error kUnsupported for others, if they are so many that it takes more than about 16 million tests.
std::optional<std::pair<std::size_t, std::size_t>> find_overlap(const std::vector<Box>& boxes,
                                                                SweepCounters* counters = nullptr);

/// A part of `region` that no box covers, or nothing if there is none.
///
/// \param boxes  Must not overlap each other.
/// O(n log n) per dimension.
std::optional<Box> find_uncovered(const Box& region, const std::vector<Box>& boxes, SweepCounters* counters = nullptr);

/// Finds, for one box after the other, those of a fixed set that overlap it.
class OverlapFinder {
 public:
  /// \param boxes  Must outlive the finder.
  explicit OverlapFinder(const std::vector<Box>& boxes, SweepCounters* counters = nullptr);

  /// Numbers of the boxes that overlap `box`, rising. For boxes cut along one dimension it
  /// takes O(log n + found); else it tests those that overlap in the most finely cut one.
  std::vector<std::size_t> overlaps(const Box& box) const;

 private:
  const std::vector<Box>& boxes_;
  SweepCounters* counters_;
  std::size_t dim_ = 0;
  std::vector<std::size_t> by_begin_;       ///< numbers of non-empty boxes by their begin in dim_
  std::vector<std::int64_t> greatest_end_;  ///< in dim_, of the boxes so far in that order: rising
};

}  // namespace dcp

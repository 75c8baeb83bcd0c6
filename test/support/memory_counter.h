#pragma once

#include <cstdint>

/// Counts the memory of the whole process that malloc and its kind give: new and delete, the C++ library, and
/// LibTorch's CPU allocator go through them. (Memory that is mapped straight from the system is not seen.) A program
/// that links this counts from its start.
namespace dcp::testing {

/// What has been allocated since an object of this was made, and the most at a time. One at a time.
class PeakMemory {
 public:
  PeakMemory();

  /// Beyond what was allocated at the beginning.
  std::int64_t bytes() const;

  /// What is allocated now beyond that; negative if some of it has been freed.
  std::int64_t held_bytes() const;

  /// All that was allocated since, what has been freed again included: a copy of a tensor shows here.
  std::int64_t allocated_bytes() const;

 private:
  std::int64_t begin_;
  std::int64_t total_begin_;
};

}  // namespace dcp::testing

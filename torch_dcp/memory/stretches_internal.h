#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <vector>

#include "torch_dcp/base/bytes.h"

namespace dcp {

/// The memory of one file: stretches, one behind the other. Borrows the bytes.
class Stretches {
 public:
  /// Adds bytes at the end. \pre Not empty.
  void push_back(MutableByteSpan bytes) {
    stretches_.push_back({capacity_, bytes});
    capacity_ += bytes.size();
  }

  /// Bytes of all of them.
  std::uint64_t capacity() const { return capacity_; }

  /// The bytes from `offset` on that lie in one stretch, at most `wanted`. \pre `offset` < capacity().
  MutableByteSpan at(std::uint64_t offset, std::uint64_t wanted) const {
    const auto after = std::upper_bound(stretches_.begin(), stretches_.end(), offset,
                                        [](std::uint64_t at, const Stretch& stretch) { return at < stretch.offset; });
    const Stretch& stretch = *std::prev(after);
    const MutableByteSpan rest = stretch.bytes.subspan(offset - stretch.offset);
    return rest.first(static_cast<std::size_t>(std::min<std::uint64_t>(rest.size(), wanted)));
  }

 private:
  struct Stretch {
    std::uint64_t offset = 0;  ///< within the file
    MutableByteSpan bytes;
  };

  std::vector<Stretch> stretches_;
  std::uint64_t capacity_ = 0;
};

}  // namespace dcp

#pragma once

#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "torch_dcp/base/export.h"

namespace dcp {

/// Numbers per dimension: sizes, offsets or strides, in elements.
using Sizes = c10::SmallVector<std::int64_t, 4>;

/// Spells `[2, 3]`.
DCP_API std::string to_string(c10::IntArrayRef sizes);

/// An axis-aligned region of a tensor in global coordinates, without data.
///
/// A box of 0 dimensions holds one element. Offsets and sizes are never negative
/// in boxes that `make_box` or this library's own code made.
struct DCP_API Box {
  Sizes offsets;  ///< [ndim]
  Sizes sizes;    ///< [ndim]

  std::size_t ndim() const { return offsets.size(); }
  /// Elements in the box: the product of its sizes, 1 for 0 dimensions.
  /// \throws dcp::Error kInvalidArgument if that does not fit 64 bits.
  std::int64_t numel() const;
  /// Whether one of the sizes is 0.
  bool empty() const;
  /// Whether `other` lies inside; false if its ndim differs.
  bool contains(const Box& other) const;

  friend bool operator==(const Box& a, const Box& b) { return a.offsets == b.offsets && a.sizes == b.sizes; }
};

/// A checked box.
///
/// \throws dcp::Error kInvalidArgument if the counts differ, a number is negative, or an end or the
///         number of elements does not fit 64 bits.
DCP_API Box make_box(c10::IntArrayRef offsets, c10::IntArrayRef sizes);

/// The box that covers a whole tensor of `sizes`.
DCP_API Box whole_box(c10::IntArrayRef sizes);

/// The elements that both boxes hold; nothing if there are none. An empty box
/// overlaps nothing; two boxes of 0 dimensions overlap.
///
/// \pre Both have the same ndim.
DCP_API std::optional<Box> intersect(const Box& a, const Box& b);

/// Spells `[0, 0] + [2, 3]`: offsets, then sizes.
DCP_API std::string to_string(const Box& box);

struct SizesHash {
  std::size_t operator()(const Sizes& sizes) const {
    std::size_t hash = 0x9e3779b97f4a7c15ull + sizes.size();
    for (std::int64_t size : sizes) {
      hash ^= std::hash<std::int64_t>()(size) + 0x9e3779b97f4a7c15ull + (hash << 6) + (hash >> 2);
    }
    return hash;
  }
};

}  // namespace dcp

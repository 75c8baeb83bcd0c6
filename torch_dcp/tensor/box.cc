#include "torch_dcp/tensor/box.h"

#include <algorithm>

#include "torch_dcp/base/checked_math.h"
#include "torch_dcp/base/error.h"

namespace dcp {

std::string to_string(c10::IntArrayRef sizes) {
  std::string text = "[";
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(sizes[i]);
  }
  return text + "]";
}

std::int64_t Box::numel() const {
  const auto count = checked_numel(sizes);
  DCP_CHECK(count, kInvalidArgument, "box of sizes ", to_string(sizes), ": the number of elements is out of range");
  return *count;
}

bool Box::empty() const { return std::find(sizes.begin(), sizes.end(), 0) != sizes.end(); }

bool Box::contains(const Box& other) const {
  if (other.ndim() != ndim()) return false;
  for (std::size_t d = 0; d < ndim(); ++d) {
    // Differences instead of ends, which could overflow.
    if (other.offsets[d] < offsets[d] || other.sizes[d] > sizes[d]) return false;
    if (other.offsets[d] - offsets[d] > sizes[d] - other.sizes[d]) return false;
  }
  return true;
}

Box make_box(c10::IntArrayRef offsets, c10::IntArrayRef sizes) {
  Box box{Sizes(offsets.begin(), offsets.end()), Sizes(sizes.begin(), sizes.end())};
  DCP_CHECK(offsets.size() == sizes.size(), kInvalidArgument, "box ", to_string(box), ": ", offsets.size(),
            " offsets, but ", sizes.size(), " sizes");
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    DCP_CHECK(offsets[d] >= 0 && sizes[d] >= 0 && checked_add(offsets[d], sizes[d]), kInvalidArgument, "box ",
              to_string(box), ": out of range in dimension ", d);
  }
  box.numel();  // Throws if it overflows.
  return box;
}

Box whole_box(c10::IntArrayRef sizes) { return {Sizes(sizes.size(), 0), Sizes(sizes.begin(), sizes.end())}; }

std::optional<Box> intersect(const Box& a, const Box& b) {
  Box both;
  for (std::size_t d = 0; d < a.ndim(); ++d) {
    const std::int64_t begin = std::max(a.offsets[d], b.offsets[d]);
    const std::int64_t end = std::min(a.offsets[d] + a.sizes[d], b.offsets[d] + b.sizes[d]);
    if (begin >= end) return std::nullopt;
    both.offsets.push_back(begin);
    both.sizes.push_back(end - begin);
  }
  return both;
}

std::string to_string(const Box& box) { return to_string(box.offsets) + " + " + to_string(box.sizes); }

}  // namespace dcp

#include "torch_dcp/plan/chunk_list.h"

#include <algorithm>
#include <utility>

#include "torch_dcp/base/error.h"

namespace dcp {

ChunkList::ChunkList(std::initializer_list<Box> chunks) {
  for (const Box& chunk : chunks) push_back(chunk);
}

ChunkList::ChunkList(const std::vector<Box>& chunks) {
  if (!chunks.empty()) reserve(chunks.size(), chunks[0].ndim());
  for (const Box& chunk : chunks) push_back(chunk);
}

ChunkList::Extent ChunkList::extent(std::size_t number) const {
  if (!extents_.empty()) return extents_[number];
  const auto ndim = static_cast<std::uint32_t>(ndim_);
  return {2 * ndim_ * number, ndim, ndim};
}

c10::IntArrayRef ChunkList::offsets(std::size_t number) const {
  const Extent at = extent(number);
  return {numbers_.data() + at.begin, at.offset_count};
}

c10::IntArrayRef ChunkList::sizes(std::size_t number) const {
  const Extent at = extent(number);
  return {numbers_.data() + at.begin + at.offset_count, at.size_count};
}

Box ChunkList::operator[](std::size_t number) const {
  const c10::IntArrayRef from = offsets(number);
  const c10::IntArrayRef extents = sizes(number);
  return {Sizes(from.begin(), from.end()), Sizes(extents.begin(), extents.end())};
}

Box ChunkList::at(std::size_t number) const {
  DCP_CHECK(number < size_, kInvalidArgument, "chunk ", number, " of ", size_);
  return (*this)[number];
}

std::vector<Box> ChunkList::boxes() const {
  std::vector<Box> boxes;
  boxes.reserve(size_);
  for (std::size_t i = 0; i < size_; ++i) boxes.push_back((*this)[i]);
  return boxes;
}

void ChunkList::begin_mixed() {
  extents_.reserve(size_ + 1);
  for (std::size_t i = 0; i < size_; ++i) {
    const auto ndim = static_cast<std::uint32_t>(ndim_);
    extents_.push_back({2 * ndim_ * i, ndim, ndim});
  }
}

void ChunkList::push_back(const Box& chunk) {
  if (size_ == 0) ndim_ = chunk.offsets.size();
  const bool is_alike = chunk.offsets.size() == ndim_ && chunk.sizes.size() == ndim_;
  if (!is_alike && extents_.empty()) begin_mixed();
  if (!is_alike || !extents_.empty()) {
    extents_.push_back({numbers_.size(), static_cast<std::uint32_t>(chunk.offsets.size()),
                        static_cast<std::uint32_t>(chunk.sizes.size())});
  }
  numbers_.insert(numbers_.end(), chunk.offsets.begin(), chunk.offsets.end());
  numbers_.insert(numbers_.end(), chunk.sizes.begin(), chunk.sizes.end());
  ++size_;
}

void ChunkList::replace(std::size_t number, const Box& chunk) {
  const Extent at = extent(number);
  if (chunk.offsets.size() != at.offset_count || chunk.sizes.size() != at.size_count) {
    std::vector<Box> all = boxes();
    all[number] = chunk;
    *this = ChunkList(all);
    return;
  }
  const auto place = numbers_.begin() + static_cast<std::ptrdiff_t>(at.begin);
  std::copy(chunk.sizes.begin(), chunk.sizes.end(), std::copy(chunk.offsets.begin(), chunk.offsets.end(), place));
}

void ChunkList::swap(ChunkList& other) noexcept {
  std::swap(size_, other.size_);
  std::swap(ndim_, other.ndim_);
  numbers_.swap(other.numbers_);
  extents_.swap(other.extents_);
}

void ChunkList::clear() { *this = ChunkList(); }

void ChunkList::reserve(std::size_t count, std::size_t ndim) { numbers_.reserve(2 * count * ndim); }

void ChunkList::shrink_to_fit() {
  numbers_.shrink_to_fit();
  extents_.shrink_to_fit();
}

bool ChunkList::is_equal(const ChunkList& other) const {
  if (size_ != other.size_) return false;
  if (extents_.empty() && other.extents_.empty()) {
    return (size_ == 0 || ndim_ == other.ndim_) && numbers_ == other.numbers_;
  }
  for (std::size_t i = 0; i < size_; ++i) {
    if (offsets(i) != other.offsets(i) || sizes(i) != other.sizes(i)) return false;
  }
  return true;
}

}  // namespace dcp

#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <utility>
#include <vector>

#include "torch_dcp/tensor/box.h"

namespace dcp {

/// The stored chunks of one tensor, in as many numbers as say where they lie: a checkpoint of thousands of ranks has
/// millions of them, and as a `Box` each would take five times the memory.
///
/// Reads like a vector of boxes, which are made when they are asked for. Boxes of any ndim can be held, of one ndim
/// only without more memory.
class DCP_API ChunkList {
 public:
  using value_type = Box;
  class const_iterator;
  using iterator = const_iterator;

  ChunkList() = default;
  ChunkList(std::initializer_list<Box> chunks);
  ChunkList(const std::vector<Box>& chunks);  // not explicit: boxes are what it is made of everywhere
  ChunkList(const ChunkList&) = default;
  ChunkList(ChunkList&& other) noexcept { swap(other); }
  ChunkList& operator=(ChunkList other) noexcept {
    swap(other);
    return *this;
  }
  ~ChunkList() = default;

  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  Box operator[](std::size_t number) const;
  /// \throws dcp::Error kInvalidArgument if there are not so many.
  Box at(std::size_t number) const;
  Box front() const { return (*this)[0]; }
  Box back() const { return (*this)[size_ - 1]; }
  /// Of one chunk, without a copy; until the list is changed. [ndim]
  c10::IntArrayRef offsets(std::size_t number) const;
  c10::IntArrayRef sizes(std::size_t number) const;
  const_iterator begin() const;
  const_iterator end() const;
  /// All of them, for what works on boxes.
  std::vector<Box> boxes() const;

  void push_back(const Box& chunk);
  /// Puts another in the place of one.
  void replace(std::size_t number, const Box& chunk);
  void clear();
  /// For so many chunks in all, of the ndim.
  void reserve(std::size_t count, std::size_t ndim);
  /// Gives back the memory that growing took ahead.
  void shrink_to_fit();

  friend bool operator==(const ChunkList& a, const ChunkList& b) { return a.is_equal(b); }

 private:
  struct Extent {
    std::size_t begin = 0;
    std::uint32_t offset_count = 0;
    std::uint32_t size_count = 0;
  };

  Extent extent(std::size_t number) const;
  void begin_mixed();
  void swap(ChunkList& other) noexcept;
  bool is_equal(const ChunkList& other) const;

  std::size_t size_ = 0;
  std::size_t ndim_ = 0;               ///< of the first chunk, and of all if `extents_` is empty
  std::vector<std::int64_t> numbers_;  ///< of each chunk the offsets, then the sizes
  std::vector<Extent> extents_;        ///< of each chunk, from the first on that has another ndim
};

class ChunkList::const_iterator {
 public:
  using iterator_category = std::input_iterator_tag;  // what it gives is no reference
  using value_type = Box;
  using difference_type = std::ptrdiff_t;
  using pointer = const Box*;
  using reference = Box;

  const_iterator() = default;
  const_iterator(const ChunkList& list, std::size_t number) : list_(&list), number_(number) {}

  Box operator*() const { return (*list_)[number_]; }
  const_iterator& operator++() {
    ++number_;
    return *this;
  }
  const_iterator operator++(int) { return {*list_, number_++}; }
  friend bool operator==(const const_iterator& a, const const_iterator& b) { return a.number_ == b.number_; }

 private:
  const ChunkList* list_ = nullptr;
  std::size_t number_ = 0;
};

inline ChunkList::const_iterator ChunkList::begin() const { return {*this, 0}; }
inline ChunkList::const_iterator ChunkList::end() const { return {*this, size_}; }

}  // namespace dcp

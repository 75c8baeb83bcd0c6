#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <limits>
#include <new>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "torch_dcp/base/bytes.h"
#include "torch_dcp/base/error.h"
#include "torch_dcp/base/page_memory.h"
#include "torch_dcp/pickle/value.h"

namespace dcp::pickle {

/// Hands out the memory of one `Pickle`: nodes and lists from the front of a chunk,
/// characters, which need no alignment, from its back. Nothing is freed on its own.
class Arena {
 public:
  /// \param chunks      Receives the chunks; outlives the arena.
  /// \param input_size  Bytes of the pickle, a hint for the first chunk.
  Arena(std::vector<PageMemory>& chunks, std::size_t input_size)
      : chunks_(chunks), next_chunk_size_(std::clamp(input_size * 8, kSmallestChunk, kFirstChunk)) {}

  /// \pre `T` is the struct for that kind.
  template <typename T>
  T* make_node(NodeKind kind) {
    static_assert(std::is_trivially_destructible_v<T> && alignof(T) <= kAlignment);
    return new (allocate(sizeof(T))) T(kind);
  }

  /// \pre `text` has less than 4 GiB.
  Text copy(std::string_view text) {
    Text result;
    if (text.empty()) return result;
    const auto size = static_cast<std::uint32_t>(text.size());
    std::byte* block = allocate_characters(sizeof(size) + text.size());
    std::memcpy(block, &size, sizeof(size));
    std::memcpy(block + sizeof(size), text.data(), text.size());
    result.block_ = reinterpret_cast<const char*>(block);
    return result;
  }

  void append(List<Ref>& list, std::span<const Ref> values) {
    if (!values.empty()) std::copy(values.begin(), values.end(), extend(list, values.size()));
  }

  /// Appends pairs of which `values` has the parts, one after the other.
  void append_pairs(List<std::pair<Ref, Ref>>& list, std::span<const Ref> values) {
    if (values.empty()) return;
    std::pair<Ref, Ref>* to = extend(list, values.size() / 2);
    for (std::size_t i = 0; i + 1 < values.size(); i += 2) new (to++) std::pair<Ref, Ref>(values[i], values[i + 1]);
  }

 private:
  static constexpr std::size_t kSmallestChunk = 1 << 10;
  static constexpr std::size_t kFirstChunk = 1 << 16;
  static constexpr std::size_t kLargestChunk = 1 << 22;
  /// What is larger gets a chunk of its own, so that little of the present one is given up.
  static constexpr std::size_t kLargeValue = 1 << 14;
  static constexpr std::size_t kAlignment = 8;

  std::size_t room() const { return static_cast<std::size_t>(back_ - front_); }

  std::byte* allocate_characters(std::size_t byte_count) {
    if (byte_count > room()) {
      if (byte_count > kLargeValue) return new_chunk(byte_count);
      start_chunk(byte_count);
    }
    return back_ -= byte_count;
  }

  void* allocate(std::size_t byte_count) {
    byte_count = (byte_count + kAlignment - 1) / kAlignment * kAlignment;
    if (byte_count > room()) {
      if (byte_count > kLargeValue) return new_chunk(byte_count);
      start_chunk(byte_count);
    }
    std::byte* result = front_;
    front_ += byte_count;
    return result;
  }

  /// Makes `count` more places and returns the first. At first exactly as many are made, later
  /// at least twice as many as there were.
  template <typename T>
  T* extend(List<T>& list, std::size_t count) {
    const std::size_t old_size = list.size();
    const std::size_t size = old_size + count;
    if (list.block_ == nullptr || size > list.block_->capacity) grow(list, std::max(size, old_size * 2));
    list.block_->size = static_cast<std::uint32_t>(size);
    return List<T>::elements(list.block_) + old_size;
  }

  template <typename T>
  void grow(List<T>& list, std::size_t capacity) {
    using Block = typename List<T>::Block;
    static_assert(std::is_trivially_destructible_v<T> && alignof(T) <= kAlignment && sizeof(Block) % alignof(T) == 0);
    DCP_CHECK(capacity <= std::numeric_limits<std::uint32_t>::max(), kCorruptData,
              "pickle: a container of more than 2^32 places");
    Block* block = new (allocate(sizeof(Block) + capacity * sizeof(T))) Block;
    block->size = static_cast<std::uint32_t>(list.size());
    block->capacity = static_cast<std::uint32_t>(capacity);
    std::uninitialized_copy(list.begin(), list.end(), List<T>::elements(block));
    list.block_ = block;
  }

  std::byte* new_chunk(std::size_t byte_count) {
    chunks_.push_back(make_page_memory(byte_count));
    return chunks_.back().get();
  }

  void start_chunk(std::size_t at_least) {
    const std::size_t byte_count = std::max(next_chunk_size_, (at_least + kAlignment - 1) / kAlignment * kAlignment);
    next_chunk_size_ = std::min(next_chunk_size_ * 2, kLargestChunk);
    front_ = new_chunk(byte_count);
    back_ = front_ + byte_count;
  }

  std::vector<PageMemory>& chunks_;
  std::size_t next_chunk_size_;
  std::byte* front_ = nullptr;  ///< aligned
  std::byte* back_ = nullptr;
};

}  // namespace dcp::pickle

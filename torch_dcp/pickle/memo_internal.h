#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <unordered_map>

#include "torch_dcp/pickle/value.h"

namespace dcp::pickle {

/// The numbered values of a pickle. Picklers count from 0, which an array serves; its
/// size follows how many values were stored, never the numbers that a file states. Numbers
/// far beyond go into a map.
class Memo {
 public:
  std::size_t size() const { return size_; }

  void set(std::uint32_t number, Node* value) {
    if (number >= dense_.size() && number <= 2 * size_ + kSlack) dense_.resize(number + std::size_t{1}, nullptr);
    if (number >= dense_.size()) {
      size_ += sparse_.insert_or_assign(number, value).second ? 1 : 0;
      return;
    }
    Node*& slot = dense_[number];
    // The array may have grown over a number that is in the map.
    if (slot == nullptr && (sparse_.empty() || sparse_.erase(number) == 0)) ++size_;
    slot = value;
  }

  /// Returns null for a number that was never stored.
  Node* get(std::uint32_t number) const {
    if (number < dense_.size() && dense_[number] != nullptr) return dense_[number];
    if (sparse_.empty()) return nullptr;
    const auto found = sparse_.find(number);
    return found == sparse_.end() ? nullptr : found->second;
  }

 private:
  static constexpr std::size_t kSlack = 16;

  std::size_t size_ = 0;     ///< how many numbers have a value
  std::deque<Node*> dense_;  ///< grows without a copy
  std::unordered_map<std::uint32_t, Node*> sparse_;
};

}  // namespace dcp::pickle

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "torch_dcp/base/ordered_map.h"

namespace dcp {

/// Numbers keys by first appearance.
///
/// Ranks mostly list the same keys in the same order, so the key after the last one is tried
/// before hashing: planning for hundreds of ranks is bound by these look-ups. Borrows the keys.
class KeyTable {
 public:
  struct Place {
    std::uint32_t number = 0;
    bool is_new = false;
  };

  Place add(const std::string& key) {
    for (std::uint32_t guess = last_; guess < size() && guess <= last_ + 1; ++guess) {
      if (this->key(guess) == key) return {last_ = guess, false};
    }
    const std::size_t size_before = size();
    std::uint32_t& number = numbers_[key];
    const bool is_new = size() > size_before;
    if (is_new) number = static_cast<std::uint32_t>(size_before);
    return {last_ = number, is_new};
  }

  void reserve(std::size_t count) { numbers_.reserve(count); }

  /// Makes the first key the next guess, for another rank's list.
  void rewind() { last_ = 0; }

  std::size_t size() const { return numbers_.size(); }
  std::string_view key(std::uint32_t number) const { return (numbers_.begin() + number)->first; }

 private:
  OrderedMap<std::string_view, std::uint32_t> numbers_;
  std::uint32_t last_ = 0;
};

}  // namespace dcp

#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

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
    for (std::uint32_t guess = last_; guess < keys_.size() && guess <= last_ + 1; ++guess) {
      if (keys_[guess] == key) return {last_ = guess, false};
    }
    const auto [it, is_new] = numbers_.try_emplace(key, static_cast<std::uint32_t>(keys_.size()));
    if (is_new) keys_.push_back(key);
    last_ = it->second;
    return {last_, is_new};
  }

  /// Makes the first key the next guess, for another rank's list.
  void rewind() { last_ = 0; }

  std::size_t size() const { return keys_.size(); }
  std::string_view key(std::uint32_t number) const { return keys_[number]; }

 private:
  std::vector<std::string_view> keys_;
  std::unordered_map<std::string_view, std::uint32_t> numbers_;
  std::uint32_t last_ = 0;
};

}  // namespace dcp

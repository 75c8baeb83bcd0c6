#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace dcp {

/// A name in which `*` stands for any characters, dots too, and `?` for one.
class KeyPattern {
 public:
  explicit KeyPattern(std::string pattern) : pattern_(std::move(pattern)) {}

  static bool is_pattern(std::string_view name) { return name.find_first_of("*?") != std::string_view::npos; }

  /// Whether it matches the key or a dotted prefix of it. O(pattern x key): keys come from files.
  bool selects(std::string_view key) const {
    // All places in the pattern that the characters so far can have led to.
    std::vector<bool> places(pattern_.size() + 1, false);
    places[0] = true;
    pass_stars(places);
    for (const char c : key) {
      if (c == '.' && places.back()) return true;
      std::vector<bool> next(places.size(), false);
      bool has_any = false;
      for (std::size_t i = 0; i < pattern_.size(); ++i) {
        if (!places[i]) continue;
        if (pattern_[i] == '*') {
          next[i] = has_any = true;
        } else if (pattern_[i] == '?' || pattern_[i] == c) {
          next[i + 1] = has_any = true;
        }
      }
      if (!has_any) return false;
      pass_stars(next);
      places.swap(next);
    }
    return places.back();
  }

 private:
  /// A star may stand for nothing.
  void pass_stars(std::vector<bool>& places) const {
    for (std::size_t i = 0; i < pattern_.size(); ++i) {
      if (places[i] && pattern_[i] == '*') places[i + 1] = true;
    }
  }

  std::string pattern_;
};

}  // namespace dcp

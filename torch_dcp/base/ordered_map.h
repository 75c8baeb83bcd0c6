#pragma once

#include <cstddef>
#include <functional>
#include <initializer_list>
#include <unordered_map>
#include <utility>
#include <vector>

namespace dcp {

/// A map that keeps the order of insertion, as Python's dict does.
///
/// Iterators are those of a vector of pairs: a key must not be changed through
/// one. Inserting invalidates them; `erase` costs O(size).
template <typename K, typename V, typename Hash = std::hash<K>>
class OrderedMap {
 public:
  using value_type = std::pair<K, V>;
  using iterator = typename std::vector<value_type>::iterator;
  using const_iterator = typename std::vector<value_type>::const_iterator;

  OrderedMap() = default;
  OrderedMap(std::initializer_list<value_type> entries) {
    for (const value_type& entry : entries) insert_or_assign(entry.first, entry.second);
  }

  iterator begin() { return entries_.begin(); }
  iterator end() { return entries_.end(); }
  const_iterator begin() const { return entries_.begin(); }
  const_iterator end() const { return entries_.end(); }
  std::size_t size() const { return entries_.size(); }
  bool empty() const { return entries_.empty(); }

  bool contains(const K& key) const { return index_.contains(key); }

  /// Returns the value of `key`, or null.
  V* find(const K& key) {
    const auto it = index_.find(key);
    return it == index_.end() ? nullptr : &entries_[it->second].second;
  }
  const V* find(const K& key) const {
    const auto it = index_.find(key);
    return it == index_.end() ? nullptr : &entries_[it->second].second;
  }

  /// Returns the value of `key`, default-constructed at the end if it is new.
  V& operator[](const K& key) {
    const auto [it, is_new] = index_.try_emplace(key, entries_.size());
    if (is_new) entries_.emplace_back(key, V());
    return entries_[it->second].second;
  }

  /// Adds the pair unless the key is there. Returns whether it was added.
  bool insert(K key, V value) {
    const auto [it, is_new] = index_.try_emplace(key, entries_.size());
    if (is_new) entries_.emplace_back(std::move(key), std::move(value));
    return is_new;
  }

  void insert_or_assign(K key, V value) {
    const auto [it, is_new] = index_.try_emplace(key, entries_.size());
    if (is_new) {
      entries_.emplace_back(std::move(key), std::move(value));
    } else {
      entries_[it->second].second = std::move(value);
    }
  }

  bool erase(const K& key) {
    const auto it = index_.find(key);
    if (it == index_.end()) return false;
    const std::size_t position = it->second;
    index_.erase(it);
    entries_.erase(entries_.begin() + static_cast<std::ptrdiff_t>(position));
    for (auto& [other, at] : index_) {
      if (at > position) --at;
    }
    return true;
  }

  void reserve(std::size_t count) {
    entries_.reserve(count);
    index_.reserve(count);
  }

 private:
  std::vector<value_type> entries_;
  std::unordered_map<K, std::size_t, Hash> index_;
};

}  // namespace dcp

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <utility>
#include <vector>

#include "torch_dcp/base/error.h"

namespace dcp {

/// A map that keeps the order of insertion, as Python's dict does.
///
/// Iterators are those of a vector of pairs: a key must not be changed through
/// one. Inserting invalidates them; `erase` costs O(size).
///
/// Its index is, as in Python, one table of positions: a checkpoint has maps of a million keys, and a node for each
/// entry, with a key of its own, would take most of the time and memory of planning.
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

  bool contains(const K& key) const { return find(key) != nullptr; }

  /// Returns the value of `key`, or null.
  V* find(const K& key) { return const_cast<V*>(std::as_const(*this).find(key)); }
  const V* find(const K& key) const {
    if (entries_.empty()) return nullptr;
    const Slot& slot = slots_[place_of(key, hash_of(key))];
    return slot.number == 0 ? nullptr : &entries_[slot.number - 1].second;
  }

  /// Returns the value of `key`, default-constructed at the end if it is new.
  V& operator[](const K& key) {
    Slot& slot = slot_for(key);
    if (slot.number == 0) {
      entries_.emplace_back(key, V());
      take(slot, entries_.back().first);
    }
    return entries_[slot.number - 1].second;
  }

  /// Adds the pair unless the key is there. Returns whether it was added.
  bool insert(K key, V value) {
    Slot& slot = slot_for(key);
    if (slot.number != 0) return false;
    entries_.emplace_back(std::move(key), std::move(value));
    take(slot, entries_.back().first);
    return true;
  }

  void insert_or_assign(K key, V value) {
    Slot& slot = slot_for(key);
    if (slot.number != 0) {
      entries_[slot.number - 1].second = std::move(value);
      return;
    }
    entries_.emplace_back(std::move(key), std::move(value));
    take(slot, entries_.back().first);
  }

  bool erase(const K& key) {
    if (entries_.empty()) return false;
    const Slot& slot = slots_[place_of(key, hash_of(key))];
    if (slot.number == 0) return false;
    entries_.erase(entries_.begin() + static_cast<std::ptrdiff_t>(slot.number - 1));
    // All behind it have moved, and a table cannot have holes.
    slots_.assign(slots_.size(), {});
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      const std::uint32_t hash = hash_of(entries_[i].first);
      slots_[free_place(hash)] = {hash, static_cast<std::uint32_t>(i + 1)};
    }
    return true;
  }

  void reserve(std::size_t count) {
    entries_.reserve(count);
    if (count > room(slots_.size())) grow_to(count);
  }

 private:
  static constexpr std::size_t kFewestSlots = 8;

  struct Slot {
    std::uint32_t hash = 0;
    std::uint32_t number = 0;  ///< of the entry, counted from 1; 0 where there is none
  };

  /// Entries that a table of so many slots may have.
  static std::size_t room(std::size_t slot_count) { return slot_count / 8 * 5; }

  static std::uint32_t hash_of(const K& key) {
    // An int's hash may be the int itself: the high bits of the product depend on all of it.
    return static_cast<std::uint32_t>((static_cast<std::uint64_t>(Hash()(key)) * 0x9e3779b97f4a7c15) >> 32);
  }

  /// Where the key is, or where it would be. \pre There are slots, and not all of them are taken.
  std::size_t place_of(const K& key, std::uint32_t hash) const {
    const std::size_t mask = slots_.size() - 1;
    for (std::size_t place = hash & mask;; place = (place + 1) & mask) {
      const Slot& slot = slots_[place];
      if (slot.number == 0 || (slot.hash == hash && entries_[slot.number - 1].first == key)) return place;
    }
  }

  std::size_t free_place(std::uint32_t hash) const {
    const std::size_t mask = slots_.size() - 1;
    std::size_t place = hash & mask;
    while (slots_[place].number != 0) place = (place + 1) & mask;
    return place;
  }

  /// The slot of the key, or a free one that it can take.
  Slot& slot_for(const K& key) {
    if (entries_.size() >= room(slots_.size())) grow_to(entries_.size() + 1);
    return slots_[place_of(key, hash_of(key))];
  }

  void take(Slot& slot, const K& key) { slot = {hash_of(key), static_cast<std::uint32_t>(entries_.size())}; }

  void grow_to(std::size_t count) {
    DCP_CHECK(count < UINT32_MAX, kUnsupported, "a map of ", count, " entries");
    std::size_t slot_count = std::max(kFewestSlots, slots_.size());
    while (room(slot_count) < count) slot_count *= 2;
    std::vector<Slot> old(slot_count);
    old.swap(slots_);
    for (const Slot& slot : old) {
      if (slot.number != 0) slots_[free_place(slot.hash)] = slot;
    }
  }

  std::vector<value_type> entries_;
  std::vector<Slot> slots_;  ///< a power of two of them
};

}  // namespace dcp

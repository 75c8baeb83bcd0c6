#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "torch_dcp/base/ordered_map.h"
#include "torch_dcp/plan/stored_item.h"

namespace dcp {

/// Where the items of a checkpoint lie: a map from `MetadataIndex` to `StorageInfo` that keeps the order of insertion.
///
/// Takes 32 bytes an item, 8 for each dimension and 5 to 11 for finding it; keys and file names are held once each. As
/// a map of the two structs it would be ten times that, of millions of items. Values are made when they are asked for.
class DCP_API StorageTable {
 public:
  using value_type = std::pair<MetadataIndex, StorageInfo>;

  /// One item without a copy; until the table is changed.
  struct Row {
    const std::string& fqn;
    bool has_offset;
    c10::IntArrayRef chunk_offsets;  ///< [ndim] if `has_offset`
    std::optional<std::int64_t> index;
    const std::string& relative_path;
    std::int64_t offset;  ///< in bytes
    std::int64_t length;  ///< in bytes, after transforms
    const std::vector<std::string>& transform_descriptors;
  };

  template <bool kMakesRows>
  class Iterator;
  using const_iterator = Iterator<false>;
  using iterator = const_iterator;

  /// The same items as `Row`.
  class Rows;

  std::size_t size() const { return rows_.size(); }
  bool empty() const { return rows_.empty(); }
  const_iterator begin() const;
  const_iterator end() const;
  Rows rows() const;
  Row row(std::size_t number) const;
  value_type operator[](std::size_t number) const;

  bool contains(const MetadataIndex& index) const { return find_row(index) != kNone; }
  std::optional<StorageInfo> find(const MetadataIndex& index) const;

  /// Adds the item unless one of this name is there. Returns whether it was added.
  /// \throws dcp::Error kUnsupported beyond 4 billion items or numbers in their offsets, or for a chunk of more than
  ///         254 dimensions.
  bool insert(const MetadataIndex& index, const StorageInfo& info);
  /// As `insert`; the name that is there keeps its place and its hint.
  void insert_or_assign(const MetadataIndex& index, const StorageInfo& info);
  /// O(size).
  bool erase(const MetadataIndex& index);
  void reserve(std::size_t count);
  /// Gives back the memory that growing took ahead.
  void shrink_to_fit();

  /// Equal names, hints aside, with equal values in the same order.
  friend bool operator==(const StorageTable& a, const StorageTable& b) { return a.is_equal(b); }

 private:
  static constexpr std::uint32_t kNone = UINT32_MAX;
  static constexpr std::uint32_t kNoHint = (1u << 24) - 1;
  static constexpr std::uint32_t kOtherHint = kNoHint - 1;  ///< what does not fit is in `other_hints_`
  static constexpr std::uint32_t kNoOffset = 0xff;

  struct PackedRow {
    std::uint32_t fqn = 0;         ///< its number in `fqns_`
    std::uint32_t place = 0;       ///< its file's number in `places_`
    std::uint32_t numbers_at = 0;  ///< where its chunk's offsets begin in `numbers_`
    std::uint32_t hint : 24 = 0;   ///< the chunk's number
    std::uint32_t ndim : 8 = 0;    ///< or `kNoOffset`
    std::int64_t offset = 0;       ///< in bytes
    std::int64_t length = 0;       ///< in bytes
  };

  /// A file, and what the items in it went through.
  struct Place {
    std::string relative_path;
    std::vector<std::string> transform_descriptors;

    friend bool operator==(const Place&, const Place&) = default;
  };
  struct PlaceHash {
    std::size_t operator()(const Place& place) const;
  };

  c10::IntArrayRef offsets_of(const PackedRow& row) const;
  std::optional<std::int64_t> hint_of(std::uint32_t number) const;
  static std::uint32_t hash_of(std::uint32_t fqn, bool has_offset, c10::IntArrayRef offsets);
  bool is_named(const PackedRow& row, std::uint32_t fqn, const MetadataIndex& index) const;
  /// Where in `slots_` the item is, or would be. \pre There are slots, and not all of them are taken.
  std::size_t slot_of(std::uint32_t fqn, const MetadataIndex& index) const;
  std::uint32_t find_row(const MetadataIndex& index) const;
  std::uint32_t number_of_fqn(const std::string& fqn);
  std::uint32_t number_of_place(const StorageInfo& info);
  bool is_place(std::uint32_t number, const StorageInfo& info) const;
  void set_value(PackedRow& row, const StorageInfo& info);
  PackedRow new_row(std::uint32_t fqn, const MetadataIndex& index);
  void grow_to(std::size_t count);
  bool is_equal(const StorageTable& other) const;

  OrderedMap<std::string, std::uint32_t> fqns_;
  OrderedMap<Place, std::uint32_t, PlaceHash> places_;
  std::vector<PackedRow> rows_;
  std::vector<std::int64_t> numbers_;
  std::unordered_map<std::uint32_t, std::int64_t> other_hints_;  ///< by row
  std::vector<std::uint32_t> slots_;                             ///< numbers of rows, counted from 1
};

template <bool kMakesRows>
class StorageTable::Iterator {
 public:
  using iterator_category = std::input_iterator_tag;  // what it gives is no reference
  using value_type = std::conditional_t<kMakesRows, StorageTable::Row, StorageTable::value_type>;
  using difference_type = std::ptrdiff_t;
  using reference = value_type;

  /// Holds a value for `it->`.
  struct Pointer {
    value_type value;
    const value_type* operator->() const { return &value; }
  };
  using pointer = Pointer;

  Iterator() = default;
  Iterator(const StorageTable& table, std::size_t number) : table_(&table), number_(number) {}

  value_type operator*() const {
    if constexpr (kMakesRows) {
      return table_->row(number_);
    } else {
      return (*table_)[number_];
    }
  }
  Pointer operator->() const { return {**this}; }
  Iterator& operator++() {
    ++number_;
    return *this;
  }
  Iterator operator++(int) { return {*table_, number_++}; }
  friend bool operator==(const Iterator& a, const Iterator& b) { return a.number_ == b.number_; }

 private:
  const StorageTable* table_ = nullptr;
  std::size_t number_ = 0;
};

class StorageTable::Rows {
 public:
  explicit Rows(const StorageTable& table) : table_(table) {}
  std::size_t size() const { return table_.size(); }
  bool empty() const { return table_.empty(); }
  Iterator<true> begin() const { return {table_, 0}; }
  Iterator<true> end() const { return {table_, table_.size()}; }

 private:
  const StorageTable& table_;
};

inline StorageTable::const_iterator StorageTable::begin() const { return {*this, 0}; }
inline StorageTable::const_iterator StorageTable::end() const { return {*this, size()}; }
inline StorageTable::Rows StorageTable::rows() const { return Rows(*this); }

}  // namespace dcp

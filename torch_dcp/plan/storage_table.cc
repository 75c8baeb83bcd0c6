#include "torch_dcp/plan/storage_table.h"

#include <algorithm>
#include <functional>
#include <limits>

#include "torch_dcp/base/error.h"

namespace dcp {
namespace {

/// Slots for so many rows, of which three quarters may be taken.
std::size_t slot_count_for(std::size_t rows) {
  std::size_t slots = 8;
  while (rows > slots / 4 * 3) slots *= 2;
  return slots;
}

}  // namespace

std::size_t StorageTable::PlaceHash::operator()(const Place& place) const {
  std::size_t hash = std::hash<std::string>()(place.relative_path);
  for (const std::string& descriptor : place.transform_descriptors) {
    hash = hash * 31 + std::hash<std::string>()(descriptor);
  }
  return hash;
}

c10::IntArrayRef StorageTable::offsets_of(const PackedRow& row) const {
  if (row.ndim == kNoOffset) return {};
  return {numbers_.data() + row.numbers_at, row.ndim};
}

std::optional<std::int64_t> StorageTable::hint_of(std::uint32_t number) const {
  const std::uint32_t hint = rows_[number].hint;
  if (hint == kNoHint) return std::nullopt;
  if (hint == kOtherHint) return other_hints_.at(number);
  return hint;
}

StorageTable::Row StorageTable::row(std::size_t number) const {
  const PackedRow& row = rows_[number];
  const Place& place = (places_.begin() + row.place)->first;
  return {(fqns_.begin() + row.fqn)->first,
          row.ndim != kNoOffset,
          offsets_of(row),
          hint_of(static_cast<std::uint32_t>(number)),
          place.relative_path,
          row.offset,
          row.length,
          place.transform_descriptors};
}

StorageTable::value_type StorageTable::operator[](std::size_t number) const {
  const Row at = row(number);
  value_type result{{at.fqn, std::nullopt, at.index},
                    {at.relative_path, at.offset, at.length, at.transform_descriptors}};
  if (at.has_offset) result.first.offset.emplace(at.chunk_offsets.begin(), at.chunk_offsets.end());
  return result;
}

std::uint32_t StorageTable::hash_of(std::uint32_t fqn, bool has_offset, c10::IntArrayRef offsets) {
  constexpr std::uint64_t kFactor = 0x9e3779b97f4a7c15;
  std::uint64_t hash = (fqn + (has_offset ? 1ull << 32 : 0)) * kFactor;
  for (const std::int64_t offset : offsets) {
    hash = ((hash ^ (hash >> 29)) + static_cast<std::uint64_t>(offset)) * kFactor;
  }
  return static_cast<std::uint32_t>(hash >> 32);
}

bool StorageTable::is_named(const PackedRow& row, std::uint32_t fqn, const MetadataIndex& index) const {
  if (row.fqn != fqn || (row.ndim != kNoOffset) != index.offset.has_value()) return false;
  return !index.offset || offsets_of(row) == c10::IntArrayRef(*index.offset);
}

std::size_t StorageTable::slot_of(std::uint32_t fqn, const MetadataIndex& index) const {
  const c10::IntArrayRef offsets = index.offset ? c10::IntArrayRef(*index.offset) : c10::IntArrayRef();
  const std::size_t mask = slots_.size() - 1;
  for (std::size_t slot = hash_of(fqn, index.offset.has_value(), offsets) & mask;; slot = (slot + 1) & mask) {
    if (slots_[slot] == 0 || is_named(rows_[slots_[slot] - 1], fqn, index)) return slot;
  }
}

std::uint32_t StorageTable::find_row(const MetadataIndex& index) const {
  const std::uint32_t* fqn = fqns_.find(index.fqn);
  if (fqn == nullptr || rows_.empty()) return kNone;
  const std::uint32_t number = slots_[slot_of(*fqn, index)];
  return number == 0 ? kNone : number - 1;
}

std::optional<StorageInfo> StorageTable::find(const MetadataIndex& index) const {
  const std::uint32_t number = find_row(index);
  if (number == kNone) return std::nullopt;
  const Row at = row(number);
  return StorageInfo{at.relative_path, at.offset, at.length, at.transform_descriptors};
}

std::uint32_t StorageTable::number_of_fqn(const std::string& fqn) {
  const std::uint32_t* known = fqns_.find(fqn);
  if (known != nullptr) return *known;
  const auto number = static_cast<std::uint32_t>(fqns_.size());
  fqns_.insert(fqn, number);
  return number;
}

std::uint32_t StorageTable::number_of_place(const StorageInfo& info) {
  // Most items lie in the file of the one before.
  if (!rows_.empty() && is_place(rows_.back().place, info)) return rows_.back().place;
  Place place{info.relative_path, info.transform_descriptors};
  const std::uint32_t* known = places_.find(place);
  if (known != nullptr) return *known;
  const auto number = static_cast<std::uint32_t>(places_.size());
  places_.insert(std::move(place), number);
  return number;
}

bool StorageTable::is_place(std::uint32_t number, const StorageInfo& info) const {
  const Place& place = (places_.begin() + number)->first;
  return place.relative_path == info.relative_path && place.transform_descriptors == info.transform_descriptors;
}

void StorageTable::set_value(PackedRow& row, const StorageInfo& info) {
  row.place = number_of_place(info);
  row.offset = info.offset;
  row.length = info.length;
}

StorageTable::PackedRow StorageTable::new_row(std::uint32_t fqn, const MetadataIndex& index) {
  DCP_CHECK(rows_.size() < kNone - 1 && numbers_.size() <= kNone, kUnsupported, "metadata of more than ", kNone,
            " items, or numbers in the offsets of their chunks");
  PackedRow row;
  row.fqn = fqn;
  row.numbers_at = static_cast<std::uint32_t>(numbers_.size());
  row.ndim = kNoOffset;
  if (index.offset) {
    DCP_CHECK(index.offset->size() < kNoOffset, kUnsupported, "key '", index.fqn, "': a chunk of ",
              index.offset->size(), " dimensions");
    row.ndim = static_cast<std::uint32_t>(index.offset->size());
    numbers_.insert(numbers_.end(), index.offset->begin(), index.offset->end());
  }
  row.hint = kNoHint;
  if (index.index) {
    const bool fits = *index.index >= 0 && *index.index < kOtherHint;
    row.hint = fits ? static_cast<std::uint32_t>(*index.index) : kOtherHint;
    if (!fits) other_hints_[static_cast<std::uint32_t>(rows_.size())] = *index.index;
  }
  return row;
}

bool StorageTable::insert(const MetadataIndex& index, const StorageInfo& info) {
  grow_to(rows_.size() + 1);
  const std::uint32_t fqn = number_of_fqn(index.fqn);
  std::uint32_t& slot = slots_[slot_of(fqn, index)];
  if (slot != 0) return false;
  PackedRow row = new_row(fqn, index);
  set_value(row, info);
  rows_.push_back(row);
  slot = static_cast<std::uint32_t>(rows_.size());
  return true;
}

void StorageTable::insert_or_assign(const MetadataIndex& index, const StorageInfo& info) {
  if (!insert(index, info)) set_value(rows_[find_row(index)], info);
}

bool StorageTable::erase(const MetadataIndex& index) {
  const std::uint32_t number = find_row(index);
  if (number == kNone) return false;
  StorageTable others;
  others.reserve(size());
  for (std::size_t i = 0; i < size(); ++i) {
    if (i == number) continue;
    const auto [name, info] = (*this)[i];
    others.insert(name, info);
  }
  *this = std::move(others);
  return true;
}

void StorageTable::reserve(std::size_t count) {
  rows_.reserve(count);
  grow_to(count);
}

void StorageTable::shrink_to_fit() {
  rows_.shrink_to_fit();
  numbers_.shrink_to_fit();
}

void StorageTable::grow_to(std::size_t count) {
  const std::size_t slot_count = slot_count_for(count);
  if (slot_count <= slots_.size()) return;
  slots_.assign(slot_count, 0);
  const std::size_t mask = slot_count - 1;
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    const PackedRow& row = rows_[i];
    std::size_t slot = hash_of(row.fqn, row.ndim != kNoOffset, offsets_of(row)) & mask;
    while (slots_[slot] != 0) slot = (slot + 1) & mask;
    slots_[slot] = static_cast<std::uint32_t>(i + 1);
  }
}

bool StorageTable::is_equal(const StorageTable& other) const {
  if (size() != other.size()) return false;
  for (std::size_t i = 0; i < size(); ++i) {
    const Row a = row(i);
    const Row b = other.row(i);
    if (a.fqn != b.fqn || a.has_offset != b.has_offset || a.chunk_offsets != b.chunk_offsets ||
        a.relative_path != b.relative_path || a.offset != b.offset || a.length != b.length ||
        a.transform_descriptors != b.transform_descriptors) {
      return false;
    }
  }
  return true;
}

}  // namespace dcp

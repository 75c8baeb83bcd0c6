#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "torch_dcp/state_dict/value.h"

namespace dcp {

enum class PathStep : std::uint8_t {
  kDictKey,     ///< a string key of a Dict
  kDictIntKey,  ///< an integer key of a Dict; Python's planner data has it as a string
  kListIndex,   ///< a position in a List
};

/// One step from a container to a value in it.
struct DCP_API PathItem {
  PathStep step = PathStep::kDictKey;
  std::string key;         ///< kDictKey
  std::int64_t index = 0;  ///< kDictIntKey, kListIndex

  static PathItem dict_key(std::string key) { return {PathStep::kDictKey, std::move(key), 0}; }
  static PathItem dict_key(const char* key) { return dict_key(std::string(key)); }
  static PathItem dict_key(const Key& key);
  static PathItem list_index(std::int64_t index) { return {PathStep::kListIndex, {}, index}; }

  friend bool operator==(const PathItem&, const PathItem&) = default;
};

/// From the root of a state dict to one value.
using Path = std::vector<PathItem>;

/// The item as it appears in a flat key: Python's `str(item)`.
DCP_API std::string to_string(const PathItem& item);

/// The flat key (FQN) of a path: its items joined by dots.
DCP_API std::string flat_key(const Path& path);

/// Spells a path so that its structure shows: `['optim']['state']['0.weight'][3]`. A position in a
/// list and an integer key look alike, as in Python.
DCP_API std::string describe(const Path& path);

/// Sets the value at `path` below `root`, making dicts and lists (padded with None) on the way.
///
/// \param max_list_index  Larger positions are refused before anything is allocated.
/// A value that is there already is replaced. A None in a list counts as not being there; one in
/// a dict is a value.
///
/// \throws dcp::Error kType if a step needs a dict where a list or value stands, or the reverse;
///         kCorruptData for an empty path, a negative or too large position, a list position
///         at the root. `root` is unchanged then.
DCP_API void set_element(Dict& root, const Path& path, Value value, std::int64_t max_list_index = 16'000'000);

/// The value at `path`, or null; also for an empty path.
DCP_API const Value* get_element(const Dict& root, const Path& path);
DCP_API Value* get_element(Dict& root, const Path& path);

}  // namespace dcp

#include "torch_dcp/state_dict/stateful.h"

#include <algorithm>
#include <map>
#include <set>
#include <unordered_set>
#include <utility>

#include "torch_dcp/base/error.h"
#include "torch_dcp/base/fault_list.h"
#include "torch_dcp/checkpoint/stateful_internal.h"
#include "torch_dcp/state_dict/equal.h"
#include "torch_dcp/state_dict/path.h"
#include "torch_dcp/state_dict/traverse.h"

namespace dcp {
namespace {

std::vector<Key> sorted_keys_of_stateful(const Dict& state) {
  std::vector<Key> keys;
  for (const auto& [key, value] : state) {
    if (value.kind() == ValueKind::kStateful) keys.push_back(key);
  }
  std::sort(keys.begin(), keys.end());
  return keys;
}

std::string place(const Key& key, const char* what) {
  return c10::str("in ", what, " of the value of key '", to_string(key), "'");
}

template <typename Call>
auto with_key(const Key& key, const char* what, const Call& call) {
  try {
    return call();
  } catch (c10::Error& error) {
    error.add_context(place(key, what));
    throw;
  } catch (...) {  // An object may throw whatever it likes.
    const RankFailure failure = current_failure(0);
    throw Error(failure.kind, c10::str(failure.message, " ", place(key, what)), DCP_WHERE);
  }
}

/// \param path  Of `value`; the same again when this returns.
void refuse_stateful(const Value& value, Path& path) {
  const auto visit = [&](PathItem step, const Value& child) {
    path.push_back(std::move(step));
    refuse_stateful(child, path);
    path.pop_back();
  };
  const auto visit_all = [&](const auto& children) {
    std::int64_t position = 0;
    for (const Value& child : children) visit(PathItem::list_index(position++), child);
  };
  switch (value.kind()) {
    case ValueKind::kStateful:
      DCP_THROW(kType, describe(path), " is a Stateful below the top level, where nobody would ask it for its state");
    case ValueKind::kDict:
      for (const auto& [key, child] : value.as_dict()) visit(PathItem::dict_key(key), child);
      return;
    case ValueKind::kList:
      return visit_all(value.as_list());
    case ValueKind::kTuple:
      return visit_all(value.as_tuple());
    default:
      return;
  }
}

/// Top-level keys below which something was loaded, or nothing is.
std::set<Key> keys_of_loaded(const Dict& loaded, const std::vector<std::string>& skipped) {
  const std::unordered_set<std::string> names(skipped.begin(), skipped.end());
  std::set<Key> keys;
  visit_leaves(loaded, [&](const Path& path, const Value&) {
    // By whichever rule the planner made its keys.
    Path above;
    const bool is_skipped = std::any_of(path.begin(), path.end(), [&](const PathItem& item) {
      above.push_back(item);
      return names.contains(flat_key(above));
    });
    if (is_skipped) return;
    keys.insert(path[0].step == PathStep::kDictIntKey ? Key(path[0].index) : Key(path[0].key));
  });
  return keys;
}

/// The keys of objects that are to be given their states, one for each object.
std::vector<Key> keys_to_give(const Dict& state, const Dict& loaded, const std::vector<std::string>& skipped) {
  std::vector<Key> keys = sorted_keys_of_stateful(state);
  if (!keys.empty() && !skipped.empty()) {
    const std::set<Key> given = keys_of_loaded(loaded, skipped);
    std::erase_if(keys, [&](const Key& key) { return !given.contains(key); });
  }
  std::map<const Stateful*, Key> first;
  std::erase_if(keys, [&](const Key& key) {
    const auto [place, is_new] = first.emplace(state.at(key).as_stateful().get(), key);
    if (is_new) return false;
    const std::string difference = first_difference(loaded.at(place->second).as_dict(), loaded.at(key).as_dict());
    DCP_CHECK(difference.empty(), kKey, "keys '", to_string(place->second), "' and '", to_string(key),
              "' are one Stateful, and their loaded states differ: ", difference);
    return true;
  });
  return keys;
}

}  // namespace

bool has_stateful(const Dict& state) {
  return std::any_of(state.begin(), state.end(),
                     [](const auto& entry) { return entry.second.kind() == ValueKind::kStateful; });
}

void refuse_nested_stateful(const Dict& state) {
  for (const auto& [key, value] : state) {
    if (!value.is_container() && value.kind() != ValueKind::kStateful) continue;
    Path path = {PathItem::dict_key(key)};
    refuse_stateful(value, path);
  }
}

void refuse_all_stateful(const Dict& state) {
  FaultList faults;
  for (const auto& [key, value] : state) {
    if (value.kind() != ValueKind::kStateful) continue;
    faults.add(ErrorKind::kType, to_string(key),
               "a Stateful; this call takes states alone, so give it what state_dict() returns, or call save or load");
  }
  faults.throw_if_any("state dict", DCP_WHERE);
  refuse_nested_stateful(state);
}

Dict replace_stateful(const Dict& state) {
  Dict replaced = state;
  for (const Key& key : sorted_keys_of_stateful(state)) {
    const std::shared_ptr<Stateful>& stateful = state.at(key).as_stateful();
    DCP_CHECK(stateful, kInvalidArgument, "key '", to_string(key), "' holds a null Stateful");
    replaced.insert_or_assign(key, with_key(key, "state_dict()", [&] { return stateful->state_dict(); }));
  }
  refuse_nested_stateful(replaced);
  return replaced;
}

void restore_stateful(Dict& state, Dict loaded, const std::vector<std::string>& skipped) {
  const std::vector<Key> keys = keys_to_give(state, loaded, skipped);
  std::size_t number = 0;
  for (auto& [key, value] : loaded) {
    // `loaded` was made from `state`, so that keys stand in the same order.
    const auto next = state.begin() + static_cast<std::ptrdiff_t>(std::min(number++, state.size()));
    Value* const target = next != state.end() && next->first == key ? &next->second : state.find(key);
    if (!target) {
      state.insert_or_assign(key, std::move(value));
    } else if (target->kind() != ValueKind::kStateful) {
      *target = std::move(value);
    }
  }
  for (const Key& key : keys) {
    with_key(key, "load_state_dict()", [&] {
      state.at(key).as_stateful()->load_state_dict(loaded.at(key).as_dict());
      return true;
    });
  }
}

}  // namespace dcp

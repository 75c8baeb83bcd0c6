#include "torch_dcp/state_dict/path.h"

#include "torch_dcp/base/error.h"

namespace dcp {
namespace {

Key key_of(const PathItem& item) { return item.step == PathStep::kDictIntKey ? Key(item.index) : Key(item.key); }

bool is_position(const PathItem& item) { return item.step == PathStep::kListIndex; }

std::string quoted(const std::string& text) {
  std::string out = "'";
  for (char c : text) {
    if (c == '\'' || c == '\\') out += '\\';
    out += c;
  }
  return out + "'";
}

Path prefix(const Path& path, std::size_t length) {
  return Path(path.begin(), path.begin() + static_cast<std::ptrdiff_t>(length));
}

void check_path(const Path& path, std::int64_t max_list_index) {
  DCP_CHECK(!path.empty(), kCorruptData, "an empty path");
  DCP_CHECK(!is_position(path.front()), kCorruptData, "path ", describe(path),
            " begins with a position, but a state dict is no list");
  for (const PathItem& item : path) {
    DCP_CHECK(!is_position(item) || (item.index >= 0 && item.index <= max_list_index), kCorruptData, "path ",
              describe(path), ": position ", item.index, " is out of range, which ends at ", max_list_index);
  }
}

/// The place for step `i` of the path in its container, made if it is new.
Value& place_in(Value& container, const Path& path, std::size_t i) {
  const bool fits = is_position(path[i]) ? container.is_list() : container.is_dict();
  DCP_CHECK(fits, kType, "path ", describe(path), " needs a ", is_position(path[i]) ? "list" : "dict", " at ",
            describe(prefix(path, i)), ", where a ", value_kind_name(container.kind()), " stands");
  if (!is_position(path[i])) return container.as_dict()[key_of(path[i])];
  List& list = container.as_list();
  const auto position = static_cast<std::size_t>(path[i].index);
  if (position >= list.size()) list.resize(position + 1);
  return list[position];
}

Value empty_container_for(const PathItem& item) { return is_position(item) ? Value(List()) : Value(Dict()); }

/// Works for const and mutable values.
template <typename ValueType>
ValueType* step_into(ValueType& container, const PathItem& item) {
  if (!is_position(item)) return container.is_dict() ? container.as_dict().find(key_of(item)) : nullptr;
  if (!container.is_list() || item.index < 0) return nullptr;
  auto& list = container.as_list();
  const auto position = static_cast<std::size_t>(item.index);
  return position < list.size() ? &list[position] : nullptr;
}

template <typename DictType>
auto find_element(DictType& root, const Path& path) -> decltype(root.find(Key())) {
  if (path.empty() || is_position(path.front())) return nullptr;
  auto* value = root.find(key_of(path.front()));
  for (std::size_t i = 1; i < path.size() && value; ++i) value = step_into(*value, path[i]);
  return value;
}

}  // namespace

PathItem PathItem::dict_key(const Key& key) {
  if (const auto* index = std::get_if<std::int64_t>(&key)) return {PathStep::kDictIntKey, {}, *index};
  return {PathStep::kDictKey, std::get<std::string>(key), 0};
}

std::string to_string(const PathItem& item) {
  return item.step == PathStep::kDictKey ? item.key : std::to_string(item.index);
}

std::string flat_key(const Path& path) {
  std::string key;
  for (std::size_t i = 0; i < path.size(); ++i) {
    if (i > 0) key += '.';
    key += to_string(path[i]);
  }
  return key;
}

std::string describe(const Path& path) {
  std::string text;
  for (const PathItem& item : path) {
    text += "[" + (item.step == PathStep::kDictKey ? quoted(item.key) : std::to_string(item.index)) + "]";
  }
  return text;
}

void set_element(Dict& root, const Path& path, Value value, std::int64_t max_list_index) {
  check_path(path, max_list_index);
  // Nothing below a new container can be of the wrong kind, so that a throw leaves `root` as it was.
  const Key first = key_of(path.front());
  if (path.size() == 1) {
    root[first] = std::move(value);
    return;
  }
  const bool is_new = !root.contains(first);
  Value* place = &root[first];
  if (is_new) *place = empty_container_for(path[1]);
  for (std::size_t i = 1; i < path.size(); ++i) {
    const bool was_there = !is_position(path[i]) && step_into(*place, path[i]) != nullptr;
    place = &place_in(*place, path, i);
    const bool is_last = i + 1 == path.size();
    if (!is_last && !was_there && place->is_none()) *place = empty_container_for(path[i + 1]);
  }
  *place = std::move(value);
}

const Value* get_element(const Dict& root, const Path& path) { return find_element(root, path); }

Value* get_element(Dict& root, const Path& path) { return find_element(root, path); }

}  // namespace dcp

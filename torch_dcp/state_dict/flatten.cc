#include "torch_dcp/state_dict/flatten.h"

#include <vector>

#include "torch_dcp/base/error.h"

namespace dcp {
namespace {

/// Flat keys that several leaves have -> all of their paths.
using Clashes = OrderedMap<std::string, std::vector<Path>>;

void note_clash(Clashes& clashes, const std::string& key, const Path& first, const Path& next) {
  std::vector<Path>& paths = clashes[key];
  if (paths.empty()) paths.push_back(first);
  paths.push_back(next);
}

[[noreturn]] void throw_clashes(const Clashes& clashes) {
  std::string text;
  for (const auto& [key, paths] : clashes) {
    text += text.empty() ? "'" : "; '";
    text += key + "' is the flat key of " + describe(paths.front());
    for (std::size_t i = 1; i < paths.size(); ++i) text += " and of " + describe(paths[i]);
  }
  DCP_THROW(kKey, "duplicated flat keys: ", text);
}

void place_leaf(Dict& root, const FlatLeaf& leaf) {
  const Value* old = get_element(root, leaf.path);
  const bool is_padding = old && old->is_none() && leaf.path.back().step == PathStep::kListIndex;
  DCP_CHECK(!old || is_padding, kKey, describe(leaf.path), " would replace another value, a ",
            value_kind_name(old->kind()));
  set_element(root, leaf.path, leaf.value);
}

}  // namespace

LeafPlaces find_leaves(const Dict& state, FlattenRule rule) {
  LeafPlaces leaves;
  leaves.reserve(state.size());
  Clashes clashes;
  visit_leaves(
      state,
      [&](const Path& path, const Value& value) {
        std::string key = flat_key(path);
        if (const LeafPlace* first = leaves.find(key)) {
          note_clash(clashes, key, first->path, path);
        } else {
          leaves.insert(std::move(key), {path, &value});
        }
      },
      rule);
  if (!clashes.empty()) throw_clashes(clashes);
  return leaves;
}

FlatStateDict flatten_state_dict(const Dict& state, FlattenRule rule) {
  LeafPlaces leaves = find_leaves(state, rule);
  FlatStateDict flat;
  flat.reserve(leaves.size());
  for (auto& [key, leaf] : leaves) flat.insert(key, {std::move(leaf.path), *leaf.value});
  return flat;
}

Dict unflatten_state_dict(const FlatStateDict& flat) {
  Dict root;
  for (const auto& [key, leaf] : flat) {
    try {
      place_leaf(root, leaf);
    } catch (Error& error) {
      error.add_context(c10::str("while the value of flat key '", key, "' was put back into its place"));
      throw;
    }
  }
  return root;
}

}  // namespace dcp

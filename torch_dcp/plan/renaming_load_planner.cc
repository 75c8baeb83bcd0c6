#include "torch_dcp/plan/renaming_load_planner.h"

#include <unordered_set>
#include <utility>

#include "torch_dcp/base/fault_list.h"

namespace dcp {
namespace {

/// `key` with another prefix in the place of the one it lies under.
std::string replace_prefix(const std::string& key, const std::string& prefix, const std::string& by) {
  std::string rest = key.substr(prefix.empty() || key.size() == prefix.size() ? prefix.size() : prefix.size() + 1);
  if (by.empty() || rest.empty()) return by + rest;
  return by + "." + rest;
}

}  // namespace

RenamingLoadPlanner::RenamingLoadPlanner(KeyRenaming renaming, LoadPlannerOptions options)
    : DefaultLoadPlanner(options), renaming_(std::move(renaming)) {}
RenamingLoadPlanner::~RenamingLoadPlanner() = default;

void RenamingLoadPlanner::set_up(StateDict& state, const Metadata& metadata, const LoadPlannerContext& context) {
  decisions_.clear();
  DefaultLoadPlanner::set_up(state, metadata, context);
  check_rules();
}

const std::pair<const std::string, std::string>* RenamingLoadPlanner::find_prefix(const std::string& key) const {
  // The longest first: the key itself, then what ends at one of its dots.
  for (std::string prefix = key; !renaming_.prefixes.empty();) {
    if (const auto found = renaming_.prefixes.find(prefix); found != renaming_.prefixes.end()) return &*found;
    if (prefix.empty()) break;
    const std::size_t dot = prefix.rfind('.');
    prefix.resize(dot == std::string::npos ? 0 : dot);
  }
  return nullptr;
}

RenamingLoadPlanner::Decision RenamingLoadPlanner::decide(const std::string& key) const {
  if (const auto exact = renaming_.keys.find(key); exact != renaming_.keys.end()) {
    return {exact->second, &exact->first};
  }
  if (const auto* prefix = find_prefix(key))
    return {replace_prefix(key, prefix->first, prefix->second), &prefix->first};
  // The function may know only what is wanted.
  return {renaming_.rename && is_wanted(key) ? renaming_.rename(key) : key, nullptr};
}

const std::string& RenamingLoadPlanner::stored_key(const std::string& key) const {
  const auto known = decisions_.find(key);
  return known != decisions_.end() ? known->second.stored_key
                                   : decisions_.emplace(key, decide(key)).first->second.stored_key;
}

bool RenamingLoadPlanner::is_wanted(const std::string& key) const {
  return !renaming_.is_wanted || renaming_.is_wanted(key);
}

void RenamingLoadPlanner::check_rules() const {
  FaultList faults;
  std::unordered_set<const std::string*> used;
  std::unordered_map<std::string, const std::string*> takers;  // by stored key
  for (const auto& leaf : leaves()) {
    const std::string& key = leaf.first;
    const bool is_old = is_old_key(key);
    const std::string& stored = is_old ? key : stored_key(key);
    if (!is_old && !is_wanted(key)) continue;
    const auto [taker, is_new] = takers.emplace(stored, &key);
    if (!is_new) {
      faults.add(ErrorKind::kKey, key, "would be loaded from '" + stored + "', from which '" + *taker->second + "' is");
    }
  }
  // Also about the keys that one of an earlier form stands for.
  for (const auto& decision : decisions_) used.insert(decision.second.rule);
  if (!renaming_.allow_unused) {
    for (const auto& rule : renaming_.keys) {
      if (!used.contains(&rule.first)) faults.add(ErrorKind::kKey, rule.first, "is renamed, and no destination has it");
    }
    for (const auto& rule : renaming_.prefixes) {
      if (used.contains(&rule.first)) continue;
      faults.add(ErrorKind::kKey, rule.first, "is a prefix that is renamed, and decides about no destination");
    }
  }
  faults.throw_if_any("the renaming does not fit the destination", DCP_WHERE);
}

}  // namespace dcp

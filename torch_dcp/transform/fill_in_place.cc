#include "torch_dcp/transform/fill_in_place.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "torch_dcp/base/error.h"
#include "torch_dcp/state_dict/equal.h"
#include "torch_dcp/state_dict/stateful.h"
#include "torch_dcp/state_dict/tensor_copies.h"
#include "torch_dcp/transform/clone.h"
#include "torch_dcp/transform/pairs_internal.h"
#include "torch_dcp/transform/stateful_internal.h"

namespace dcp {
namespace {

/// Does what the pairs say. All that may fail but for objects comes before the first change.
class Filling {
 public:
  explicit Filling(Pairs pairs) : pairs_(std::move(pairs)) {
    std::sort(pairs_.states.begin(), pairs_.states.end(),
              [](const StatePair& a, const StatePair& b) { return a.path < b.path; });
    for (const ValuePair& pair : pairs_.plain) plain_.push_back(*pair.source);
    // Together, so that what is one tensor in several values stays one. Paths, unlike flat keys, differ.
    Dict fresh;
    for (const ValuePair& pair : pairs_.replaced) fresh.insert_or_assign(pair.path, *pair.source);
    for (const AddedValue& added : pairs_.added) fresh.insert_or_assign(added.path, *added.source);
    fresh_ = clone(fresh);
    for (const TensorPair& pair : pairs_.tensors) copies_.add(pair.target, pair.source);
    copies_.prepare();
  }

  /// Stops at the first object that fails.
  void give_states() {
    for (const StatePair& pair : pairs_.states) {
      try {
        give_state(pair);
      } catch (c10::Error& error) {
        error.add_context(given_states() + "nothing else has been changed");
        throw;
      }
    }
  }

  /// Goes on after one that fails. \throws dcp::Error that names those.
  void give_all_states() {
    FaultList faults;
    for (const StatePair& pair : pairs_.states) {
      try {
        give_state(pair);
      } catch (const c10::Error&) {  // Named together with the others.
        const RankFailure failure = current_failure(0);
        faults.add(failure.kind, pair.key, failure.message);
      }
    }
    faults.throw_if_any("restoring of objects, when all else was restored", DCP_WHERE);
  }

  void change_values() {
    for (const TensorPair& pair : pairs_.tensors) {
      // A tensor's parts follow each other.
      if (report_.copied.empty() || report_.copied.back() != pair.key) report_.copied.push_back(pair.key);
    }
    try {
      copies_.apply();
    } catch (c10::Error& error) {
      error.add_context(given_states() + "tensors may have been changed, and nothing else has been");
      throw;
    }
    for (std::size_t i = 0; i < plain_.size(); ++i) {
      *pairs_.plain[i].target = std::move(plain_[i]);
      report_.assigned.push_back(pairs_.plain[i].key);
    }
    for (const ValuePair& pair : pairs_.replaced) {
      *pair.target = std::move(fresh_.at(pair.path));
      report_.replaced.push_back(pair.key);
    }
    // Last, since pointers into the dicts are no longer good then.
    for (const AddedValue& added : pairs_.added) {
      added.target->insert_or_assign(added.target_key, std::move(fresh_.at(added.path)));
      report_.added.push_back(added.key);
    }
  }

  FillReport& report() { return report_; }

 private:
  std::string given_states() const {
    std::string keys;
    for (const std::string& key : report_.loaded) keys += (keys.empty() ? "'" : ", '") + key + "'";
    return keys.empty() ? keys : "objects that have been given their state already: " + keys + "; ";
  }

  void give_state(const StatePair& pair) {
    call_object(pair.path, "load_state_dict()", [&] {
      pair.target->load_state_dict(*pair.source);
      return true;
    });
    report_.loaded.push_back(pair.key);
  }

  Pairs pairs_;
  std::vector<Value> plain_;
  Dict fresh_;  ///< by path
  TensorCopies copies_;
  FillReport report_;
};

/// A tensor that is there under several keys can have one value only. \pre No faults.
void check_tied(Pairs& pairs) {
  std::unordered_multimap<const void*, const TensorPair*> different;  // by where elements begin
  for (const TensorPair& pair : pairs.tensors) {
    if (pair.target.numel() == 0 || !pair.target.has_storage()) continue;
    const auto [begin, end] = different.equal_range(pair.target.const_data_ptr());
    const auto place =
        std::find_if(begin, end, [&](const auto& entry) { return is_same_memory(entry.second->target, pair.target); });
    if (place == end) {
      different.emplace(pair.target.const_data_ptr(), &pair);
      continue;
    }
    const TensorPair& other = *place->second;
    if (is_same_memory(other.source, pair.source) || bit_equal(other.source, pair.source)) continue;
    pairs.faults.add(ErrorKind::kKey, pair.key,
                     "is the same tensor as '" + other.key + "' here, but the source has other values for it");
  }
}

struct Checked {
  Value source;  ///< without Stateful objects; pairs point into it
  Pairs pairs;
  std::vector<DtypeConversion> converted;
};

Checked check(Dict& live, const Dict& source, PairRule rule, DtypePolicy policy, const char* what) {
  Checked checked{replace_all_stateful(source), {}, {}};
  checked.pairs = pair_values(checked.source.as_dict(), live, rule);
  checked.converted = check_tensors(checked.pairs, policy);
  if (rule != PairRule::kRestore && checked.pairs.faults.empty()) check_tied(checked.pairs);
  checked.pairs.faults.throw_if_any(what, DCP_WHERE);
  return checked;
}

void keep_keys_of(const Value& wanted, Value& live);

/// Leaves the keys of `wanted`, in its order.
void keep_keys_of(const Dict& wanted, Dict& live) {
  const bool is_same = std::equal(live.begin(), live.end(), wanted.begin(), wanted.end(),
                                  [](const auto& one, const auto& other) { return one.first == other.first; });
  if (!is_same) {
    Dict kept;
    for (const auto& [key, value] : wanted) kept.insert_or_assign(key, std::move(live.at(key)));
    live = std::move(kept);
  }
  auto next = wanted.begin();
  for (auto& [key, value] : live) keep_keys_of((next++)->second, value);
}

/// \pre `live` was filled from `wanted`: but for objects both have the same containers.
void keep_keys_of(const Value& wanted, Value& live) {
  if (live.is_dict()) return keep_keys_of(wanted.as_dict(), live.as_dict());
  if (live.is_list()) {
    for (std::size_t i = 0; i < live.as_list().size(); ++i) keep_keys_of(wanted.as_list()[i], live.as_list()[i]);
  } else if (auto* const tuple = std::get_if<Tuple>(&live.storage())) {
    for (std::size_t i = 0; i < tuple->size(); ++i) keep_keys_of(wanted.as_tuple()[i], (*tuple)[i]);
  }
}

}  // namespace

FillReport fill_in_place(Dict& live, const Dict& source, const FillOptions& options) {
  Checked checked = check(live, source, options.strict ? PairRule::kFill : PairRule::kFillLoose, options.dtype_policy,
                          "fill of a state dict");
  std::vector<std::string> untouched = std::move(checked.pairs.only_target);
  Filling filling(std::move(checked.pairs));
  filling.give_states();
  filling.change_values();
  filling.report().untouched = std::move(untouched);
  filling.report().converted = std::move(checked.converted);
  return std::move(filling.report());
}

FillReport restore_in_place(Dict& live, const Dict& snapshot) {
  Checked checked = check(live, snapshot, PairRule::kRestore, DtypePolicy::kExact, "restoring of a state dict");
  std::vector<std::string> removed = std::move(checked.pairs.only_target);
  Filling filling(std::move(checked.pairs));
  filling.change_values();
  keep_keys_of(checked.source.as_dict(), live);
  filling.give_all_states();
  filling.report().removed = std::move(removed);
  return std::move(filling.report());
}

}  // namespace dcp

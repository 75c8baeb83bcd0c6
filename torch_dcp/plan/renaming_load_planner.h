#pragma once

#include <functional>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>

#include "torch_dcp/plan/default_load_planner.h"

namespace dcp {

/// From which stored key each destination is loaded, and which destinations are loaded at all.
///
/// The first that applies decides: the key's entry in `keys`, the longest entry of `prefixes` that it lies under,
/// `rename`; else the destination has the stored key's name.
struct KeyRenaming {
  /// Flat key of a destination -> stored key.
  std::map<std::string, std::string> keys;
  /// Dotted prefix of destinations -> that of the stored keys: `{"encoder", "model.net"}` loads `encoder.w` from
  /// `model.net.w`, and `encoder` itself from `model.net`. Either may be empty: `{"", "model"}` is for destinations
  /// without the prefix of the stored keys, `{"model", ""}` for stored keys without that of the destinations.
  std::map<std::string, std::string> prefixes;
  /// Flat key of a destination that is wanted -> stored key.
  std::function<std::string(const std::string& key)> rename;
  /// Which destinations (flat keys) are loaded; all if empty. Others stay as they are and are reported as skipped,
  /// whatever is stored.
  std::function<bool(const std::string& key)> is_wanted;
  /// Off: an entry of `keys` or `prefixes` that decides about no destination of this rank is kKey. On where ranks have
  /// different keys.
  bool allow_unused = false;
};

/// Loads destinations from stored keys of other names. In all else, and in its errors, a DefaultLoadPlanner; the report
/// and the errors of planning and of what a destination does not accept name the destination's key, `unexpected` and
/// the storage's own errors (missing or damaged files) the stored one.
///
/// Of several destinations that a checkpoint of PyTorch up to 2.3 has as one object all are loaded from it or none.
class DCP_API RenamingLoadPlanner : public DefaultLoadPlanner {
 public:
  explicit RenamingLoadPlanner(KeyRenaming renaming, LoadPlannerOptions options = {});
  ~RenamingLoadPlanner() override;

  /// \throws dcp::Error kKey naming every entry that decides about no destination, and all destinations that would be
  ///         loaded from one stored key; both keys, where some of what is stored as one object is not wanted or has
  ///         another stored name.
  void set_up(StateDict& state, const Metadata& metadata, const LoadPlannerContext& context) override;

 protected:
  const std::string& stored_key(const std::string& key) const override;
  bool is_wanted(const std::string& key) const override;

 private:
  struct Decision {
    std::string stored_key;
    const std::string* rule = nullptr;  ///< the entry's key in `keys` or `prefixes`; null if none decided
  };
  const std::pair<const std::string, std::string>* find_prefix(const std::string& key) const;
  Decision decide(const std::string& key) const;
  void check_rules() const;

  KeyRenaming renaming_;
  mutable std::unordered_map<std::string, Decision> decisions_;  ///< of this load, by destination
};

}  // namespace dcp

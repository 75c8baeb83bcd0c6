#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "torch_dcp/base/ordered_map.h"
#include "torch_dcp/model_state/optimizer_state_dict.h"
#include "torch_dcp/model_state/state_dict_options.h"

namespace dcp {

/// A parameter with all of its names.
struct NamedParameter {
  OptimizerParameter parameter;  ///< under the first of them
  FqnSet names;
  bool is_selected = true;  ///< whether it is in a submodule that was asked for
};

/// A tensor of a module's own state.
struct LiveTensor {
  at::Tensor tensor;
  std::optional<DTensorLayout> layout;
  bool is_tied = false;  ///< it has other names too
};

/// How the names of a module's own state, with those of wrappers in them, stand in the dicts of a call, and which of
/// them the call is for.
class StateNames {
 public:
  /// \throws dcp::Error kKey for a submodule that is none, and for a name in dicts that several entries would have.
  StateNames(const torch::nn::Module& root, const StateDictOptions& options, const Submodules& submodules);

  /// Whether dicts have the module's own state as it is.
  bool is_plain() const { return is_plain_; }

  /// The name of an own entry in dicts, also of one that the module does not have.
  std::string shown(const std::string& own) const;

  /// The reverse; nothing for a name that the call is not for.
  std::optional<std::string> own(const std::string& shown) const;

  /// Whether the call is for an own entry. Frozen parameters may be left out of it.
  bool selects(const std::string& own) const { return is_below_prefix(clean(own)); }

  /// Whether the call is for the entry, and it must be there.
  bool needs(const std::string& own) const { return selects(own) && !frozen_.contains(own); }

  /// Parameters by which the call names the state of optimizers, in the order of `unique_parameters`.
  const std::vector<NamedParameter>& parameters() const { return parameters_; }

  /// The tensors of the own state, by own name.
  const OrderedMap<std::string, LiveTensor>& tensors() const { return tensors_; }

  /// Whether the call is for the whole of the module.
  bool is_limited() const { return !prefixes_.empty(); }

 private:
  void add_place(const torch::nn::Module& module, const std::string& own_prefix, const std::string& clean_prefix);
  void find_prefixes(const Submodules& submodules);
  void number_parameters(const torch::nn::Module& root);
  void index_shown_names();

  std::string clean(const std::string& own) const;
  bool is_below_prefix(const std::string& clean) const { return prefixes_.empty() || prefix_of(clean) != nullptr; }
  const std::string* prefix_of(const std::string& clean) const;
  std::string without_prefix(const std::string& clean) const;

  const bool keeps_prefixes_;
  const bool ignores_frozen_;
  bool has_hidden_ = false;
  bool is_plain_ = true;
  std::vector<std::string> prefixes_;                            ///< clean ones of the submodules; empty: everything
  std::unordered_map<std::string, std::string> clean_prefixes_;  ///< own -> clean
  std::unordered_map<std::string, std::string> innermost_;       ///< clean -> own
  std::unordered_map<const torch::nn::Module*, std::string> first_prefixes_;  ///< clean
  std::unordered_map<std::string, std::string> own_names_;                    ///< shown -> own
  std::unordered_set<std::string> frozen_;                                    ///< own names, if they are ignored
  std::vector<std::string> extras_;                                           ///< own keys of extra state
  OrderedMap<std::string, LiveTensor> tensors_;
  std::vector<NamedParameter> parameters_;
};

/// The naming part of a call's options.
NamingOptions naming_of(const StateDictOptions& options);

}  // namespace dcp

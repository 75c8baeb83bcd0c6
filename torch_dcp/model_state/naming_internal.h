#pragma once

// The header behind it uses its macros without including them.
#include <c10/util/Exception.h>
#include <torch/ordered_dict.h>

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "torch_dcp/fwd.h"
#include "torch_dcp/model_state/wrappers.h"

namespace dcp {

/// A module's children by name.
using Children = torch::OrderedDict<std::string, std::shared_ptr<torch::nn::Module>>;

constexpr const char* kFlatParameter = "_flat_param";

/// Asks a module for its wrapped child and its replaced names.
class Naming {
 public:
  explicit Naming(const NamingOptions& options);

  /// The name of the child that the module wraps; nothing if it is no wrapper.
  std::optional<std::string> inner_of(const torch::nn::Module& module, const Children& children) const;

  FqnModifiers modifiers_of(const torch::nn::Module& module) const;

  /// Names of the parameters in a module's flat parameter.
  FqnSet flat_names_of(const torch::nn::Module& module) const;

  /// Whether a wrapper's segment stays in names.
  bool keeps(const std::string& inner) const { return kept_.contains(inner); }

  /// The children whose segments are no part of names.
  std::set<std::string> hidden_children(const torch::nn::Module& module, const Children& children) const;

 private:
  std::vector<WrapperTraits> wrappers_;
  std::function<FqnModifiers(const torch::nn::Module&)> modifiers_;
  std::set<std::string> kept_;
};

/// A module at one of its places.
struct ModulePlace {
  const torch::nn::Module& module;
  const std::string& own_prefix;    ///< of the names that the module tree itself gives, with a dot at its end
  const std::string& clean_prefix;  ///< without the segments of wrappers
};

/// Visits a module and all below it at each of their places, parents first.
void visit_places(const torch::nn::Module& root, const Naming& naming,
                  const std::function<void(const ModulePlace&)>& visit);

}  // namespace dcp

#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>

#include "torch_dcp/base/export.h"
#include "torch_dcp/fwd.h"
#include "torch_dcp/model_state/fqn.h"

// Names that stay the same whether or not a module is wrapped, for data parallelism, compilation, checkpointing of
// activations or sharding: a wrapper keeps the module in a child of its own, and the child's name is no part of the
// names below it.

namespace dcp {

/// Names of one thing: each once, in a fixed order.
using FqnSet = std::vector<std::string>;

/// A module whose class says that it wraps another.
class DCP_API HasInnerModule {
 public:
  virtual ~HasInnerModule();

  /// The name of the child that is wrapped.
  virtual std::string inner_module_name() const = 0;
};

/// Knows one kind of wrapper.
struct WrapperTraits {
  /// The name of the child that is wrapped. A module without such a child is no wrapper of this kind.
  std::string inner;
  /// Whether a module that has such a child is a wrapper, and not one that happens to call a child so.
  std::function<bool(const torch::nn::Module&)> is_wrapper;
  /// Names, in the wrapped module, of the parameters that the wrapper keeps in one flat parameter (`_flat_param`);
  /// empty for a wrapper that does no such thing.
  std::function<FqnSet(const torch::nn::Module&)> flat_names = {};
};

/// Those that Python has, known by the names of classes and children: `module` and `_orig_mod` where the class is
/// called so (`...DataParallel`, `OptimizedModule`, `CompiledModule`; with LibTorch's `Impl` or without), and
/// `_checkpoint_wrapped_module` and `_fsdp_wrapped_module` anywhere, since nothing else is called so.
DCP_API std::vector<WrapperTraits> default_wrappers();

/// Replaces names: `{"attention": "inner"}` for a module says that what is called `attention` in its state is found in
/// its child `inner`, whose own name is no part of any name.
using FqnModifiers = std::map<std::string, std::string>;

/// How modules are named.
struct NamingOptions {
  /// Asked after `HasInnerModule` and before the default ones.
  std::vector<WrapperTraits> wrappers = {};
  std::function<FqnModifiers(const torch::nn::Module&)> fqn_modifiers = {};
  /// Names of children, such as "module", that stay in names although they belong to wrappers.
  std::set<std::string> kept = {};
};

/// The module inside of all wrappers; the module itself if it is none.
///
/// \throws dcp::Error kInvalidArgument for wrappers that wrap each other in a circle.
/// Collective: no.
DCP_API const torch::nn::Module& unwrap(const torch::nn::Module& module, const NamingOptions& options = {});
DCP_API torch::nn::Module& unwrap(torch::nn::Module& module, const NamingOptions& options = {});

/// The names, as states have them, of what a module calls `name`: one, but for a flat parameter (`_flat_param`), which
/// has those of all parameters in it; it keeps its own if these are not known. A name without the wrappers' segments is
/// found too, and is its own. The empty name is its own.
///
/// \throws dcp::Error kKey for a name of nothing, kState for one with more behind `_extra_state`.
/// Collective: no.
/// Source: torch/distributed/checkpoint/state_dict.py, _get_fqns (2.14.1).
DCP_API FqnSet fqns_of(const torch::nn::Module& root, const std::string& name, const NamingOptions& options = {});

/// Stands for a module's extra state.
struct ExtraStateTag {};

using StateRef = std::variant<ModuleTensor, ExtraStateTag>;

/// Calls `visit(name, what)` for all that belongs to a module's state. Each module is visited once, under the first of
/// its names: its children, depth first, then its persistent buffers, its parameters, and its extra state if it has
/// any. Undefined tensors are skipped. (`state_dict` has another order, Python's.)
///
/// \throws dcp::Error as `module_tensors`; what `visit` throws.
/// Collective: no.
/// Source: torch/distributed/checkpoint/state_dict.py, _iterate_valid_model_state (2.14.1).
DCP_API void for_each_state(const torch::nn::Module& root,
                            const std::function<void(const std::string& name, const StateRef& what)>& visit,
                            const NamingOptions& options = {});

/// The names of a module's parameters. A tensor is known by its identity, as LibTorch's optimizers know it.
class DCP_API ParamIndex {
 public:
  explicit ParamIndex(const torch::nn::Module& root, const NamingOptions& options = {});

  /// All names of a parameter, in the order of `module_tensors`; empty for what is no parameter of the module. The
  /// first is the one that states of optimizers have.
  const FqnSet& names_of(const at::Tensor& parameter) const;

  /// The parameter of that name; undefined if there is none.
  at::Tensor find(const std::string& name) const;

 private:
  std::unordered_map<const void*, FqnSet> names_;
  std::unordered_map<std::string, at::Tensor> parameters_;
};

}  // namespace dcp

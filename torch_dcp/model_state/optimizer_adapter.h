#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "torch_dcp/base/error.h"
#include "torch_dcp/base/export.h"
#include "torch_dcp/state_dict/value.h"

namespace torch::optim {
class Optimizer;
class OptimizerOptions;
class OptimizerParamState;
}  // namespace torch::optim

namespace dcp {

/// What is wrong with a given value; the text names it without the place, which the caller knows.
struct AdapterFault {
  ErrorKind kind = ErrorKind::kInvalidArgument;
  std::string text;
};

struct OptionFault {
  std::string option;
  AdapterFault fault;
};

/// How options were taken from a dict.
struct OptionsResult {
  std::vector<OptionFault> faults;      ///< values that cannot be taken
  std::vector<std::string> missing;     ///< options of LibTorch that the dict lacks; they were left alone
  std::vector<std::string> unexpected;  ///< names in the dict that this optimizer does not have; ignored
};

enum class StateFieldKind : std::uint8_t {
  kCounter,        ///< a whole number: an int or a tensor without dimensions
  kNumber,         ///< a real number: likewise
  kLikeParameter,  ///< a tensor of the parameter's shape
  kGroupScalar,    ///< a tensor without dimensions, or an int; only with `has_one_state_per_group`
  kGroupVector,    ///< a tensor of one dimension, which has an element for each of those of all parameters of the
                   ///< group, in their order; only with `has_one_state_per_group`
};

/// One named value that an optimizer keeps for a parameter.
struct StateField {
  std::string name;
  StateFieldKind kind = StateFieldKind::kLikeParameter;
  bool is_needed = true;  ///< whether the optimizer cannot go on without it, with the options in question
  bool is_list = false;   ///< a list of such values instead of one; None in it stands for one that is not there
};

struct FieldFault {
  std::string field;
  AdapterFault fault;
};

/// Knows one type of optimizer: its options and its state of a parameter, as typed objects of LibTorch and as the dict
/// that Python's optimizer of this name saves. An optimizer is added by deriving from this and passing the object in
/// `OptimizerStateOptions::adapters`.
///
/// LibTorch's objects must be cloneable (`OptimizerCloneableOptions`, `OptimizerCloneableParamState`): a load that
/// fails puts back what they were.
///
/// Without state of its own, and none of its methods changes an optimizer but through what it is given to write to.
/// Thread safety: all methods may be called at once.
class DCP_API OptimizerAdapter {
 public:
  virtual ~OptimizerAdapter();

  /// Whether `optimizer` is of the type that this adapter knows, or derived from it.
  virtual bool handles(const torch::optim::Optimizer& optimizer) const = 0;

  /// Names of all options, in Python's order.
  virtual std::vector<std::string> option_names() const = 0;

  /// All options that Python's optimizer has, in Python's order and types; Python's default where LibTorch has none.
  virtual Dict read_options(const torch::optim::OptimizerOptions& options) const = 0;

  /// Takes over all of `given` that can be, whatever is wrong with the rest; throws nothing for a bad value.
  virtual OptionsResult write_options(torch::optim::OptimizerOptions& options, const Dict& given) const = 0;

  /// Whether the state is that of a whole group, kept under its first parameter, and the others have none.
  virtual bool has_one_state_per_group() const;

  /// Whether the optimizer makes its states when it is constructed and cannot step without. A parameter that has no
  /// stored state is then given the initial one; otherwise its state is removed.
  virtual bool needs_state_to_step() const;

  /// All values that the state of a parameter may have. The list is the same for all options but for `is_needed`.
  virtual std::vector<StateField> state_fields(const torch::optim::OptimizerOptions& options) const = 0;

  /// The values that are there; tensors are the live ones.
  virtual Dict read_state(const torch::optim::OptimizerParamState& state) const = 0;

  /// What `read_state` would give for a parameter that was never stepped: with a state of these values the next step is
  /// the same as without. Empty if such an optimizer keeps nothing.
  virtual Dict initial_state(const at::Tensor& parameter, const torch::optim::OptimizerOptions& options) const = 0;

  /// Whether these values stand for no state at all, so that the optimizer must have none to go on as it would have.
  virtual bool means_no_state(const Dict& values) const;

  /// What is wrong with values, each of which is sound by itself, when taken together.
  virtual std::vector<FieldFault> check_state(const Dict& values, const torch::optim::OptimizerOptions& options) const;

  virtual std::unique_ptr<torch::optim::OptimizerParamState> make_state() const = 0;

  /// Makes `values` the state, tensors by handle, since their elements may come after this; what `values` lacks is
  /// unset.
  /// \pre Names and kinds are those of `state_fields`, and `check_state` found nothing; a counter is an int, a number a
  ///      double.
  virtual void write_state(torch::optim::OptimizerParamState& state, const Dict& values) const = 0;
};

using OptimizerAdapters = std::vector<std::shared_ptr<const OptimizerAdapter>>;

/// The adapters of LibTorch's own optimizers: a new list at each call.
DCP_API OptimizerAdapters built_in_optimizer_adapters();

}  // namespace dcp

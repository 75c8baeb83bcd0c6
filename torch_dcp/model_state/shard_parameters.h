#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "torch_dcp/base/export.h"
#include "torch_dcp/fwd.h"
#include "torch_dcp/model_state/hooks.h"
#include "torch_dcp/tensor/layout.h"

namespace dcp {

/// Which parameters are parts of larger ones, and how the parts make the whole.
struct ShardRule {
  /// Of names below the module, as the shell and Python's `fnmatch` match file names: `*` and `?` stand for any
  /// characters, dots too, `[ab]` for one of some.
  std::string pattern;
  std::shared_ptr<const DeviceMesh> mesh;
  Placements placements;  ///< one for each dimension of the mesh
  /// Shape of the whole. Without it every rank's part must have the same shape: the whole then is, along each sharded
  /// dimension, the part times the number of ranks over which the dimension is sharded. Nobody is asked whether this is
  /// so; where parts are uneven, or ranks lie outside of the mesh, give the shape.
  std::optional<Sizes> global_sizes = {};
};

/// Declares that parameters of a module are this rank's parts of larger tensors.
///
/// The module keeps its plain local tensors. In its state, and that of its children taken alone, the parameters are
/// `DTensor`s of these tensors; so are, in the states of optimizers over them, the values of their shape. A load takes
/// a DTensor of the same layout for each (its local part is copied), and a plain tensor of the local shape only where
/// all placements are Replicate. `save` and `load` then cut and join by the layout, from and to any number of ranks.
///
/// For each parameter the first rule that matches one of its names counts; those that no rule matches stay as they are.
/// Works through hooks, which run with others in the order of registration: hooks that were registered before see, in
/// the state-dict post and the load pre moment, plain and given values.
///
/// \returns What ends it all.
/// \throws dcp::Error naming all that is wrong: kKey for a pattern that matches no parameter, and for a parameter that
///         is spread already; kShape for a local shape that is not what the rule gives this rank; kInvalidArgument for
///         no mesh and for placements that do not fit; kUnsupported for Partial.
/// Collective: no.
DCP_API HookHandle shard_parameters(torch::nn::Module& module, const std::vector<ShardRule>& rules);

}  // namespace dcp

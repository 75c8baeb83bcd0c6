#pragma once

#include "torch_dcp/base/export.h"
#include "torch_dcp/fwd.h"
#include "torch_dcp/model_state/hooks.h"
#include "torch_dcp/model_state/state_dict_options.h"

// Lets code that knows `state_dict` and `load_state_dict` alone give and take what the calls with options do.
//
// Lifetime: as of hooks. After a patched object has died, asking another one of the patch for its state is an error
// (kState) where a `std::shared_ptr` owns the module; of optimizers only the address is known: destroy the handle
// first.

namespace dcp {

/// Makes `state_dict(module)` and `load_state_dict(module, ...)` those of `get_model_state_dict` and
/// `set_model_state_dict` with these options, until the handle dies. The arguments of the patched calls are ignored.
/// `broadcast_from_rank0` counts for the load only.
///
/// \throws dcp::Error kKey if the module is patched already; kInvalidArgument for illegal options.
/// Collective: no; the patched calls are as those that they stand for.
/// Source: torch/distributed/checkpoint/state_dict.py, _patch_model_state_dict (2.14.1).
DCP_API HookHandle patch_model_state_dict(torch::nn::Module& module, const StateDictOptions& options = {});

/// The same for optimizers. Each of them gives the state of all, and loads all.
///
/// \throws dcp::Error kKey if one of them is patched already; kInvalidArgument and kState for illegal options.
/// Collective: no; the patched calls are as those that they stand for.
/// Source: torch/distributed/checkpoint/state_dict.py, _patch_optimizer_state_dict (2.14.1).
DCP_API HookHandle patch_optimizer_state_dict(torch::nn::Module& module, const OptimizerRefs& optimizers,
                                              const StateDictOptions& options = {});

}  // namespace dcp

#pragma once

#include <set>
#include <string>

#include "torch_dcp/fwd.h"
#include "torch_dcp/state_dict/value.h"

namespace dcp {

/// `state_dict` of the module itself, also where a `ModulePatch` took its place: with hooks, without `left_out`.
///
/// \param left_out  Full names of buffers that are no part of the state.
/// \throws dcp::Error kKey for a name in `left_out` that no buffer has, naming all such; and as `state_dict`.
Dict own_state_dict(const torch::nn::Module& module, const std::string& prefix = "",
                    const std::set<std::string>& left_out = {});

}  // namespace dcp

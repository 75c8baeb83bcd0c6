#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include "torch_dcp/model_state/optimizer_adapter.h"
#include "torch_dcp/model_state/optimizer_state_dict.h"

namespace dcp {

/// The parameters of each group of an optimizer, in its order, with their names.
using LiveGroups = std::vector<std::vector<const OptimizerParameter*>>;

bool has_trainable(const std::vector<const OptimizerParameter*>& group);

/// \throws dcp::Error kKey for parameters of the optimizer that `parameters` lacks, and for a name that two
///         tensors have. One error names all.
LiveGroups find_live_groups(const std::vector<OptimizerParameter>& parameters,
                            const torch::optim::Optimizer& optimizer);

/// \throws dcp::Error kUnsupported, naming them, for parts of parameters whose optimizer has one state of all elements.
void check_state_can_be_named(const LiveGroups& groups, const OptimizerAdapter& adapter);

/// Tensors by identity, as LibTorch's optimizers know them.
using TensorSet = std::unordered_set<const void*>;

/// \throws dcp::Error kUnsupported, naming them, for parameters outside of a call that is for others of their group,
///         where the group has one state of all.
void check_state_can_be_divided(const LiveGroups& groups, const OptimizerAdapter& adapter, const TensorSet& left_alone);

/// The first adapter that handles the optimizer: of those given, then of the built-in ones.
/// \throws dcp::Error kType naming the optimizer's type.
std::shared_ptr<const OptimizerAdapter> find_adapter(const torch::optim::Optimizer& optimizer,
                                                     const OptimizerAdapters& adapters);

}  // namespace dcp

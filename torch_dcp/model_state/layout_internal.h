#pragma once

#include <optional>
#include <string>

#include "torch_dcp/base/ordered_map.h"
#include "torch_dcp/fwd.h"
#include "torch_dcp/model_state/optimizer_adapter.h"
#include "torch_dcp/model_state/optimizer_state_dict.h"

namespace dcp {

/// Whether every rank has the whole.
bool is_replicated(const Placements& placements);

/// Spells `[8, 4] as [Shard(0)] on mesh [2] of ranks [0, 1]`.
std::string to_string(const DTensorLayout& layout);

/// What is wrong with a given DTensor where one of `wanted` is needed: parts of equal shape may be different parts.
std::optional<AdapterFault> layout_fault(const DTensor& given, const DTensorLayout& wanted);

/// What is wrong with a plain tensor where a part is needed; nothing where every rank has the whole.
std::optional<AdapterFault> plain_tensor_fault(const DTensorLayout& wanted);

/// The layouts of those parameters of a module that `shard_parameters` has spread, by all of their names.
OrderedMap<std::string, DTensorLayout> layouts_of(const torch::nn::Module& module);

}  // namespace dcp

#pragma once

#include <string>
#include <vector>

#include "torch_dcp/base/fault_list.h"
#include "torch_dcp/base/ordered_map.h"
#include "torch_dcp/state_dict/value.h"

namespace dcp {

/// A given set of options and the parameters it is for.
struct StoredGroup {
  std::string label;  ///< where it is in the given dict, such as "param_groups.0"
  Dict options;
  std::vector<std::string> params;  ///< each once
  std::vector<std::string> order;   ///< all parameters of the group that was saved, in its order; empty if not given
};

/// What a given optimizer state dict says, whatever its form.
struct StoredOptimizerState {
  OrderedMap<std::string, Dict> state;  ///< FQN -> name -> value
  std::vector<StoredGroup> groups;
  std::vector<std::string> unexpected;  ///< keys that belong to nothing
};

/// Reads the nested form. Adds a fault for whatever does not have it.
StoredOptimizerState read_nested_state(const Dict& given, FaultList& faults);

/// Reads the flattened form. Each parameter has a group of its own here.
///
/// An optimizer that has one state for a group gives the group's names for each parameter, `param_groups.FQN.params`:
/// its state is in their order. (Python has no such form.)
///
/// A flattened key does not tell where the parameter's name ends, so it is looked up by what is known:
/// \param fqns  Parameters of the optimizer.
StoredOptimizerState read_flattened_state(const Dict& given, const std::vector<std::string>& fqns,
                                          const std::vector<std::string>& option_names,
                                          const std::vector<std::string>& state_names, FaultList& faults);

}  // namespace dcp

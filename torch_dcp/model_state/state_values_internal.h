#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "torch_dcp/base/fault_list.h"
#include "torch_dcp/model_state/live_parameters_internal.h"
#include "torch_dcp/model_state/optimizer_adapter.h"
#include "torch_dcp/model_state/optimizer_state_dict.h"
#include "torch_dcp/state_dict/load_report.h"
#include "torch_dcp/state_dict/tensor_copies.h"
#include "torch_dcp/state_dict/value.h"

namespace dcp {

/// A vector that has the elements of all parameters of a group, one parameter after the other.
struct GroupVector {
  std::int64_t numel = 0;
  c10::ScalarType dtype = c10::ScalarType::Float;
};
GroupVector group_vector_of(const std::vector<const OptimizerParameter*>& group);

/// Where a value of a state goes, and what it has to be like.
struct StateTarget {
  std::string key;  ///< of the given value, for messages
  StateField field;
  const OptimizerParameter* parameter = nullptr;
  const Value* live = nullptr;  ///< what the optimizer has now; null: nothing
  GroupVector group = {};       ///< for the kinds of a group's state
};

/// Takes a given value: a counter becomes an int, a number a double, a DTensor its local part; other tensors, and those
/// in a list, stay as given. Returns false after adding faults that name it.
bool take_state_value(const StateTarget& target, const Value& given, DtypePolicy policy, FaultList& faults,
                      LoadReport& report, Value& into);

/// Replaces the tensors of a taken value by those that the optimizer will have: its own where one fits, else new ones.
/// What is to be copied into them is added to `copies`.
Value place_state_value(const StateTarget& target, const Value& taken, TensorCopies& copies);

/// Sorts a vector over parameters in the order `from`, or each of a list of such, into the order of `group`, which has
/// the same parameters.
Value reorder_group_vector(const Value& taken, const std::vector<std::string>& from,
                           const std::vector<const OptimizerParameter*>& group);

}  // namespace dcp

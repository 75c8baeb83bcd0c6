#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>

#include "torch_dcp/model_state/optimizer_adapter.h"
#include "torch_dcp/state_dict/value.h"

namespace dcp {

// Each writes `into` and returns nothing, or returns why the value cannot be taken.

/// An int, a double, or a tensor without dimensions of a real dtype.
std::optional<AdapterFault> take(const Value& value, double& into);
/// A bool, or a bool tensor without dimensions.
std::optional<AdapterFault> take(const Value& value, bool& into);
/// A tuple or list of two numbers.
std::optional<AdapterFault> take(const Value& value, std::tuple<double, double>& into);
/// A whole number that is not negative: an int, a double, or a tensor without dimensions of a real dtype.
std::optional<AdapterFault> take(const Value& value, std::int64_t& into);

Value to_value(double number);
Value to_value(std::int64_t number);
Value to_value(bool flag);
/// A tuple, as Python's optimizers have it.
Value to_value(const std::tuple<double, double>& pair);
/// Python's form of a step counter: a float32 tensor without dimensions; int64 above 2^24, where float32 is not exact.
Value counter_to_value(std::int64_t counter);

}  // namespace dcp

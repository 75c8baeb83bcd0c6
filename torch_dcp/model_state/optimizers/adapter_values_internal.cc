#include "torch_dcp/model_state/optimizers/adapter_values_internal.h"

#include <ATen/ops/scalar_tensor.h>

#include <cmath>
#include <variant>

namespace dcp {
namespace {

constexpr std::int64_t kLargestExactFloat = std::int64_t{1} << 24;

using Number = std::variant<std::int64_t, double>;

AdapterFault wrong_kind(const Value& value, const char* wanted) {
  return {ErrorKind::kType, c10::str("a ", value_kind_name(value.kind()), " is given where ", wanted, " is needed")};
}

std::optional<AdapterFault> take_tensor(const at::Tensor& tensor, Number& into) {
  if (!tensor.defined()) return AdapterFault{ErrorKind::kType, "an undefined tensor is given where a number is needed"};
  if (tensor.dim() != 0) {
    return AdapterFault{
        ErrorKind::kShape,
        c10::str("a number or a tensor without dimensions is needed, a tensor of shape ", tensor.sizes(), " is given")};
  }
  const at::ScalarType dtype = tensor.scalar_type();
  if (at::isIntegralType(dtype, /*includeBool=*/false)) {
    into = tensor.detach().to(at::kLong).item<std::int64_t>();
  } else if (at::isFloatingType(dtype)) {
    into = tensor.detach().to(at::kDouble).item<double>();
  } else {
    return AdapterFault{ErrorKind::kType, c10::str("a tensor of dtype ", dtype, " is given where a number is needed")};
  }
  return std::nullopt;
}

std::optional<AdapterFault> take_number(const Value& value, Number& into) {
  switch (value.kind()) {
    case ValueKind::kInt:
      into = value.as_int();
      return std::nullopt;
    case ValueKind::kDouble:
      into = value.as_double();
      return std::nullopt;
    case ValueKind::kTensor:
      return take_tensor(value.as_tensor(), into);
    default:
      return wrong_kind(value, "a number");
  }
}

const std::vector<Value>* as_sequence(const Value& value) {
  if (const auto* tuple = std::get_if<Tuple>(&value.storage())) return tuple;
  return std::get_if<List>(&value.storage());
}

}  // namespace

std::optional<AdapterFault> take(const Value& value, double& into) {
  Number number;
  if (auto fault = take_number(value, number)) return fault;
  into = std::visit([](auto n) { return static_cast<double>(n); }, number);
  return std::nullopt;
}

std::optional<AdapterFault> take(const Value& value, bool& into) {
  if (value.kind() == ValueKind::kBool) {
    into = value.as_bool();
    return std::nullopt;
  }
  if (!value.is_tensor() || !value.as_tensor().defined() || value.as_tensor().scalar_type() != at::kBool ||
      value.as_tensor().dim() != 0) {
    return wrong_kind(value, "a bool");
  }
  into = value.as_tensor().item<bool>();
  return std::nullopt;
}

std::optional<AdapterFault> take(const Value& value, std::tuple<double, double>& into) {
  const std::vector<Value>* sequence = as_sequence(value);
  if (sequence == nullptr) return wrong_kind(value, "a tuple of two numbers");
  if (sequence->size() != 2) {
    return AdapterFault{ErrorKind::kInvalidArgument,
                        c10::str("two numbers are needed, ", sequence->size(), " are given")};
  }
  std::tuple<double, double> pair;
  if (auto fault = take((*sequence)[0], std::get<0>(pair))) return fault;
  if (auto fault = take((*sequence)[1], std::get<1>(pair))) return fault;
  into = pair;
  return std::nullopt;
}

std::optional<AdapterFault> take(const Value& value, std::int64_t& into) {
  Number number;
  if (auto fault = take_number(value, number)) return fault;
  if (const double* real = std::get_if<double>(&number)) {
    constexpr double kTooLarge = 9223372036854775808.0;  // 2^63
    if (!(*real >= 0 && *real < kTooLarge && *real == std::floor(*real))) {
      return AdapterFault{ErrorKind::kInvalidArgument, c10::str(*real, " is no count")};
    }
    number = static_cast<std::int64_t>(*real);
  }
  const std::int64_t counter = std::get<std::int64_t>(number);
  if (counter < 0) return AdapterFault{ErrorKind::kInvalidArgument, c10::str(counter, " is no count")};
  into = counter;
  return std::nullopt;
}

Value to_value(double number) { return number; }

Value to_value(std::int64_t number) { return number; }

Value to_value(bool flag) { return flag; }

Value to_value(const std::tuple<double, double>& pair) {
  return Tuple{Value(std::get<0>(pair)), Value(std::get<1>(pair))};
}

Value counter_to_value(std::int64_t counter) {
  return at::scalar_tensor(counter, at::dtype(counter <= kLargestExactFloat ? at::kFloat : at::kLong));
}

}  // namespace dcp

#include "torch_dcp/model_state/state_values_internal.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "torch_dcp/model_state/layout_internal.h"
#include "torch_dcp/model_state/optimizers/adapter_values_internal.h"
#include "torch_dcp/state_dict/tensor_fit.h"

namespace dcp {
namespace {

/// Undefined if there is none.
at::Tensor live_tensor(const Value* live) {
  return live != nullptr && live->is_tensor() ? live->as_tensor() : at::Tensor();
}

const Value* element(const Value* list, std::size_t index) {
  if (list == nullptr || !list->is_list() || index >= list->as_list().size()) return nullptr;
  return &list->as_list()[index];
}

Sizes wanted_sizes(const StateTarget& target) {
  switch (target.field.kind) {
    case StateFieldKind::kGroupVector:
      return {target.group.numel};
    case StateFieldKind::kLikeParameter:
      return Sizes(target.parameter->tensor.sizes());
    default:
      return {};
  }
}

c10::ScalarType wanted_dtype(const StateTarget& target, const at::Tensor& live) {
  if (target.field.kind != StateFieldKind::kLikeParameter) return target.group.dtype;
  return live.defined() ? live.scalar_type() : target.parameter->tensor.scalar_type();
}

/// Takes one value of a target: the only one, or one of a list.
class Taking {
 public:
  Taking(const StateTarget& target, std::string key, const Value* live, DtypePolicy policy, FaultList& faults,
         LoadReport& report)
      : target_(target), key_(std::move(key)), live_(live), policy_(policy), faults_(faults), report_(report) {}

  bool take_value(const Value& given, Value& into) {
    switch (target_.field.kind) {
      case StateFieldKind::kCounter:
        return take_number<std::int64_t>(given, into);
      case StateFieldKind::kNumber:
        return take_number<double>(given, into);
      case StateFieldKind::kGroupScalar:
        return is_whole(given) ? take_number<std::int64_t>(given, into) : take_scalar(given, into);
      case StateFieldKind::kLikeParameter:
      case StateFieldKind::kGroupVector:
        return take_tensor(given, into);
    }
    return fail(ErrorKind::kInternal, "no such kind of field");
  }

 private:
  bool fail(ErrorKind kind, const std::string& text) {
    faults_.add(kind, key_, text);
    return false;
  }

  template <typename Number>
  bool take_number(const Value& given, Value& into) {
    Number number = 0;
    if (const auto fault = take(given, number)) return fail(fault->kind, fault->text);
    into = number;
    return true;
  }

  static bool is_whole(const Value& given) {
    return given.kind() == ValueKind::kInt ||
           (given.is_tensor() && given.as_tensor().defined() && given.as_tensor().dim() == 0 &&
            at::isIntegralType(given.as_tensor().scalar_type(), /*includeBool=*/false));
  }

  bool take_scalar(const Value& given, Value& into) {
    if (given.kind() != ValueKind::kDouble) return take_tensor(given, into);
    into = at::scalar_tensor(given.as_double(), at::dtype(target_.group.dtype));
    return true;
  }

  bool take_tensor(const Value& given, Value& into) {
    const bool is_part = given.kind() == ValueKind::kDTensor && target_.field.kind == StateFieldKind::kLikeParameter;
    if (!is_part && (!given.is_tensor() || !given.as_tensor().defined())) {
      return fail(ErrorKind::kType,
                  c10::str("a ", value_kind_name(given.kind()), " is given where a tensor is needed"));
    }
    const at::Tensor& local = is_part ? given.as_dtensor().local() : given.as_tensor();
    if (!check_layout(is_part ? &given.as_dtensor() : nullptr)) return false;
    if (local.is_meta() && !target_.parameter->tensor.is_meta()) {
      return fail(ErrorKind::kUnsupported, "the given tensor is on the meta device, and has no elements");
    }
    const at::Tensor live = live_tensor(live_);
    if (live.defined() && !why_not_writable(live).empty()) {
      return fail(ErrorKind::kUnsupported, why_not_writable(live) + " cannot be written");
    }
    into = local;
    return check_fits(key_, local, wanted_sizes(target_), wanted_dtype(target_, live_tensor(live_)), policy_, faults_,
                      report_);
  }

  /// \param given  Null for a plain tensor.
  bool check_layout(const DTensor* given) {
    const std::optional<DTensorLayout>& layout = target_.parameter->layout;
    if (!layout) {
      return given == nullptr ||
             fail(ErrorKind::kType, "a DTensor is given, but the optimizer's parameter is a plain tensor");
    }
    if (target_.field.kind != StateFieldKind::kLikeParameter) return true;
    const auto fault = given == nullptr ? plain_tensor_fault(*layout) : layout_fault(*given, *layout);
    return !fault || fail(fault->kind, fault->text);
  }

  const StateTarget& target_;
  const std::string key_;
  const Value* live_;
  DtypePolicy policy_;
  FaultList& faults_;
  LoadReport& report_;
};

/// The optimizer's own tensor if it fits, or a new one where the parameter is; for a parameter on the meta device,
/// which gets memory by itself, where the given value is.
at::Tensor destination(const StateTarget& target, const at::Tensor& live, const c10::Device& given) {
  const Sizes sizes = wanted_sizes(target);
  const c10::ScalarType dtype = wanted_dtype(target, live);
  const bool has_memory = live.defined() && (!live.is_meta() || given.is_meta());
  if (has_memory && live.sizes() == c10::IntArrayRef(sizes) && live.scalar_type() == dtype) return live;
  const at::Tensor parameter = target.parameter->tensor.detach();
  const at::TensorOptions options = at::dtype(dtype).device(parameter.is_meta() ? given : parameter.device());
  if (target.field.kind == StateFieldKind::kLikeParameter) return at::empty_like(parameter, options);
  return at::empty(sizes, options);
}

Value place(const StateTarget& target, const Value& taken, const Value* live, TensorCopies& copies) {
  if (!taken.is_tensor()) return taken;
  at::Tensor held = destination(target, live_tensor(live), taken.as_tensor().device());
  copies.add(held, taken.as_tensor());
  return held;
}

bool is_in_order(const std::vector<std::string>& names, const std::vector<const OptimizerParameter*>& group) {
  return std::equal(
      names.begin(), names.end(), group.begin(), group.end(),
      [](const std::string& name, const OptimizerParameter* parameter) { return name == parameter->fqn; });
}

}  // namespace

GroupVector group_vector_of(const std::vector<const OptimizerParameter*>& group) {
  GroupVector vector;
  for (const OptimizerParameter* parameter : group) {
    const c10::ScalarType dtype = parameter->tensor.scalar_type();
    vector.dtype = parameter == group.front() ? dtype : c10::promoteTypes(vector.dtype, dtype);
    vector.numel += parameter->tensor.numel();
  }
  return vector;
}

bool take_state_value(const StateTarget& target, const Value& given, DtypePolicy policy, FaultList& faults,
                      LoadReport& report, Value& into) {
  if (!target.field.is_list) {
    return Taking(target, target.key, target.live, policy, faults, report).take_value(given, into);
  }
  if (!given.is_list()) {
    faults.add(ErrorKind::kType, target.key,
               c10::str("a ", value_kind_name(given.kind()), " is given where a list is needed"));
    return false;
  }
  bool is_sound = true;
  List taken(given.as_list().size());
  for (std::size_t i = 0; i < taken.size(); ++i) {
    const Value& each = given.as_list()[i];
    if (each.is_none()) continue;
    Taking taking(target, target.key + "." + std::to_string(i), element(target.live, i), policy, faults, report);
    is_sound = taking.take_value(each, taken[i]) && is_sound;
  }
  into = std::move(taken);
  return is_sound;
}

Value place_state_value(const StateTarget& target, const Value& taken, TensorCopies& copies) {
  if (!taken.is_list()) return place(target, taken, target.live, copies);
  List placed;
  for (std::size_t i = 0; i < taken.as_list().size(); ++i) {
    placed.push_back(place(target, taken.as_list()[i], element(target.live, i), copies));
  }
  return placed;
}

Value reorder_group_vector(const Value& taken, const std::vector<std::string>& from,
                           const std::vector<const OptimizerParameter*>& group) {
  if (taken.is_list()) {
    List reordered;
    for (const Value& each : taken.as_list()) reordered.push_back(reorder_group_vector(each, from, group));
    return reordered;
  }
  if (!taken.is_tensor() || is_in_order(from, group)) return taken;
  std::unordered_map<std::string, std::int64_t> numel;
  for (const OptimizerParameter* parameter : group) numel[parameter->fqn] = parameter->tensor.numel();
  std::unordered_map<std::string, at::Tensor> parts;
  std::int64_t offset = 0;
  for (const std::string& fqn : from) {
    parts[fqn] = taken.as_tensor().narrow(0, offset, numel.at(fqn));
    offset += numel.at(fqn);
  }
  std::vector<at::Tensor> sorted;
  for (const OptimizerParameter* parameter : group) sorted.push_back(parts.at(parameter->fqn));
  return at::cat(sorted);
}

}  // namespace dcp

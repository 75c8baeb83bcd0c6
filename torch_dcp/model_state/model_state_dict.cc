#include "torch_dcp/model_state/model_state_dict.h"

#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "torch_dcp/base/fault_list.h"
#include "torch_dcp/model_state/conversion_internal.h"
#include "torch_dcp/model_state/fqn.h"
#include "torch_dcp/model_state/tensor_copies_internal.h"
#include "torch_dcp/state_dict/equal.h"

namespace dcp {
namespace {

/// What the state dict consists of.
std::vector<ModuleTensor> persistent_tensors(const torch::nn::Module& module, std::set<std::string> non_persistent) {
  std::vector<ModuleTensor> kept;
  for (ModuleTensor& entry : module_tensors(module)) {
    const bool is_left_out = entry.kind == ModuleTensorKind::kBuffer && non_persistent.erase(entry.fqn) > 0;
    if (!is_left_out) kept.push_back(std::move(entry));
  }
  FaultList faults;
  for (const std::string& name : non_persistent) faults.add(ErrorKind::kKey, name, "the module has no such buffer");
  faults.throw_if_any("names of non-persistent buffers", DCP_WHERE);
  return kept;
}

/// Checks a state dict against a module, and then copies.
class ModelLoad {
 public:
  ModelLoad(const Dict& state, const SetModelStateOptions& options) : state_(state), options_(options) {}

  void check(const std::vector<ModuleTensor>& live) {
    for (const ModuleTensor& entry : live) check(entry);
    find_unexpected(live);
    faults_.throw_if_any("cannot set the state of the module", DCP_WHERE);
  }

  LoadReport apply() {
    copies_.apply();
    return std::move(report_);
  }

 private:
  struct Named {
    std::string fqn;
    at::Tensor given;
  };

  void check(const ModuleTensor& live) {
    const Value* value = state_.find(live.fqn);
    if (value == nullptr) {
      if (options_.strict) faults_.add(ErrorKind::kKey, live.fqn, "is missing in the given state");
      report_.missing.push_back(live.fqn);
      return;
    }
    if (!value->is_tensor() || !value->as_tensor().defined()) {
      faults_.add(ErrorKind::kType, live.fqn,
                  c10::str("a plain tensor is needed, a ", value_kind_name(value->kind()), " is given"));
      return;
    }
    const at::Tensor& given = value->as_tensor();
    if (!check_fits(live.fqn, given, live.tensor.sizes(), live.tensor.scalar_type(), options_.dtype_policy, faults_,
                    report_)) {
      return;
    }
    const auto [it, is_first] = first_names_.try_emplace(live.tensor.unsafeGetTensorImpl(), Named{live.fqn, given});
    if (is_first) {
      copies_.add(live.tensor, given);
    } else if (options_.strict) {
      check_tied(it->second, {live.fqn, given});
    }
  }

  void check_tied(const Named& first, const Named& other) {
    if (is_same_memory(first.given, other.given)) return;
    const std::string difference = first_difference(first.given, other.given);
    if (difference.empty()) return;
    faults_.add(
        ErrorKind::kInvalidArgument, other.fqn,
        c10::str("is one tensor with ", first.fqn, " in the module, but their given values differ: ", difference));
  }

  void find_unexpected(const std::vector<ModuleTensor>& live) {
    std::unordered_set<std::string> names;
    for (const ModuleTensor& entry : live) names.insert(entry.fqn);
    for (const auto& [key, value] : state_) {
      const std::string* name = std::get_if<std::string>(&key);
      if (name != nullptr && names.contains(*name)) continue;
      report_.unexpected.push_back(to_string(key));
      if (options_.strict) {
        faults_.add(ErrorKind::kKey, to_string(key), "is unexpected: no such name in the state of the module");
      }
    }
  }

  const Dict& state_;
  const SetModelStateOptions& options_;
  FaultList faults_;
  LoadReport report_;
  TensorCopies copies_;
  std::unordered_map<const void*, Named> first_names_;
};

}  // namespace

Dict get_model_state_dict(const torch::nn::Module& module, const GetModelStateOptions& options) {
  Dict state;
  for (ModuleTensor& entry : persistent_tensors(module, options.non_persistent_buffers)) {
    state.insert_or_assign(entry.fqn, std::move(entry.tensor));
  }
  return state;
}

LoadReport set_model_state_dict(torch::nn::Module& module, const Dict& state, const SetModelStateOptions& options) {
  ModelLoad load(state, options);
  load.check(persistent_tensors(module, options.non_persistent_buffers));
  return load.apply();
}

}  // namespace dcp

#include "torch_dcp/model_state/fqn.h"

#include <torch/nn/module.h>

#include <unordered_set>
#include <utility>

#include "torch_dcp/base/fault_list.h"

namespace dcp {
namespace {

using TensorDict = torch::OrderedDict<std::string, at::Tensor>;

void append(const std::string& prefix, const TensorDict& named, ModuleTensorKind kind, std::vector<ModuleTensor>& out) {
  for (const auto& item : named) {
    if (item.value().defined()) out.push_back({prefix + item.key(), item.value(), kind});
  }
}

void visit(const std::string& prefix, const torch::nn::Module& module, std::vector<ModuleTensor>& out) {
  append(prefix, module.named_parameters(/*recurse=*/false), ModuleTensorKind::kParameter, out);
  append(prefix, module.named_buffers(/*recurse=*/false), ModuleTensorKind::kBuffer, out);
  for (const auto& child : module.named_children()) {
    if (child.value()) visit(prefix + child.key() + ".", *child.value(), out);
  }
}

/// LibTorch refuses dots in names, but a parameter and a buffer, or a tensor and a child's, may still meet.
void check_names(const std::vector<ModuleTensor>& tensors) {
  FaultList faults;
  std::unordered_set<std::string> seen;
  for (const ModuleTensor& entry : tensors) {
    if (!seen.insert(entry.fqn).second) faults.add(ErrorKind::kKey, entry.fqn, "names several tensors");
  }
  faults.throw_if_any("names in the module", DCP_WHERE);
}

}  // namespace

std::vector<ModuleTensor> module_tensors(const torch::nn::Module& module) {
  std::vector<ModuleTensor> tensors;
  visit("", module, tensors);
  check_names(tensors);
  return tensors;
}

std::vector<ModuleTensor> unique_parameters(const torch::nn::Module& module) {
  std::vector<ModuleTensor> parameters;
  std::unordered_set<const void*> seen;
  for (ModuleTensor& entry : module_tensors(module)) {
    const bool is_parameter = entry.kind == ModuleTensorKind::kParameter;
    if (is_parameter && seen.insert(entry.tensor.unsafeGetTensorImpl()).second) parameters.push_back(std::move(entry));
  }
  return parameters;
}

}  // namespace dcp

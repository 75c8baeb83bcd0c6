#include "torch_dcp/model_state/fqn.h"

#include <torch/nn/module.h>

#include <unordered_set>
#include <utility>

#include "torch_dcp/model_state/module_parts_internal.h"

namespace dcp {
namespace {

void visit(const std::string& prefix, const torch::nn::Module& module, std::vector<ModuleTensor>& out) {
  append_own_tensors(module, prefix, out);
  for (const auto& child : module.named_children()) {
    if (child.value()) visit(prefix + child.key() + ".", *child.value(), out);
  }
}

}  // namespace

std::vector<ModuleTensor> module_tensors(const torch::nn::Module& module) {
  std::vector<ModuleTensor> tensors;
  visit("", module, tensors);
  NameCheck names;
  for (const ModuleTensor& entry : tensors) names.add(entry.fqn);
  names.throw_if_doubled();
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

#include "torch_dcp/model_state/layout_internal.h"

#include <algorithm>

#include "torch_dcp/model_state/fqn.h"
#include "torch_dcp/model_state/hook_registry_internal.h"
#include "torch_dcp/tensor/device_mesh.h"

namespace dcp {

bool is_replicated(const Placements& placements) {
  return std::all_of(placements.begin(), placements.end(),
                     [](const Placement& placement) { return placement.kind == PlacementKind::kReplicate; });
}

std::string to_string(const DTensorLayout& layout) {
  std::string placements;
  for (const Placement& placement : layout.placements) {
    placements += (placements.empty() ? "" : ", ") + to_string(placement);
  }
  return c10::str(to_string(layout.global_sizes), " as [", placements, "] on mesh ", to_string(layout.mesh->shape()),
                  " of ranks ", to_string(layout.mesh->ranks()));
}

std::optional<AdapterFault> layout_fault(const DTensor& given, const DTensorLayout& wanted) {
  const auto both = [&] {
    const DTensorLayout of_given = {given.mesh_ptr(), given.placements(), given.global_sizes()};
    return c10::str(": ", to_string(of_given), " is given, ", to_string(wanted), " is needed");
  };
  if (given.global_sizes() != wanted.global_sizes) {
    return AdapterFault{ErrorKind::kShape, "the given DTensor has another shape than the parameter" + both()};
  }
  if (given.placements() != wanted.placements || !(given.mesh() == *wanted.mesh)) {
    return AdapterFault{ErrorKind::kInvalidArgument,
                        "the given DTensor is spread otherwise than the parameter" + both()};
  }
  return std::nullopt;
}

std::optional<AdapterFault> plain_tensor_fault(const DTensorLayout& wanted) {
  if (is_replicated(wanted.placements)) return std::nullopt;
  return AdapterFault{ErrorKind::kType,
                      "a plain tensor is given, which does not say what part of the whole it is; a DTensor of " +
                          to_string(wanted) + " is needed"};
}

OrderedMap<std::string, DTensorLayout> layouts_of(const torch::nn::Module& module) {
  const HookTable hooks = current_hooks();
  OrderedMap<std::string, DTensorLayout> layouts;
  for (const ModuleTensor& entry : module_tensors(module)) {
    if (auto layout = hooks.layout_of(entry.tensor)) layouts.insert_or_assign(entry.fqn, *std::move(layout));
  }
  return layouts;
}

}  // namespace dcp

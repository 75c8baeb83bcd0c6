#include "torch_dcp/model_state/extra_state.h"

#include <torch/nn/module.h>

#include <string>
#include <utility>

#include "torch_dcp/model_state/hook_registry_internal.h"

namespace dcp {
namespace {

std::string doubled(const torch::nn::Module& module) {
  return c10::str("the module ", module.name(), " has extra state already: it can have one only");
}

}  // namespace

HasExtraState::~HasExtraState() = default;

HasNonPersistentBuffers::~HasNonPersistentBuffers() = default;

HookHandle register_extra_state(torch::nn::Module& module, std::function<Value()> getter,
                                std::function<void(const Value&)> setter) {
  DCP_CHECK(getter && setter, kInvalidArgument, "extra state needs a getter and a setter: one of them is empty");
  DCP_CHECK(dynamic_cast<const HasExtraState*>(&module) == nullptr, kKey, doubled(module));
  return attach(module, ExtraStateCalls{std::move(getter), std::move(setter)}, doubled(module).c_str());
}

HookHandle register_non_persistent_buffers(torch::nn::Module& module, const std::set<std::string>& names) {
  const auto buffers = module.named_buffers(/*recurse=*/false);
  FaultList faults;
  for (const std::string& name : names) {
    if (!buffers.contains(name)) faults.add(ErrorKind::kKey, name, "the module itself has no such buffer");
  }
  faults.throw_if_any("names of non-persistent buffers", DCP_WHERE);
  return attach(module, NonPersistentNames{names});
}

}  // namespace dcp

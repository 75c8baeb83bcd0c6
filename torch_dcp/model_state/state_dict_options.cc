#include "torch_dcp/model_state/state_dict_options.h"

#include <algorithm>
#include <unordered_set>

#include "torch_dcp/base/fault_list.h"
#include "torch_dcp/model_state/layout_internal.h"
#include "torch_dcp/tensor/device_mesh.h"

namespace dcp {
namespace {

/// Finds what is illegal in a call.
class Verification {
 public:
  Verification(const torch::nn::Module& module, const StateDictOptions& options, const StateDictCall& call)
      : module_(module), options_(options), call_(call) {}

  void run() {
    check_optimizers();
    if (options_.broadcast_from_rank0) check_broadcast();
    if (call_.is_getter && options_.full_state_dict && !has_group()) check_nothing_is_spread();
    check_values();
    faults_.throw_if_any("illegal options", DCP_WHERE);
  }

 private:
  void illegal(const char* field, const std::string& why) { faults_.add(ErrorKind::kInvalidArgument, field, why); }

  bool has_group() const { return options_.communicator != nullptr || options_.process_group; }

  int coordinator() const { return options_.communicator ? options_.communicator->coordinator() : 0; }

  void check_optimizers() {
    const auto& optimizers = call_.optimizers.pointers();
    if (!call_.has_model && optimizers.empty()) {
      faults_.add(ErrorKind::kState, "optimizers", "is empty in a call for the state of optimizers");
    }
    std::unordered_set<const void*> seen;
    for (const torch::optim::Optimizer* optimizer : optimizers) {
      if (optimizer == nullptr) {
        illegal("optimizers", "holds a null pointer");
      } else if (!seen.insert(optimizer).second) {
        illegal("optimizers", "holds an optimizer twice");
      }
    }
  }

  void check_broadcast() {
    if (call_.is_getter) {
      illegal("broadcast_from_rank0", "is for setters: nothing is sent to others by asking for a state");
      return;
    }
    if (!options_.full_state_dict) illegal("broadcast_from_rank0", "needs full_state_dict");
    if (!has_group()) illegal("broadcast_from_rank0", "needs process_group or communicator");
    if (coordinator() != 0) {
      illegal("communicator", c10::str("has rank ", coordinator(),
                                       " for its coordinator, and broadcast_from_rank0 sends from that rank"));
    }
  }

  void check_nothing_is_spread() {
    std::string spread;
    for (const auto& [fqn, layout] : layouts_of(module_)) {
      if (layout.mesh->size() > 1) spread += (spread.empty() ? "" : ", ") + fqn;
    }
    if (spread.empty()) return;
    illegal("full_state_dict",
            "needs process_group or communicator to gather what is spread over several ranks: " + spread);
  }

  void check_values() {
    if (options_.bucket_bytes <= 0) {
      illegal("bucket_bytes", c10::str("is ", options_.bucket_bytes, ", and must be above 0"));
    }
    if (options_.device && options_.device->is_meta()) illegal("device", "is meta, where tensors have no elements");
    for (const WrapperTraits& traits : options_.wrappers) {
      if (traits.inner.empty() || !traits.is_wrapper) {
        illegal("wrappers", "holds one without a child's name or a predicate");
      }
    }
    if (std::find(options_.adapters.begin(), options_.adapters.end(), nullptr) != options_.adapters.end()) {
      illegal("adapters", "holds a null pointer");
    }
  }

  const torch::nn::Module& module_;
  const StateDictOptions& options_;
  const StateDictCall& call_;
  FaultList faults_;
};

}  // namespace

void verify_options(const torch::nn::Module& module, const StateDictOptions& options, const StateDictCall& call) {
  Verification(module, options, call).run();
}

}  // namespace dcp

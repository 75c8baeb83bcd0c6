#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "torch_dcp/base/fault_list.h"
#include "torch_dcp/model_state/full_states_internal.h"
#include "torch_dcp/model_state/hook_registry_internal.h"
#include "torch_dcp/model_state/module_load_internal.h"
#include "torch_dcp/model_state/optimizer_load_internal.h"
#include "torch_dcp/model_state/state_dict_options.h"
#include "torch_dcp/model_state/state_names_internal.h"

namespace dcp {

/// What a call was given.
struct GivenStates {
  const Dict* model = nullptr;       ///< null: the call is not for the model
  const Dict* optimizers = nullptr;  ///< null: not for optimizers
  /// Whether an empty model dict means that the call is not for the model.
  bool is_model_optional = false;
};

/// One load of a module and its optimizers, which happens whole or not at all, and alike on all ranks.
class StateLoad {
 public:
  /// \param module  Null for a load of optimizers alone.
  StateLoad(const torch::nn::Module& names, torch::nn::Module* module, const OptimizerRefs& optimizers,
            const StateDictOptions& options, const Submodules& submodules)
      : root_(names), module_(module), optimizers_(optimizers.pointers()), options_(options), submodules_(submodules) {}

  LoadReport run(const GivenStates& given);

 private:
  /// One optimizer's part.
  struct OptimizerPart {
    torch::optim::Optimizer* optimizer = nullptr;
    std::vector<OptimizerParameter> parameters;
    OptimizerLoadArgs args;
    std::optional<Dict> changed;  ///< by hooks, or in that numbers became names
    std::vector<std::string> unexpected;
    std::unique_ptr<OptimizerLoad> load;
  };

  void begin(const GivenStates& given);
  void check_not_empty(const GivenStates& given) const;

  // Full states.
  void receive(const GivenStates& given);
  FullTarget choose(const Path& path, const at::Tensor& whole);
  FullTarget choose_of_model(const Path& path, const at::Tensor& whole);
  FullTarget choose_of_optimizers(const Path& path, const at::Tensor& whole);
  const NamedParameter* parameter_of(const Path& path) const;
  c10::Device device_of_module() const;

  // Checks.
  bool check();
  void check_model();
  void name_model_entries();
  void check_optimizers();
  void name_parameters(OptimizerPart& part, const Dict& given);
  void find_shared_parameters();
  const char* heading() const;

  LoadReport report() const;

  const torch::nn::Module& root_;
  torch::nn::Module* module_;
  const std::vector<torch::optim::Optimizer*> optimizers_;
  const StateDictOptions& options_;
  const Submodules& submodules_;
  std::shared_ptr<Communicator> group_;  ///< null: this process alone

  HookTable hooks_;
  std::optional<StateNames> names_;
  FaultList faults_;
  const Dict* model_ = nullptr;      ///< as given or received; null: nothing is loaded
  const Dict* optimizer_ = nullptr;  ///< likewise
  std::optional<FullStates> full_;
  Dict received_;
  bool runs_code_ = false;         ///< whether others' code runs, so that nothing may be written in place
  c10::Device device_ = at::kCPU;  ///< of new memory
  std::unordered_map<std::string, const NamedParameter*> parameter_by_name_;
  std::unordered_map<const void*, const NamedParameter*> parameter_by_tensor_;

  Dict own_entries_;                  ///< the model's, under own names
  std::vector<std::string> outside_;  ///< names that the call is not for
  ModuleLoadArgs model_args_;
  std::optional<ModuleLoad> model_load_;
  std::unordered_map<const void*, const torch::optim::Optimizer*> optimizer_of_;  ///< by parameter
  std::vector<OptimizerPart> parts_;  ///< as many as optimizers: nothing in it moves
};

}  // namespace dcp

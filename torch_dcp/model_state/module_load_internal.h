#pragma once

#include <c10/core/Device.h>

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "torch_dcp/base/fault_list.h"
#include "torch_dcp/model_state/load_part_internal.h"
#include "torch_dcp/model_state/module_parts_internal.h"
#include "torch_dcp/model_state/module_state_dict.h"
#include "torch_dcp/state_dict/tensor_copies.h"

namespace dcp {

/// What a load of a module may be told beside its options. Names are the module's own.
struct ModuleLoadArgs {
  LoadStateDictOptions options = {};
  /// Buffers that are no part of the state.
  std::set<std::string> left_out = {};
  /// Whether an entry must be there; all if empty.
  std::function<bool(const std::string& name)> is_needed = {};
  /// How errors and reports spell a name; as it is if empty.
  std::function<std::string(const std::string& name)> shown = {};
  /// Where a tensor on the meta device gets memory; where the given one is, if not given.
  std::optional<c10::Device> device = std::nullopt;
};

class LoadScope;

/// Checks a state against a module, and then loads it.
class ModuleLoad : public LoadPart {
 public:
  /// \param hooks  Used until the end.
  ModuleLoad(torch::nn::Module& module, const HookTable& hooks, const ModuleLoadArgs& args);
  ~ModuleLoad() override;

  /// Runs load pre hooks; adds a fault for all that is wrong.
  /// \param given  Used until the end.
  /// \throws dcp::Error kKey for doubled names; what hooks throw.
  void check(const Dict& given, FaultList& faults);

  bool runs_code_last() const override { return !post_hooks_.empty() || !extras_.empty(); }
  void keep_objects(LoadUndo&) override {}
  void keep_elements(LoadUndo& undo) override;
  void prepare() override {}
  void write_objects() override {}
  void write_elements() override;
  void finish() override;

  /// After everything. Names as they are shown.
  LoadReport report() const;

  static constexpr const char* kHeading = "cannot set the state of the module";

 private:
  struct Named {
    std::string fqn;
    at::Tensor given;
  };

  struct ExtraEntry {
    std::string key;
    ExtraStateCalls calls;
    const Value* given = nullptr;
  };

  void visit(torch::nn::Module& module, const std::string& prefix, LoadScope& outer);
  void check_extra_state(torch::nn::Module& module, const std::string& key, LoadScope& scope);
  void check(const ModuleTensor& live, LoadScope& scope);
  bool fits(const ModuleTensor& live, const at::Tensor& given);
  bool can_be_assigned(const ModuleTensor& live, const at::Tensor& given);
  void check_tied(const Named& first, const Named& other);
  void take(const at::Tensor& live, const at::Tensor& given);
  void add_missing(const std::string& name);
  void add_name_faults(FaultList& faults) const;
  void add_fault(ErrorKind kind, const std::string& name, const std::string& what);
  std::string shown(const std::string& name) const;

  torch::nn::Module& module_;
  const HookTable& hooks_;
  const ModuleLoadArgs& args_;
  ModuleParts parts_;
  FaultList* faults_ = nullptr;                              ///< during the check
  LoadReport report_;                                        ///< names are the module's own
  std::deque<Dict> copies_of_state_;                         ///< as hooks have left them; entries stay where they are
  std::vector<std::shared_ptr<torch::nn::Module>> modules_;  ///< kept for what was found in them
  std::vector<ModuleTensor> all_tensors_;
  TensorCopies copies_;
  std::vector<std::pair<at::Tensor, at::Tensor>> assigned_;
  std::vector<ExtraEntry> extras_;
  std::vector<const ModuleLoadPost*> post_hooks_;
  std::unordered_map<const void*, Named> first_names_;
};

/// Whether code of others runs when the module is loaded, so that given values may be changed before they are checked,
/// and errors may come after elements were written.
bool runs_code_in_load(const torch::nn::Module& module, const HookTable& hooks);

}  // namespace dcp

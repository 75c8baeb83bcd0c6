#pragma once

#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "torch_dcp/base/fault_list.h"
#include "torch_dcp/model_state/live_parameters_internal.h"
#include "torch_dcp/model_state/load_part_internal.h"
#include "torch_dcp/model_state/optimizer_adapter.h"
#include "torch_dcp/model_state/optimizer_state_internal.h"
#include "torch_dcp/model_state/state_values_internal.h"
#include "torch_dcp/model_state/stored_optimizer_state_internal.h"
#include "torch_dcp/state_dict/tensor_copies.h"

namespace dcp {

/// Checks a stored state against an optimizer, and then applies it.
class OptimizerLoad : public LoadPart {
 public:
  /// \param args  As `hooks` and `parameters` used until the end.
  /// \throws dcp::Error as `find_adapter`, `find_live_groups` and `check_state_can_be_named`.
  OptimizerLoad(const std::vector<OptimizerParameter>& parameters, torch::optim::Optimizer& optimizer,
                const OptimizerLoadArgs& args, const HookTable& hooks);
  ~OptimizerLoad() override;

  /// Adds a fault for all that is wrong. Load pre hooks have run.
  void check(const Dict& given, FaultList& faults);

  bool runs_code_last() const override { return !post_hooks_.empty(); }
  void keep_objects(LoadUndo& undo) override;
  void keep_elements(LoadUndo& undo) override;
  void prepare() override;
  void write_objects() override;
  void write_elements() override;
  void finish() override;

  const LoadReport& report() const { return report_; }

  static constexpr const char* kHeading = "cannot set the state of the optimizer";

 private:
  using Group = std::vector<const OptimizerParameter*>;

  /// What a live group will have.
  struct GroupChange {
    const StoredGroup* stored = nullptr;  ///< null: the options stay
    std::unique_ptr<torch::optim::OptimizerOptions> options;
  };

  /// What a parameter will have.
  struct StateChange {
    const OptimizerParameter* parameter = nullptr;
    bool is_written = false;  ///< else the state is removed
    Dict current = {};        ///< what it has now
    std::vector<StateTarget> targets = {};
    Dict values = {};  ///< as taken, by the names of the targets

    void* key() const { return parameter->tensor.unsafeGetTensorImpl(); }
  };

  /// A stored group, and the first parameter of a live group that it lists.
  struct Listing {
    const StoredGroup* stored = nullptr;
    std::string fqn;
  };

  std::vector<std::string> live_names() const;
  std::vector<std::string> state_names() const;
  Dict live_state(const OptimizerParameter& parameter) const;
  bool is_left_alone(const OptimizerParameter& parameter) const;
  bool are_left_alone(const Group& group) const;

  void add_missing(const std::string& key, const std::string& fault);
  void add_never_stepped(const std::string& key);
  void check_groups();
  std::vector<Listing> find_stored(std::size_t g, const std::unordered_map<std::string, const StoredGroup*>& group_of);
  void add_unlisted(const OptimizerParameter& parameter);
  void check_group(std::size_t g, const std::vector<Listing>& listings);
  void add_result(const StoredGroup& stored, const OptionsResult& result);
  void check_state_of_one(const OptimizerParameter& parameter, const torch::optim::OptimizerOptions& options);
  void check_state_of_all(std::size_t g);
  bool check_same_parameters(const Group& group, const StoredGroup& stored);
  void check_state(const OptimizerParameter& parameter, const torch::optim::OptimizerOptions& options,
                   bool is_trainable, const Dict* given, const GroupVector& group);
  void read_fields(const std::vector<StateField>& fields, const torch::optim::OptimizerOptions& options,
                   const Dict& given, const GroupVector& group, StateChange& change);
  bool check_together(const std::string& prefix, const torch::optim::OptimizerOptions& options, const Dict& values);
  void find_unknown_fields(const std::string& prefix, const std::vector<StateField>& fields, const Dict& given);
  void find_unexpected();
  bool is_foreign(const std::string& key) const;

  void place_values(StateChange& change);
  void write_state(const StateChange& change);
  void write_options();

  torch::optim::Optimizer& optimizer_;
  const OptimizerLoadArgs& args_;
  std::vector<const OptimizerLoadPost*> post_hooks_;
  std::shared_ptr<const OptimizerAdapter> adapter_;
  LiveGroups live_;
  StoredOptimizerState stored_;
  FaultList* faults_ = nullptr;  ///< during the check
  LoadReport report_;
  std::set<const StoredGroup*> checked_;
  std::vector<GroupChange> groups_;
  std::vector<StateChange> changes_;
  std::set<std::string> state_holders_;  ///< names under which there is the state of a whole group
  TensorCopies copies_;
};

}  // namespace dcp

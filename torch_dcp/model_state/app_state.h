#pragma once

#include <memory>
#include <string>

#include "torch_dcp/base/export.h"
#include "torch_dcp/fwd.h"
#include "torch_dcp/model_state/state_dict_options.h"
#include "torch_dcp/state_dict/load_report.h"
#include "torch_dcp/state_dict/stateful.h"

namespace dcp {

/// A whole training, to be put into a state dict under one key: `{{"app", app}}` in `save` and in `load`.
///
/// Its state is `{"model": ..., "optim": ..., "extra": {...}}`, where `optim` is there if there are optimizers and
/// `extra` if anything was added. `broadcast_from_rank0` counts for loads only.
///
/// Refers to the module and the optimizers, which must live as long as it does.
/// Thread safety: by one thread at a time. After an error nothing is changed but objects that were added, as far as
/// they had loaded their part.
class DCP_API AppState : public Stateful {
 public:
  /// \throws dcp::Error kInvalidArgument for illegal options.
  AppState(torch::nn::Module& module, const OptimizerRefs& optimizers, const StateDictOptions& options = {});
  ~AppState() override;

  /// Adds an object that saves and loads itself, or a plain value such as a counter, under a name of its own.
  ///
  /// \throws dcp::Error kKey for a name that is taken, kInvalidArgument for a null object.
  AppState& add(const std::string& name, Value value);

  /// A plain value as it is now, or was loaded. \throws dcp::Error kKey.
  const Value& value(const std::string& name) const { return extra_.at(name); }
  /// Sets a plain value for the next save. \throws dcp::Error kKey.
  void set_value(const std::string& name, Value value) { extra_.at(name) = std::move(value); }

  /// Live tensors, as `get_state_dict` gives them. Collective: as that call.
  Dict state_dict() override;

  /// Loads objects first, since what they throw then leaves the module as it was, and the module and its optimizers as
  /// `set_state_dict` does. A strict load needs all that was added; names that were not are in the report.
  ///
  /// \throws dcp::Error kKey for parts that are missing; as `set_state_dict`; what objects throw.
  /// Collective: as `set_state_dict`.
  void load_state_dict(const Dict& state) override;

  /// Of the last load.
  const LoadReport& report() const { return report_; }

 private:
  Dict load_extra(const Dict& state);

  torch::nn::Module& module_;
  OptimizerRefs optimizers_;
  StateDictOptions options_;
  Dict extra_;
  LoadReport report_;
};

}  // namespace dcp

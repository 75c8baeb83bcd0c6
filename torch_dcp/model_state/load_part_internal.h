#pragma once

#include <functional>
#include <string>
#include <vector>

#include "torch_dcp/comm/communicator.h"
#include "torch_dcp/model_state/load_undo_internal.h"

namespace dcp {

/// One module or optimizer in a load, after all checks: what is left to be done, in steps of rising risk.
class LoadPart {
 public:
  virtual ~LoadPart() = default;

  /// Whether code of others runs in `finish`: what it throws takes everything back.
  virtual bool runs_code_last() const = 0;

  /// Keeps objects that `write_objects` replaces; costs no memory of the state's size.
  virtual void keep_objects(LoadUndo& undo) = 0;
  /// Keeps elements of tensors, and gradients.
  virtual void keep_elements(LoadUndo& undo) = 0;

  /// Allocates memory; changes nothing.
  virtual void prepare() = 0;
  /// Adapters write options and state; no element of a tensor that was there changes.
  virtual void write_objects() = 0;
  virtual void write_elements() = 0;
  /// Setters of extra state and load post hooks.
  virtual void finish() = 0;
};

struct ApplyOptions {
  const char* subject = "the state";     ///< what is being loaded
  Communicator* communicator = nullptr;  ///< null: this process alone
  /// Whether what `finish` throws, on any rank, takes everything back.
  bool keeps_elements = false;
  /// Writes elements that come straight from another rank, before those that are here.
  std::function<void()> transfer = {};
};

/// Runs `action` as a step that succeeds or fails on all ranks; alone, what it throws passes unchanged.
void run_load_step(Communicator* communicator, const std::string& label, const std::function<void()>& action);

/// Does what is left of a load: all of it on all ranks, or nothing. Where `keeps_elements` is off nothing can fail once
/// elements are being written but memory and the connection; what was changed by then stays.
void apply_parts(const std::vector<LoadPart*>& parts, const ApplyOptions& options);

}  // namespace dcp

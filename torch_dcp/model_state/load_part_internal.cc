#include "torch_dcp/model_state/load_part_internal.h"

#include "torch_dcp/comm/rank_step.h"

namespace dcp {

void run_load_step(Communicator* communicator, const std::string& label, const std::function<void()>& action) {
  if (communicator == nullptr || communicator->size() == 1) {
    action();
  } else {
    status_step(*communicator, label, action);
  }
}

void apply_parts(const std::vector<LoadPart*>& parts, const ApplyOptions& options) {
  LoadUndo undo;
  run_load_step(options.communicator, "prepare to load", [&] {
    for (LoadPart* part : parts) {
      part->prepare();
      part->keep_objects(undo);
      if (options.keeps_elements) part->keep_elements(undo);
    }
  });
  bool can_put_back = true;
  try {
    run_load_step(options.communicator, "load options", [&] {
      for (LoadPart* part : parts) part->write_objects();
    });
    can_put_back = options.keeps_elements;
    if (options.transfer) options.transfer();
    run_load_step(options.communicator, "load elements", [&] {
      for (LoadPart* part : parts) part->write_elements();
      for (LoadPart* part : parts) part->finish();
    });
  } catch (...) {
    if (!can_put_back) throw;
    put_back_and_rethrow(undo, options.subject);
  }
}

}  // namespace dcp

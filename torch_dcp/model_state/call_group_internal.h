#pragma once

#include <memory>

#include "torch_dcp/comm/communicator.h"
#include "torch_dcp/model_state/state_dict_options.h"

namespace dcp {

/// The ranks that a call's options name: null if they name none. Collective where a communicator has to be made.
inline std::shared_ptr<Communicator> communicator_of(const StateDictOptions& options) {
  if (options.communicator) return options.communicator;
  if (!options.process_group) return nullptr;
  return std::make_shared<Communicator>(Communicator::create(options.process_group.get()));
}

}  // namespace dcp

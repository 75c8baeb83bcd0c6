#pragma once

#include <cstdint>
#include <functional>

#include "torch_dcp/checkpoint/load.h"
#include "torch_dcp/checkpoint/save.h"

namespace dcp::internal {

/// What becomes of a Stateful at the top level.
enum class StatefulRule : std::uint8_t { kConvert, kRefuse };

// As `save` and `load`, for a storage that is opened inside the first step: what goes wrong then on one rank is every
// rank's error, where before the step it would leave the others waiting.

Metadata save(const StateDict& state, const std::function<StorageWriter&()>& open_writer, const SaveOptions& options,
              StatefulRule rule = StatefulRule::kConvert);
LoadReport load(StateDict& state, const std::function<StorageReader&()>& open_reader, const LoadOptions& options,
                StatefulRule rule = StatefulRule::kConvert);

}  // namespace dcp::internal

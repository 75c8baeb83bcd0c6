#pragma once

#include <nlohmann/json_fwd.hpp>

#include "torch_dcp/base/bytes.h"
#include "torch_dcp/base/export.h"
#include "torch_dcp/base/limits.h"

namespace dcp {

/// Describes an object item as JSON with Python's types told apart: `{"t":"int","v":"123"}`,
/// `{"t":"tuple","v":[...]}`, `{"t":"set",...}`; an object of unknown type is
/// `{"t":"other","type":"module.name"}`. Made from the inert pickle; nothing is executed.
///
/// \throws dcp::Error kCorruptData for a damaged item.
DCP_API nlohmann::ordered_json object_item_to_json(ByteSpan item, const ParseLimits& limits = {});

}  // namespace dcp

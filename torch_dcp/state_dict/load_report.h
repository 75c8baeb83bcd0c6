#pragma once

#include <string>
#include <vector>

#include "torch_dcp/base/export.h"

namespace dcp {

/// A key whose stored dtype was converted.
struct DtypeConversion {
  std::string key;
  std::string stored;       ///< dtype name, such as "bfloat16"
  std::string destination;  ///< dtype name
  friend bool operator==(const DtypeConversion&, const DtypeConversion&) = default;
};

/// What a load did and left undone. Keys are flat keys, in order.
struct LoadReport {
  std::vector<std::string> missing;     ///< asked for, not stored (only with `partial`: else an error)
  std::vector<std::string> unexpected;  ///< stored, not asked for
  std::vector<DtypeConversion> converted;
  std::vector<std::string> skipped;  ///< left as they are because the planner does not want them
};

}  // namespace dcp

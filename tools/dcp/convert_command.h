#pragma once

#include <iosfwd>
#include <string>

#include "tools/dcp/convert.h"

namespace dcp::tool {

struct ConvertCommand {
  std::string source;
  std::string destination;
  std::string to;  ///< "dcp", "safetensors", "torch"; empty: by the destination's suffix
  ConvertOptions options;
};

/// Converts a checkpoint and says on `out` what was done and what was left out; the progress goes to the terminal that
/// stderr is, if it is one.
///
/// \throws dcp::Error as convert_checkpoint.
void run_conversion(const ConvertCommand& command, std::ostream& out);

}  // namespace dcp::tool

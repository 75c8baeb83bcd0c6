#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "torch_dcp/examples/train_run.h"

namespace dcp::examples {

/// What the program was asked to do.
struct CommandLine {
  RunOptions run;                    ///< `text` and `folder` are absolute paths or empty
  std::optional<int> ranks;          ///< to start here
  std::optional<int> kill;           ///< the rank that is lost, where memory is shown beside files
  bool replace = false;              ///< it comes back, with an empty memory
  bool keep = false;                 ///< a temporary folder stays
  std::vector<std::string> compare;  ///< folders of two runs, or empty
};

/// Reads the program's arguments.
/// \returns What to do, or the exit code if that is all: help was asked for, or the arguments are wrong. Both were
///          printed.
std::variant<CommandLine, int> read_command_line(int argc, char** argv);

/// The arguments that make another process train as `run` says.
std::vector<std::string> to_arguments(const RunOptions& run);

}  // namespace dcp::examples

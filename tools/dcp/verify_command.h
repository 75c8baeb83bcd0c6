#pragma once

#include <cstddef>
#include <iosfwd>
#include <string>

namespace dcp::tool {

struct VerifyCommand {
  std::string path;
  std::size_t threads = 1;
  bool as_json = false;
  bool follow_links = false;
};

/// Checks a checkpoint and prints what was found to `out`, the progress to the terminal that stderr is, if it is one.
///
/// \returns Whether the checkpoint is sound.
/// \throws dcp::Error if it could not be looked at.
bool verify_checkpoint(const VerifyCommand& command, std::ostream& out);

}  // namespace dcp::tool

#include "tools/dcp/terminal_progress.h"

#include <iostream>

namespace dcp::tool {

std::function<void(std::int64_t, std::int64_t)> TerminalProgress::callback() {
  if (!stderr_is_terminal()) return {};
  return [this](std::int64_t done, std::int64_t total) {
    if (!bar_) bar_.emplace(std::cerr, true, label_, ProgressBar::Unit::kBytes, total);
    bar_->update(done);
  };
}

}  // namespace dcp::tool

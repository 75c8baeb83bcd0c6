#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "tools/progress/progress_bar.h"

namespace dcp::tool {

/// A progress bar of bytes on stderr, where that is a terminal; else nothing.
class TerminalProgress {
 public:
  explicit TerminalProgress(std::string label) : label_(std::move(label)) {}

  /// For what works; empty where nobody watches. Must not outlive this.
  std::function<void(std::int64_t done, std::int64_t total)> callback();

  /// Ends the line, so that others can write.
  void finish() { bar_.reset(); }

 private:
  std::string label_;
  std::optional<ProgressBar> bar_;  ///< once the total is known
};

}  // namespace dcp::tool

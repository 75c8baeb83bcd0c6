#pragma once

#include <chrono>
#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>

namespace dcp::tool {

/// Shows how far something is, and its rate: on a terminal one line that is written over and over, elsewhere a plain
/// line now and then.
class ProgressBar {
 public:
  enum class Unit : std::uint8_t { kSteps, kBytes };

  ProgressBar(std::ostream& out, bool is_terminal, std::string label, Unit unit, std::int64_t total);
  /// Finishes.
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  /// \param done  Steps or bytes done; ascends. What was resumed begins with more.
  /// \param note  Said beside it, such as "loss 0.5".
  void update(std::int64_t done, const std::string& note = "");

  /// Ends the line, so that others can write.
  void finish();

 private:
  using Clock = std::chrono::steady_clock;

  bool is_due(std::int64_t done, Clock::time_point now) const;
  std::string line(std::int64_t done, const std::string& note, Clock::time_point now) const;

  std::ostream& out_;
  bool is_terminal_;
  std::string label_;
  Unit unit_;
  std::int64_t total_;
  std::int64_t last_done_ = 0;
  bool has_open_line_ = false;
  /// The first update: the rate is of what came after it, since it alone also waits for the work to start.
  std::optional<std::int64_t> first_done_;
  Clock::time_point start_;
  Clock::time_point last_shown_;
};

bool stdout_is_terminal();
bool stderr_is_terminal();

}  // namespace dcp::tool

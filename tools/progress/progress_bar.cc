#include "tools/progress/progress_bar.h"

#include <unistd.h>

#include <algorithm>
#include <iomanip>
#include <ostream>
#include <sstream>
#include <utility>

namespace dcp::tool {
namespace {

constexpr std::int64_t kBarWidth = 30;              // characters
constexpr std::int64_t kPlainLines = 5;             // of a whole run, where there is no terminal
constexpr std::chrono::milliseconds kInterval{50};  // between two writes of the line
constexpr double kMegabyte = 1e6;

}  // namespace

ProgressBar::ProgressBar(std::ostream& out, bool is_terminal, std::string label, Unit unit, std::int64_t total)
    : out_(out),
      is_terminal_(is_terminal),
      label_(std::move(label)),
      unit_(unit),
      total_(std::max<std::int64_t>(1, total)) {}

ProgressBar::~ProgressBar() { finish(); }

void ProgressBar::finish() {
  if (has_open_line_) out_ << std::endl;
  has_open_line_ = false;
}

bool ProgressBar::is_due(std::int64_t done, Clock::time_point now) const {
  if (done >= total_) return true;
  if (is_terminal_) return !first_done_ || now - last_shown_ >= kInterval;
  const std::int64_t step = std::max<std::int64_t>(1, total_ / kPlainLines);
  return done / step != last_done_ / step;
}

void ProgressBar::update(std::int64_t done, const std::string& note) {
  const Clock::time_point now = Clock::now();
  const bool is_due = this->is_due(done, now);
  if (!first_done_) {
    first_done_ = done;
    start_ = now;
  }
  last_done_ = done;
  if (!is_due) return;
  last_shown_ = now;
  if (is_terminal_) {
    out_ << '\r' << line(done, note, now) << "\x1b[K" << std::flush;
    has_open_line_ = true;
  } else {
    out_ << line(done, note, now) << std::endl;
  }
}

std::string ProgressBar::line(std::int64_t done, const std::string& note, Clock::time_point now) const {
  std::ostringstream text;
  text << label_;
  if (is_terminal_) {
    const double part = std::clamp(static_cast<double>(done) / static_cast<double>(total_), 0.0, 1.0);
    const auto filled = static_cast<std::size_t>(part * kBarWidth);
    text << " [" << std::string(filled, '#') << std::string(kBarWidth - filled, '.') << ']';
  }
  text << std::fixed << std::setprecision(1);
  if (unit_ == Unit::kSteps) {
    text << " step " << done << '/' << total_;
  } else {
    text << ' ' << static_cast<double>(done) / kMegabyte << '/' << static_cast<double>(total_) / kMegabyte << " MB";
  }
  if (!note.empty()) text << "  " << note;
  const std::chrono::duration<double> elapsed = now - start_;
  if (done > *first_done_ && elapsed.count() > 0) {
    const double rate = static_cast<double>(done - *first_done_) / elapsed.count();
    text << "  " << (unit_ == Unit::kSteps ? rate : rate / kMegabyte) << (unit_ == Unit::kSteps ? " steps/s" : " MB/s");
  }
  return text.str();
}

bool stdout_is_terminal() { return ::isatty(STDOUT_FILENO) == 1; }
bool stderr_is_terminal() { return ::isatty(STDERR_FILENO) == 1; }

}  // namespace dcp::tool

#include "torch_dcp/examples/progress_bar.h"

#include <unistd.h>

#include <algorithm>
#include <iomanip>
#include <ostream>
#include <sstream>
#include <utility>

namespace dcp::examples {
namespace {

constexpr int kBarWidth = 30;   // characters
constexpr int kPlainLines = 5;  // of a whole run, where there is no terminal

}  // namespace

ProgressBar::ProgressBar(std::ostream& out, bool is_terminal, std::string label, int total_steps)
    : out_(out),
      is_terminal_(is_terminal),
      label_(std::move(label)),
      total_steps_(std::max(1, total_steps)),
      start_(std::chrono::steady_clock::now()) {}

ProgressBar::~ProgressBar() { finish(); }

void ProgressBar::finish() {
  if (has_open_line_) out_ << std::endl;
  has_open_line_ = false;
}

void ProgressBar::update(int step, double loss) {
  if (first_step_ == 0) {
    // The rate is of the steps after the first: it alone also waits for the processes to start.
    first_step_ = step;
    start_ = std::chrono::steady_clock::now();
  }
  if (is_terminal_) {
    out_ << '\r' << line(step, loss) << "\x1b[K" << std::flush;
    has_open_line_ = true;
  } else if (step == total_steps_ || step % std::max(1, total_steps_ / kPlainLines) == 0) {
    out_ << line(step, loss) << std::endl;
  }
}

std::string ProgressBar::line(int step, double loss) const {
  std::ostringstream text;
  text << label_;
  if (is_terminal_) {
    const int filled = std::clamp(kBarWidth * step / total_steps_, 0, kBarWidth);
    text << " [" << std::string(filled, '#') << std::string(kBarWidth - filled, '.') << ']';
  }
  text << " step " << step << '/' << total_steps_ << std::fixed << std::setprecision(4) << "  loss " << loss;
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start_;
  if (step > first_step_ && elapsed.count() > 0) {
    text << std::setprecision(1) << "  " << (step - first_step_) / elapsed.count() << " steps/s";
  }
  return text.str();
}

bool stdout_is_terminal() { return ::isatty(STDOUT_FILENO) == 1; }

}  // namespace dcp::examples

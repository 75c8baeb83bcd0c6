#include "test/bench/timing.h"

#include <algorithm>

namespace dcp::bench {

double Times::best() const { return *std::min_element(seconds.begin(), seconds.end()); }

double Times::median() const {
  std::vector<double> sorted = seconds;
  std::sort(sorted.begin(), sorted.end());
  const std::size_t middle = sorted.size() / 2;
  return sorted.size() % 2 != 0 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

void Contest::add(std::string name, std::function<double()> run, std::function<void()> before) {
  contestants_.push_back({std::move(run), std::move(before)});
  times_.push_back({std::move(name), {}});
}

double Contest::run_once(std::size_t number) {
  if (contestants_[number].before) contestants_[number].before();
  return contestants_[number].run();
}

void Contest::run(int rounds) {
  const std::size_t count = contestants_.size();
  for (std::size_t i = 0; i < count; ++i) run_once(i);
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t place = (i + static_cast<std::size_t>(round)) % count;
      const std::size_t number = round % 2 == 0 ? place : count - 1 - place;
      times_[number].seconds.push_back(run_once(number));
    }
  }
}

const Times* Contest::find(const std::string& name) const {
  const auto found = std::find_if(times_.begin(), times_.end(), [&](const Times& times) { return times.name == name; });
  return found == times_.end() ? nullptr : &*found;
}

}  // namespace dcp::bench

#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace dcp::bench {

/// Seconds that `call` takes.
template <typename Call>
double seconds_of(const Call& call) {
  const auto begin = std::chrono::steady_clock::now();
  call();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// All runs of one contestant, in the order in which they were taken.
struct Times {
  std::string name;
  std::vector<double> seconds;

  double best() const;
  double median() const;
};

/// Contestants that take turns, so that a slow moment of the machine meets all of them. Each has one run that does not
/// count first; then the order begins one place further and turns around in every round.
class Contest {
 public:
  explicit Contest(std::string name) : name_(std::move(name)) {}

  /// \param run     Returns its own seconds.
  /// \param before  Is not timed.
  void add(std::string name, std::function<double()> run, std::function<void()> before = {});

  /// \param rounds  Runs that count, of each contestant.
  void run(int rounds);

  const std::string& name() const { return name_; }
  const std::vector<Times>& times() const { return times_; }
  /// Null if nobody has the name: a peer that is not on this machine.
  const Times* find(const std::string& name) const;

 private:
  struct Contestant {
    std::function<double()> run;
    std::function<void()> before;
  };

  double run_once(std::size_t number);

  std::string name_;
  std::vector<Contestant> contestants_;
  std::vector<Times> times_;
};

}  // namespace dcp::bench

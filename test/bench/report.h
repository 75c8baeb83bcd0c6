#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "test/bench/timing.h"

namespace dcp::bench {

/// What was measured, and how it stands to what should be reached.
class Report {
 public:
  /// Adds all times of a contest that has been run.
  ///
  /// \param units  Bytes or items of one run, for the rate; 0 for none.
  void add(const Contest& contest, double units, const std::string& unit);
  /// Adds the times of somebody who ran outside of any contest.
  void add(const Times& times, const std::string& contest, double units = 0, const std::string& unit = "") {
    measured_.push_back({contest, times, units, unit});
  }

  /// Adds a ratio that should be `target` or more: `slower / faster`, of the best runs and of the medians.
  void ratio(const std::string& what, double of_bests, double of_medians, double target);
  /// The same from two contestants; nothing if one of them is not there.
  void ratio(const std::string& what, const Times* slower, const Times* faster, double target);
  /// Adds a number that should be `target` or less.
  void bound(const std::string& what, double value, double target);
  void note(const std::string& what, nlohmann::json value);

  void print(std::ostream& out) const;
  nlohmann::json json() const;

 private:
  struct Measured {
    std::string contest;
    Times times;
    double units;
    std::string unit;
  };
  struct Target {
    std::string what;
    double best;
    std::optional<double> median;
    double target;
    bool is_upper_bound;

    bool holds() const { return is_upper_bound ? best <= target : best >= target; }
  };

  std::vector<Measured> measured_;
  std::vector<Target> targets_;
  nlohmann::json notes_ = nlohmann::json::object();
};

}  // namespace dcp::bench

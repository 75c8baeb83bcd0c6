#include "test/bench/report.h"

#include <cstdio>
#include <utility>

namespace dcp::bench {
namespace {

constexpr double kGiga = 1e9;

/// `2.31 GB/s`, or what one item takes: `8.4 us`.
std::string rate(double units, const std::string& unit, double seconds) {
  if (units == 0) return "";
  char text[64];
  if (unit == "B") {
    std::snprintf(text, sizeof(text), "%.2f GB/s", units / seconds / kGiga);
  } else {
    std::snprintf(text, sizeof(text), "%.2f us/%s", seconds / units * 1e6, unit.c_str());
  }
  return text;
}

}  // namespace

void Report::add(const Contest& contest, double units, const std::string& unit) {
  for (const Times& times : contest.times()) measured_.push_back({contest.name(), times, units, unit});
}

void Report::ratio(const std::string& what, double of_bests, double of_medians, double target) {
  targets_.push_back({what, of_bests, of_medians, target, false});
}

void Report::ratio(const std::string& what, const Times* slower, const Times* faster, double target) {
  if (slower && faster) {
    ratio(what, slower->best() / faster->best(), slower->median() / faster->median(), target);
  }
}

void Report::bound(const std::string& what, double value, double target) {
  targets_.push_back({what, value, std::nullopt, target, true});
}

void Report::note(const std::string& what, nlohmann::json value) { notes_[what] = std::move(value); }

void Report::print(std::ostream& out) const {
  char line[256];
  std::string contest;
  for (const Measured& row : measured_) {
    if (row.contest != contest) out << "\n" << row.contest << "\n";
    contest = row.contest;
    std::snprintf(line, sizeof(line), "  %-34s best %10.4f s  %-14s median %10.4f s  %-14s\n", row.times.name.c_str(),
                  row.times.best(), rate(row.units, row.unit, row.times.best()).c_str(), row.times.median(),
                  rate(row.units, row.unit, row.times.median()).c_str());
    out << line;
  }
  out << "\n";
  for (const auto& [what, value] : notes_.items()) out << what << ": " << value.dump() << "\n";
  std::snprintf(line, sizeof(line), "\n%-66s %9s %9s %9s\n", "ratios", "best", "median", "target");
  out << line;
  for (const Target& row : targets_) {
    const std::string median = row.median ? (std::snprintf(line, sizeof(line), "%9.3f", *row.median), line) : "";
    char text[256];
    std::snprintf(text, sizeof(text), "%-66s %9.3f %9s %2s%7.2f %s\n", row.what.c_str(), row.best, median.c_str(),
                  row.is_upper_bound ? "<=" : ">=", row.target, row.holds() ? "" : " MISSED");
    out << text;
  }
}

nlohmann::json Report::json() const {
  nlohmann::json result = {
      {"notes", notes_}, {"measured", nlohmann::json::array()}, {"ratios", nlohmann::json::array()}};
  for (const Measured& row : measured_) {
    result["measured"].push_back({{"contest", row.contest},
                                  {"name", row.times.name},
                                  {"seconds", row.times.seconds},
                                  {"best", row.times.best()},
                                  {"median", row.times.median()},
                                  {"units", row.units},
                                  {"unit", row.unit}});
  }
  for (const Target& row : targets_) {
    nlohmann::json entry = {{"what", row.what},
                            {"best", row.best},
                            {"target", row.target},
                            {"holds", row.holds()},
                            {"is_upper_bound", row.is_upper_bound}};
    if (row.median) entry["median"] = *row.median;
    result["ratios"].push_back(std::move(entry));
  }
  return result;
}

}  // namespace dcp::bench

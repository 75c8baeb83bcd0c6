#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "torch_dcp/base/bytes.h"
#include "torch_dcp/base/error.h"

namespace dcp {

/// What a rank is doing with respect to the communicator's steps.
enum class Phase : std::uint8_t {
  kBetweenSteps,  ///< in the program's own code
  kLocal,         ///< in its own part of a step
  kWaiting,       ///< exchanging with the others
  kGlobal,        ///< coordinator: in the part that merges all ranks' results
  kReceive,       ///< taking its answer in
};

/// Where a rank is: alike on every rank but for how far it has come.
struct Position {
  std::int64_t generation = 0;  ///< counts the groups used: a failed exchange ends one
  std::int64_t step = 0;        ///< counts the steps begun in this generation
  std::string label;            ///< of the step begun last
  Phase phase = Phase::kBetweenSteps;
};

/// How a rank came to see that an exchange failed.
enum class Observed : std::uint8_t {
  kNothing,   ///< it did not: its watcher answers for it
  kOwn,       ///< it failed itself
  kTimeout,   ///< its wait ended by the deadline
  kLost,      ///< a connection broke, or the group could not be made
  kFollowed,  ///< it was told by another rank
};

/// What a rank writes to the store when an exchange has failed.
struct Report {
  Position position;
  Observed observed = Observed::kNothing;
  RankFailure failure;  ///< with kOwn, kTimeout and kLost
  /// What had failed in its own part before that: word of it may not have reached the others.
  std::optional<RankFailure> early = std::nullopt;
};

/// All that is known of one rank when an exchange has failed.
struct RankSign {
  std::optional<Report> report;  ///< nothing: the rank gave no sign
  bool left = false;             ///< its communicator was destroyed
};

/// How a step ended: decided once, for all ranks.
struct Decision {
  bool complete = true;  ///< every rank has the step's outcome
  std::string label;
  std::vector<RankFailure> failures;  ///< not empty unless `complete`
};

Bytes encode_report(const Report& report);
Report decode_report(const Bytes& bytes);
Bytes encode_decision(const Decision& decision);
Decision decode_decision(const Bytes& bytes);

/// Whether the sign says all that can be expected of its rank; a rank that waits in
/// an exchange will soon say more than its watcher did.
bool is_settled(const RankSign& sign);

/// Names the ranks that failed from what the ranks wrote.
///
/// Ranks that failed themselves, left, or (unless somebody's deadline passed) gave no
/// sign, and if somebody's deadline passed those that were late; else, when all were there
/// and the network failed, the ranks that saw it. Sorted by rank.
Decision judge(const std::vector<RankSign>& signs, const Position& position, std::chrono::milliseconds deadline,
               std::chrono::milliseconds grace);

}  // namespace dcp

#pragma once

#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "torch_dcp/comm/rendezvous_store_internal.h"
#include "torch_dcp/comm/verdict_internal.h"

namespace c10d {
class Store;
}

namespace dcp {

/// The keys by which a communicator's ranks tell each other that something went wrong.
///
/// Nothing is written as long as all goes well, but for one key a step: its decision.
/// No call waits for a key to appear, yet each may hang as long as the store's server
/// does not answer: callers bound them. Thread safety: as the store's.
///
///     torch_dcp/NAME/creations/RANK   counter; the communicator's number
///     torch_dcp/NAME/NUMBER/          before each of the following
///       g<G>/s<K>/decision            how step K, in generation G, ended; first writer wins
///       g<G>/s<K>/cancel              a rank's own part of step K failed
///       g<G>/s<K>/judges/N            counter; who counts first may judge in round N
///       g<G>/break                    the exchange of generation G failed somewhere
///       g<G>/report/RANK              what a rank saw of it
///       g<G>/alive/RANK               where a rank is that did not see it itself
///       g<G>/settled                  counter: ranks of which nothing more is to come
///       g<G>/gloo/...                 rendezvous of the generation's group
///       left, left/RANK               a communicator was destroyed
class StepStore {
 public:
  /// Counts this rank's communicators of that name, and so finds its number.
  static std::shared_ptr<StepStore> open(const c10::intrusive_ptr<c10d::Store>& store, const std::string& name,
                                         int rank);
  StepStore(c10::intrusive_ptr<c10d::Store> store, std::string prefix);
  ~StepStore();
  StepStore(const StepStore&) = delete;
  StepStore& operator=(const StepStore&) = delete;

  /// Decides how the step ended unless that was decided before.
  /// \returns The decision that holds.
  Decision decide(const Position& at, const Decision& decision);
  std::optional<Decision> decision(const Position& at);

  void cancel(const Position& at);
  bool is_cancelled(const Position& at);

  void announce_break(std::int64_t generation);
  bool is_broken(std::int64_t generation);
  void write_report(std::int64_t generation, int rank, const Report& report);
  void write_alive(std::int64_t generation, int rank, const Report& report);
  RankSign sign(std::int64_t generation, int rank);
  /// Counts a rank whose sign is settled; once for each rank.
  void count_settled(std::int64_t generation);
  std::int64_t settled_count(std::int64_t generation);
  /// Makes at most one caller of each round the one that judges.
  bool elect(const Position& at, int round);

  void leave(int rank);
  bool anyone_left();

  /// The store for making the generation's group.
  c10::intrusive_ptr<c10d::Store> rendezvous(std::int64_t generation, RendezvousLimits limits);

 private:
  std::string key(const Position& at, const char* what) const;
  std::string key(std::int64_t generation, const char* what, int rank) const;
  bool has(const std::string& key);
  void mark(const std::string& key);

  c10::intrusive_ptr<c10d::Store> store_;
  std::string prefix_;
};

}  // namespace dcp

#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "torch_dcp/base/bytes.h"
#include "torch_dcp/base/export.h"
#include "torch_dcp/comm/group_factory.h"

namespace c10d {
class ProcessGroup;
class Store;
}  // namespace c10d

namespace dcp {

class StepEngine;

/// Deadlines of single steps, by the step's label: "write", "commit". A step that is not named here has
/// `CommunicatorOptions::deadline`, 30 minutes unless that is set; by default none is named.
///
/// save() and load() list their labels; those of other steps are in the errors that name them.
struct DCP_API DeadlineOptions {
  std::map<std::string, std::chrono::milliseconds> by_step = {};

  std::chrono::milliseconds of(const std::string& step, std::chrono::milliseconds otherwise) const {
    const auto found = by_step.find(step);
    return found == by_step.end() ? otherwise : found->second;
  }
};

/// How a communicator works. The same on every rank, but for `store`.
struct DCP_API CommunicatorOptions {
  CommunicatorOptions();
  CommunicatorOptions(const CommunicatorOptions&);
  CommunicatorOptions& operator=(const CommunicatorOptions&);
  CommunicatorOptions(CommunicatorOptions&&) noexcept;
  CommunicatorOptions& operator=(CommunicatorOptions&&) noexcept;
  ~CommunicatorOptions();

  int coordinator = 0;  ///< the rank, within the group, that merges and decides

  /// How long a rank may wait for the others in one step. It counts from the end of the
  /// rank's own part of the step, so it must exceed the difference between the fastest
  /// and the slowest rank's part, the coordinator's merging included. Also how long the
  /// store may take to answer at first.
  std::chrono::milliseconds deadline = std::chrono::minutes(30);
  /// Steps that have another.
  DeadlineOptions deadlines = {};

  /// How long, after an exchange failed, a rank may give no sign of life before it counts
  /// as gone; 2 ms are added for each rank of the group.
  std::chrono::milliseconds grace = std::chrono::milliseconds(500);

  /// Separates communicators whose groups share one store without a prefix of their own:
  /// such groups need different names.
  std::string name = "default";

  /// A store that the group's ranks share; that of the group if null. Needed for a group that was made without one.
  c10::intrusive_ptr<c10d::Store> store;

  GroupFactory group_factory = gloo_group_factory();
};

/// A step's parts as bytes; `rank_step.h` makes them from typed functions. Any part may be
/// empty. No part may use the communicator for another step.
struct StepParts {
  /// Every rank, at once.
  std::function<Bytes()> local;
  /// Coordinator, after all: from what the ranks brought to the answer for all, or to one
  /// answer for each rank. Without it the answers are empty.
  std::function<std::vector<Bytes>(std::vector<Bytes>)> global;
  bool answer_per_rank = false;
  /// Every rank, with its answer. The step is not complete before it has returned everywhere.
  std::function<void(Bytes)> receive;
};

/// Lets the ranks of a group exchange objects so that all succeed or all fail alike.
///
/// All communication is in steps: each rank runs a part of its own, the outcomes meet on
/// the coordinator and the result goes back. **Either every rank returns from a step, or
/// every rank throws the same CheckpointError**, which names the ranks that failed, were
/// late (kDeadline) or are gone (kComm). How a step ended is in the store before any rank
/// returns from it, so a rank that dies, or loses word of it, leaves nobody in doubt. Only
/// without the store it does: a rank that can neither hear nor look up the outcome throws
/// "outcome unknown", with rank -1, kDeadline if the store does not answer and kComm if it
/// is gone, while others may have returned.
///
/// Times: for a rank that is late or stopped the others throw when the step's deadline is
/// over; for one that dies, at once, or if it dies before the ranks are connected (in the
/// first step, or in the one after an exchange failed, until all have come to it) as for one
/// that is late. To both comes up to the grace, in which a rank may give a sign of life.
///
/// The caller's group is asked for rank, size and store, and never used to communicate.
/// A group of the communicator's own is made at the first step, and again after each
/// step whose exchange failed; a failure in a rank's own part does not cost the group.
///
/// The number of communicators created so far tells them apart in the store, so all ranks
/// of a group create theirs in the same order. It may be destroyed at any time; ranks
/// that still need it then fail with kComm.
///
/// Thread safety: one step at a time; `cancelled()` from any thread. After an error the
/// communicator is usable: all ranks go on with their next step.
class DCP_API Communicator {
 public:
  /// Returns a world of one: no group, no store, no thread.
  static Communicator single();

  /// Returns a communicator over the ranks of `group`; for a group of one, a world of one.
  ///
  /// \throws dcp::Error kInvalidArgument if there is no store, or no such coordinator.
  /// \throws dcp::Error kDeadline if the store does not answer.
  /// Collective: all ranks of the group, same order; waits for none of them.
  static Communicator create(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                             const CommunicatorOptions& options = {});

  Communicator(Communicator&&) noexcept;
  Communicator& operator=(Communicator&&) noexcept;
  ~Communicator();

  int rank() const;
  int size() const;
  int coordinator() const;
  bool is_coordinator() const { return rank() == coordinator(); }

  /// Returns on the coordinator each rank's bytes in rank order, elsewhere nothing.
  /// \throws dcp::CheckpointError alike on every rank. Collective: yes, all ranks, same order.
  std::vector<Bytes> gather(Bytes mine);
  /// Returns each rank's bytes in rank order. Throws and collective: as gather().
  std::vector<Bytes> all_gather(Bytes mine);
  /// Returns the coordinator's bytes; those of others are ignored. Throws and collective: as gather().
  Bytes broadcast(Bytes from_coordinator);
  /// Returns this rank's part of the coordinator's list, which has one entry for each rank;
  /// those of others are ignored. Throws and collective: as gather().
  Bytes scatter(std::vector<Bytes> from_coordinator);

  /// Runs one step. \throws dcp::CheckpointError alike on every rank, with `label` as its step.
  /// \throws dcp::Error kState if called inside a step of this communicator.
  /// Collective: yes, all ranks of the group, same order, same label.
  void run_step(const std::string& label, const StepParts& parts);

  /// Whether this rank's work on the present step has become useless, since another rank
  /// failed. Cheap: long work asks it between items.
  bool cancelled() const noexcept;
  /// \throws dcp::Error kCancelled if cancelled().
  void throw_if_cancelled() const;

 private:
  explicit Communicator(std::unique_ptr<StepEngine> engine);

  std::unique_ptr<StepEngine> engine_;  // none in a world of one
};

/// Runs `work` as the only rank's part of a step. \throws dcp::CheckpointError with what it threw.
DCP_API void run_alone(const std::string& label, const std::function<void()>& work);

}  // namespace dcp

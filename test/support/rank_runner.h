#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "torch_dcp/comm/communicator.h"

namespace c10d {
class ProcessGroup;
class Store;
}  // namespace c10d

namespace dcp::testing {

struct RankRunnerState;

/// What one rank of `run_ranks` has. Used by that rank's thread alone.
class RankContext {
 public:
  RankContext(RankRunnerState& state, int rank, int size);
  ~RankContext();
  RankContext(const RankContext&) = delete;
  RankContext& operator=(const RankContext&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }

  /// One store for all ranks of the run.
  const c10::intrusive_ptr<c10d::Store>& store() const;

  /// A working Gloo group of all ranks. The first call is collective.
  const c10::intrusive_ptr<c10d::ProcessGroup>& group();
  /// A working Gloo group of `ranks`, in that order; null on other ranks. The first call
  /// with a name is collective among `ranks`.
  const c10::intrusive_ptr<c10d::ProcessGroup>& sub_group(const std::vector<int>& ranks, const std::string& name);

  /// A group that knows rank, size and store and has no backend: every collective on it throws.
  c10::intrusive_ptr<c10d::ProcessGroup> unconnected_group() const;
  /// As unconnected_group(), of `ranks`, with a store of its own; null on other ranks.
  c10::intrusive_ptr<c10d::ProcessGroup> unconnected_sub_group(const std::vector<int>& ranks,
                                                               const std::string& name) const;

  /// A communicator of all ranks, on the loopback address, with a deadline of 20 s unless
  /// `options` has another than the default.
  Communicator communicator(CommunicatorOptions options = {}) const;
  /// As communicator(), of `ranks`, of which this rank must be one.
  Communicator sub_communicator(const std::vector<int>& ranks, const std::string& name,
                                CommunicatorOptions options = {}) const;

  /// Says where this rank is; told if the run hangs or the rank throws.
  void note(const std::string& text);

 private:
  struct Groups;

  RankRunnerState& state_;
  int rank_;
  int size_;
  std::unique_ptr<Groups> groups_;
};

struct RankRunnerOptions {
  std::chrono::milliseconds deadline = std::chrono::seconds(30);
};

/// Runs `body` on `world_size` ranks, each a thread of this process.
///
/// \throws std::runtime_error that tells what every rank threw, if any did.
///
/// A run that takes longer than the deadline ends the whole process, after every rank's
/// last note was printed: threads that hang cannot be joined.
void run_ranks(int world_size, const std::function<void(RankContext&)>& body, RankRunnerOptions options = {});

}  // namespace dcp::testing

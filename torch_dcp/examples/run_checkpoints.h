#pragma once

#include <chrono>
#include <memory>

#include "torch_dcp/examples/rank_group.h"
#include "torch_dcp/examples/step_report.h"
#include "torch_dcp/examples/train_run.h"

namespace dcp {
class PeerMemory;
class TieredWriter;
}  // namespace dcp

namespace dcp::examples {

class Trainer;

/// Where a run's checkpoints go, and come from: files, and memory of the ranks if the run is to use it.
class RunCheckpoints {
 public:
  /// \param options, group  Outlive it.
  /// \throws dcp::Error, dcp::CheckpointError if there is to be memory and it cannot be had.
  /// Collective: yes, all ranks.
  RunCheckpoints(const RunOptions& options, const RankGroup& group);
  /// Collective: yes, all ranks, when no rank saves or loads any more.
  ~RunCheckpoints();
  RunCheckpoints(const RunCheckpoints&) = delete;
  RunCheckpoints& operator=(const RunCheckpoints&) = delete;

  /// Restores the newest complete checkpoint, if the run is to be resumed.
  /// \returns A report without a step: what was loaded.
  /// \throws std::runtime_error if there is nothing to resume from, or a run that must not be mixed with this one.
  /// Collective: yes, all ranks.
  StepReport start_or_resume(Trainer& trainer);

  /// Saves where the trainer's step is due; the last one always to files. Collective: yes, all ranks.
  void save_if_due(const Trainer& trainer);

 private:
  void join_memory();
  void save_to_memory(const Trainer& trainer);
  void save_to_files(const Trainer& trainer);

  const RunOptions& options_;
  const RankGroup& group_;
  std::chrono::steady_clock::time_point begin_;
  std::shared_ptr<PeerMemory> memory_;    ///< none: files alone
  std::unique_ptr<TieredWriter> writer_;  ///< likewise
};

}  // namespace dcp::examples

#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "torch_dcp/base/export.h"
#include "torch_dcp/plan/metadata.h"
#include "torch_dcp/plan/plan.h"
#include "torch_dcp/plan/planner.h"

namespace dcp {

/// What a storage writer is told when a save begins. A struct, so that a new field breaks no writer.
struct StorageWriterContext {
  int rank = 0;  ///< within the group
  int world_size = 1;
  bool is_coordinator = true;
  /// Whether all ranks make one checkpoint together; if not, each commits its own part.
  bool use_collectives = true;
  /// Throws kCancelled if another rank has failed; called between items. May be empty.
  std::function<void()> throw_if_cancelled;
};

/// Puts a checkpoint into some storage. Knows names and bytes, never how ranks talk.
///
/// Calling order, each once per save:
///   every rank    set_up, storage_meta, prepare_local_plan
///   coordinator   prepare_global_plan
///   every rank    write_data
///   coordinator   finish: the only commit point. Before it a load finds what was there before
///   every rank    committed after success; abort after a failure that is known to lie before the commit
///                 (of `finish` the coordinator says so: may_have_committed)
///
/// A writer serves one save at a time; after an error `set_up` starts anew.
class DCP_API StorageWriter {
 public:
  virtual ~StorageWriter();

  virtual void set_up(const StorageWriterContext& context) = 0;

  /// The identity of this save, for the metadata.
  virtual StorageMeta storage_meta() const = 0;

  virtual SavePlan prepare_local_plan(SavePlan plan) = 0;

  /// \returns One plan per rank, in the same order.
  virtual std::vector<SavePlan> prepare_global_plan(std::vector<SavePlan> plans) = 0;

  /// Writes this rank's items. When it returns they are as durable as the writer promises.
  ///
  /// \returns Exactly one result per item, in any order.
  virtual std::vector<WriteResult> write_data(const SavePlan& plan, const SavePlanner& planner) = 0;

  /// Commits: the checkpoint exists when this returns.
  ///
  /// \param metadata  Without storage data.
  /// \param results   Of all ranks, by rank (of this rank alone without collectives).
  /// \returns The metadata with storage data.
  /// \throws dcp::Error kInternal if an item of the metadata has not exactly one result.
  virtual Metadata finish(Metadata metadata, const std::vector<std::vector<WriteResult>>& results) = 0;

  /// Told on every rank that the checkpoint exists. Clears away what it replaced. What cannot be removed now is left to
  /// the next save and told by `warnings`.
  virtual void committed() noexcept;

  /// Whether a `finish` that threw may have committed all the same; asked on the coordinator. If not, every rank is
  /// told to abort. "It may" is the safe answer, which leaves what was written to the next save.
  virtual bool may_have_committed() const;

  /// Removes what this rank wrote since `set_up`. What cannot be removed is left to the next save. Does nothing once
  /// more, and nothing after the commit: on the coordinator once it may have committed, elsewhere from `committed` on.
  virtual void abort() noexcept;

  /// What went wrong after the commit without harm to the checkpoint.
  virtual std::vector<std::string> warnings() const;
};

}  // namespace dcp

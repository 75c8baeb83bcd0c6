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

/// What a storage reader is told when a load begins. A struct, so that a new field breaks no reader.
struct StorageReaderContext {
  int rank = 0;  ///< within the group
  int world_size = 1;
  bool is_coordinator = true;
  bool use_collectives = true;
  /// Throws kCancelled if another rank has failed; called between items. May be empty.
  std::function<void()> throw_if_cancelled;
};

/// Gets a checkpoint out of some storage. Knows names and bytes, never how ranks talk.
///
/// Calling order, each once per load:
///   coordinator   read_metadata; if it gives nothing, read_merged_metadata (without collectives not); if that
///                 gives nothing, every rank read_rank_metadata
///   every rank    set_up, prepare_local_plan
///   coordinator   prepare_global_plan
///   every rank    check
///   coordinator   is_still_there
///   every rank    when all ranks have passed, read_data
class DCP_API StorageReader {
 public:
  virtual ~StorageReader();

  /// Where the checkpoint lies, such as its path: for messages. May be empty.
  virtual std::string place() const;

  /// The checkpoint's metadata; nothing if it was saved without collectives, so that each rank has its own.
  ///
  /// \throws dcp::Error kNotFound ('incomplete checkpoint' and the path), kCorruptData, kIo.
  virtual std::optional<Metadata> read_metadata() = 0;

  /// What all ranks saved without collectives, united for any number of ranks; nothing if this storage cannot tell,
  /// so that each rank reads its own. \throws as read_metadata.
  virtual std::optional<Metadata> read_merged_metadata();

  /// What `rank` saved without collectives. \throws as read_metadata.
  virtual Metadata read_rank_metadata(int rank);

  /// Whether what this load goes by is what is there now. No once another save has replaced it, or taken it away: what
  /// has not been opened by then cannot be read any more, or is another's. Asked when a call failed, and on the
  /// coordinator after all have checked, when nothing has been changed yet: a load then begins anew, once. Yes for a
  /// storage that cannot tell.
  ///
  /// \throws dcp::Error kIo.
  virtual bool is_still_there();

  /// \param metadata  Must stay alive until the load ends.
  virtual void set_up(const Metadata& metadata, const StorageReaderContext& context) = 0;

  virtual LoadPlan prepare_local_plan(LoadPlan plan);
  virtual std::vector<LoadPlan> prepare_global_plan(std::vector<LoadPlan> plans);

  /// Checks all that can be wrong with the stored items of the plan without reading tensors' elements, and
  /// hands every object to the planner. Changes no destination.
  ///
  /// \throws dcp::Error; kState where what is wrong comes from that `is_still_there` has become false.
  virtual void check(const LoadPlan& plan, LoadPlanner& planner) = 0;

  /// Fills the destinations of the plan's tensor items.
  ///
  /// \throws dcp::Error; the message lists the keys whose destinations have been changed already.
  virtual void read_data(const LoadPlan& plan, LoadPlanner& planner) = 0;
};

}  // namespace dcp

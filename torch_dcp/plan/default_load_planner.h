#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "torch_dcp/plan/planner.h"
#include "torch_dcp/state_dict/dtype_policy.h"
#include "torch_dcp/state_dict/flatten.h"
#include "torch_dcp/state_dict/load_report.h"

namespace dcp {

struct LoadPlannerOptions {
  FlattenRule flatten = FlattenRule::kCurrent;
  /// Asked-for keys that are not stored stay as they are and are reported, instead of an error.
  bool partial = false;
  DtypePolicy dtype_policy = DtypePolicy::kLossless;
  /// Elements that no stored chunk covers stay as they are, instead of an error. For checkpoints
  /// saved without collectives, where each rank knows only its own chunks.
  bool allow_uncovered = false;
  /// A tensor of a dtype that this LibTorch lacks loads into one of unsigned integers of the same width, as its bits,
  /// and is reported as converted. Off: it is kUnsupported. Other tensors load either way.
  bool missing_dtypes_as_bits = false;
};

struct TiedView;

/// Matches flat keys, checks kinds, sizes, dtypes and coverage of everything at once, and
/// reads the overlap of stored and wanted boxes. One error names all that is wrong; its kind is
/// that of the first fault.
///
/// What a destination accepts: a tensor of any kind a stored tensor of the same global size
/// whose dtype the policy lets convert; None any object; anything else an object of its own
/// kind, a double also an int that it holds exactly; an empty Dict also nothing at all. With
/// `FlattenRule::kCurrent` keys of checkpoints up to PyTorch 2.3 are recognised.
///
/// Source: torch/distributed/checkpoint/default_planner.py (2.14.1).
///
/// Of several keys with one destination in memory (tied weights) the first is read into it; the others are compared
/// with it in commit_objects, and what differs is kKey, naming both (with `partial` the first counts).
class DCP_API DefaultLoadPlanner : public LoadPlanner {
 public:
  explicit DefaultLoadPlanner(LoadPlannerOptions options = {});
  ~DefaultLoadPlanner() override;

  void set_up(StateDict& state, const Metadata& metadata, const LoadPlannerContext& context) override;
  LoadPlan create_local_plan() override;
  std::vector<LoadPlan> create_global_plan(std::vector<LoadPlan> all_plans) override;
  LoadPlan finish_plan(LoadPlan plan) override;
  at::Tensor resolve_tensor(const ReadItem& item) override;
  void commit_tensor(const ReadItem& item, const at::Tensor& tensor) override;
  void load_object(const ReadItem& item, Value value) override;
  void commit_objects() override;

  /// Complete after create_local_plan.
  LoadReport report() const override { return report_; }

 protected:
  /// Does what `set_up` does for destinations that were found already; `state` has them at their paths. Both outlive
  /// the load, and stay where they are.
  void set_up_leaves(StateDict& state, LeafPlaces leaves, const Metadata& metadata, const LoadPlannerContext& context);

  /// The destinations of this load; after `set_up`.
  const LeafPlaces& leaves() const { return leaves_; }
  /// Whether one of `leaves` stands for several destinations, which are one object under its key in the checkpoint.
  bool is_old_key(const std::string& key) const { return old_keys_.contains(key); }
  /// The key in the checkpoint of what the destination `key` is loaded from. The string lives until the next `set_up`.
  ///
  /// This and `is_wanted` are asked for keys of the present form alone, also where several of them turn out to be
  /// stored as one object under an earlier form's key.
  virtual const std::string& stored_key(const std::string& key) const { return key; }
  /// Whether the destination is loaded at all; if not, it stays as it is and is reported as skipped.
  virtual bool is_wanted(const std::string&) const { return true; }

 private:
  std::vector<const LeafPlace*> find_old_objects(const LeafPlaces& old) const;
  void take_old_keys();
  bool wants(const std::string& key) const { return old_keys_.contains(key) || is_wanted(key); }
  const std::string& name_in_checkpoint(const std::string& key) const {
    return old_keys_.contains(key) ? key : stored_key(key);
  }
  void report_unexpected();

  void check_tied() const;
  void refuse_emptied(const std::string& key, const Dict& destination);

  LoadPlannerOptions options_;
  LoadPlannerContext context_;
  StateDict* state_ = nullptr;
  const Metadata* metadata_ = nullptr;
  LeafPlaces leaves_;
  std::set<std::string, std::less<>> old_keys_;  ///< those of `leaves_` that are of an earlier form
  LoadReport report_;
  OrderedMap<MetadataIndex, at::Tensor, MetadataIndexHash> views_;
  std::vector<TiedView> tied_;
  std::mutex objects_mutex_;
  OrderedMap<std::string, Value> objects_;
};

/// Makes what a rebuilt tensor is read into: a tensor of any kind with its global size.
using MakeDestination = std::function<Value(const std::string& key, const TensorStorageMetadata& tensor)>;

/// Rebuilds the nested state dict of a checkpoint from its metadata: whole tensors on CPU, or whatever
/// `make_destination` makes, paths from the planner data (a key without a path becomes a top-level key).
///
/// The state dict passed to `set_up` must be empty; it is filled in `set_up` with destinations
/// (allocated only after all sizes and the coverage have been checked) and complete after
/// `commit_objects`.
class DCP_API RebuildLoadPlanner : public DefaultLoadPlanner {
 public:
  /// \param keys  Flat keys, or dotted prefixes of them, to rebuild; empty for all. In a name, `*` stands for any
  ///              characters, dots too, and `?` for one: `*.weight`, `layers.?.bias`. A name that matches nothing is
  ///              kKey; a key that has such a character itself is selected by its own name, and what is like it too.
  /// \param make_destination  Called in `set_up` once all has been checked; whole tensors on CPU if empty.
  explicit RebuildLoadPlanner(std::set<std::string> keys = {}, MakeDestination make_destination = {});
  ~RebuildLoadPlanner() override;

  /// \throws dcp::Error kInvalidArgument for a state dict that is not empty, kKey for a name that
  ///         matches nothing and for paths that contradict each other (naming both keys),
  ///         kCorruptData for chunks that do not tile their tensor, positions in lists that the
  ///         number of keys does not explain, and sizes beyond 64 bits, kUnsupported for dtypes
  ///         that this library cannot fill. Nothing is allocated then.
  void set_up(StateDict& state, const Metadata& metadata, const LoadPlannerContext& context) override;
  void load_object(const ReadItem& item, Value value) override;

 private:
  std::set<std::string> keys_;
  MakeDestination make_destination_;
  /// Keys of objects at whose path other keys have values, with one of those keys: a rank had an
  /// empty Dict where another had entries.
  std::map<std::string, std::string> opened_;
  Value nothing_;  ///< stands for those, which have no place of their own
};

}  // namespace dcp

#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "torch_dcp/base/fault_list.h"
#include "torch_dcp/base/ordered_map.h"
#include "torch_dcp/plan/default_load_planner.h"
#include "torch_dcp/plan/metadata.h"
#include "torch_dcp/plan/plan.h"
#include "torch_dcp/state_dict/flatten.h"
#include "torch_dcp/state_dict/load_report.h"

namespace dcp {

/// Views of a destination's local chunks.
using ChunkViews = OrderedMap<MetadataIndex, at::Tensor, MetadataIndexHash>;

/// A destination that is the same memory as another key's, such as a tied weight's second name: read beside it
/// and compared.
struct TiedView {
  std::string key;
  std::string first_key;
  at::Tensor live;   ///< of both keys
  at::Tensor other;  ///< what is read for `key`
};

/// Plans the load of one leaf after the other, noting faults instead of throwing them.
class LeafLoader {
 public:
  /// All must outlive the loader.
  LeafLoader(const LoadPlannerOptions& options, const Metadata& metadata, FaultList& faults, LoadReport& report,
             LoadPlan& plan, ChunkViews& views, std::vector<TiedView>& tied)
      : options_(options),
        metadata_(metadata),
        faults_(faults),
        report_(report),
        plan_(plan),
        views_(views),
        tied_(tied) {}

  /// \param stored_key  What the checkpoint has for the destination `key`.
  void add(const std::string& key, const std::string& stored_key, const Value& destination);

 private:
  /// Notes a fault of the destination that is being added.
  void add_fault(ErrorKind kind, const std::string& key, const std::string& what);
  void add_missing(const std::string& key);
  void add_tensor(const std::string& key, const Value& destination, const TensorStorageMetadata& stored);
  void add_object(const std::string& key, const Value& destination);
  /// The view to read into: the destination itself, or memory of its own if an earlier key has the destination.
  at::Tensor untied(const std::string& key, at::Tensor view);
  bool check_newer_dtype(const std::string& key, const TensorProperties& stored, c10::ScalarType wanted);
  bool check_dtype(const std::string& key, const TensorProperties& stored, c10::ScalarType wanted);
  void check_coverage(const std::string& key, const TensorStorageMetadata& stored, const std::vector<Box>& wanted,
                      const std::vector<ReadItem>& items);
  bool check_stored(const std::string& key, const MetadataIndex& index);
  /// Says where else the data of a key that is not stored may be; empty if nowhere.
  std::string hint_for_missing(const std::string& stored_key);

  const LoadPlannerOptions& options_;
  const Metadata& metadata_;
  FaultList& faults_;
  LoadReport& report_;
  LoadPlan& plan_;
  ChunkViews& views_;
  std::vector<TiedView>& tied_;
  const std::string* stored_key_ = nullptr;  ///< of the destination that is being added
  /// By their first byte: a view that is read into, as its number in `views_`; and those that share it with another
  /// shape.
  OrderedMap<const void*, std::size_t> owners_;
  std::vector<std::size_t> other_owners_;
  std::optional<std::vector<std::string_view>> sorted_keys_;  ///< of the checkpoint; made when needed
};

/// Makes an object fit its destination, or throws kType naming the key and both kinds.
Value accept_object(const std::string& key, const Value& destination, Value stored);

}  // namespace dcp

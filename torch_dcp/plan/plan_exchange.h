#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "torch_dcp/base/byte_codec.h"
#include "torch_dcp/base/bytes.h"
#include "torch_dcp/plan/plan.h"
#include "torch_dcp/plan/plan_cache.h"
#include "torch_dcp/plan/planner.h"

namespace dcp {

/// What a rank sends: its local plan, or that it is the one of an earlier exchange.
struct SavePlanOffer {
  std::string same_as;  ///< id of the exchange that left the rank's cache as it is; empty with a plan
  Bytes plan;           ///< a SavePlan, encoded
};

/// What the coordinator answers a rank.
struct SavePlanAnswer {
  enum class Kind : std::uint8_t {
    kPlan,     ///< its part of the global plan
    kSame,     ///< its part is that of the exchange named in its offer, but for the storage data
    kSendAll,  ///< some rank's plan is not known: all ranks get this answer and send theirs
  };
  Kind kind = Kind::kPlan;
  std::string id;              ///< of this exchange; empty if nothing is to be kept of it
  SavePlan plan;               ///< with kSame without items
  std::size_t byte_count = 0;  ///< as it was received; 0 if it was not sent
};

DCP_API void encode(ByteWriter& out, const SavePlanOffer& offer);
DCP_API void decode(ByteReader& in, SavePlanOffer& offer);
DCP_API void encode(ByteWriter& out, const SavePlanAnswer& answer);
DCP_API void decode(ByteReader& in, SavePlanAnswer& answer);

/// One save's exchange of plans. Used by `save`; talks to nobody itself.
///
/// Ranks may have a cache or not, each as it likes: one without sends its plan each time, and a coordinator without
/// knows nobody's. Takes what the cache remembers, and gives it back in `keep`: a save that fails leaves an empty
/// cache.
///
/// Calling order:
///   every rank    offer
///   coordinator   answer
///   every rank    accept; if it gives nothing, which it does on all ranks or on none: offer_all, answer, accept again
///   every rank    keep, when the save has ended well
class DCP_API SavePlanExchange {
 public:
  using PlanGlobally = std::function<std::pair<std::vector<SavePlan>, Metadata>(std::vector<SavePlan>)>;
  using PrepareStorage = std::function<std::vector<SavePlan>(std::vector<SavePlan>)>;

  /// \param cache  Null: nothing is remembered.
  explicit SavePlanExchange(SavePlanCache* cache);
  ~SavePlanExchange();

  /// \param local        This rank's plan; is freed when it is encoded.
  /// \param fingerprint  `SavePlanner::fingerprint`.
  /// \param coordinator  Its rank.
  SavePlanOffer offer(SavePlan local, const std::optional<Bytes>& fingerprint, const SavePlannerContext& context,
                      int coordinator);
  SavePlanOffer offer_all();

  /// Plans with `plan`, or takes what the cache has if all ranks' plans are known; then `prepare` is called on it, with
  /// a cache on a copy.
  ///
  /// \param offers  Of all ranks, in their order.
  /// \throws dcp::Error what `plan` and `prepare` throw; kCorruptData for bytes that are no plan.
  std::vector<SavePlanAnswer> answer(std::vector<SavePlanOffer> offers, const PlanGlobally& plan,
                                     const PrepareStorage& prepare);

  /// The metadata of the global plan, on the coordinator after `answer`: its storage_meta is of the save that planned.
  /// To be called once.
  Metadata take_metadata();

  /// \returns This rank's part of the global plan; nothing if all plans are to be sent.
  std::optional<SavePlan> accept(SavePlanAnswer answer);

  void keep();

 private:
  std::vector<SavePlan> decode_all(std::vector<SavePlanOffer>& offers);
  std::vector<SavePlan> plan_all(std::vector<SavePlanOffer>& offers, const PlanGlobally& plan);

  SavePlanCache unused_;  ///< stands for a cache that is not there
  SavePlanCache& cache_;
  const bool remembers_;
  std::unique_ptr<SavePlanExchangeState> state_;
  bool is_coordinator_ = false;  ///< `answer` was called
};

}  // namespace dcp

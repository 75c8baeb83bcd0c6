#include "torch_dcp/plan/plan_exchange.h"

#include <algorithm>
#include <random>
#include <utility>

#include "torch_dcp/base/error.h"
#include "torch_dcp/plan/wire.h"

namespace dcp {

/// What an exchange leaves for the next one.
struct SavePlanExchangeState {
  // On every rank.
  std::string id;     ///< empty: nothing is left
  Bytes fingerprint;  ///< of the planner and the group; empty if the planner has none
  Bytes local_plan;   ///< as it was sent
  SavePlan own_part;  ///< of the global plan
  // On the coordinator, by rank.
  std::vector<Bytes> local_plans;
  std::vector<SavePlan> global_plans;  ///< as the planner made them
  Metadata metadata;
};

namespace {

/// Names an exchange. Drawn anew each time, so that a coordinator that was started again cannot give the name of an
/// exchange it knows nothing of.
std::string make_id() {
  std::random_device random;
  ByteWriter out;
  for (int i = 0; i < 4; ++i) out.u32(random());
  return std::string(as_text(std::move(out).take()));
}

Bytes fingerprint_of(const std::optional<Bytes>& of_planner, const SavePlannerContext& context, int coordinator) {
  if (!of_planner) return {};
  ByteWriter out;
  out.i64(context.rank);
  out.i64(context.world_size);
  out.i64(coordinator);
  out.boolean(context.use_collectives);
  out.bytes(*of_planner);
  return std::move(out).take();
}

/// Also of what `operator==` leaves out, the hints.
bool is_same(const WriteItem& a, const WriteItem& b) {
  return a.index == b.index && a.index.index == b.index.index && a.type == b.type && a.chunk == b.chunk &&
         a.size == b.size && a.properties == b.properties;
}

/// Whether they differ in storage data at most.
bool is_same_plan(const SavePlan& a, const SavePlan& b) {
  return a.planner_data == b.planner_data &&
         std::equal(a.items.begin(), a.items.end(), b.items.begin(), b.items.end(), is_same);
}

std::vector<SavePlanAnswer> send_all(std::size_t rank_count) {
  SavePlanAnswer answer;
  answer.kind = SavePlanAnswer::Kind::kSendAll;
  return std::vector<SavePlanAnswer>(rank_count, answer);
}

}  // namespace

void encode(ByteWriter& out, const SavePlanOffer& offer) {
  out.text(offer.same_as);
  out.bytes(offer.plan);
}

void decode(ByteReader& in, SavePlanOffer& offer) {
  offer.same_as = in.text();
  offer.plan = in.bytes();
}

void encode(ByteWriter& out, const SavePlanAnswer& answer) {
  out.u8(static_cast<std::uint8_t>(answer.kind));
  out.text(answer.id);
  encode(out, answer.plan);
}

void decode(ByteReader& in, SavePlanAnswer& answer) {
  const std::size_t before = in.left();
  const std::uint8_t kind = in.u8();
  DCP_CHECK(kind <= static_cast<std::uint8_t>(SavePlanAnswer::Kind::kSendAll), kCorruptData, "message has ", int{kind},
            " for the kind of an answer");
  answer.kind = static_cast<SavePlanAnswer::Kind>(kind);
  answer.id = in.text();
  decode(in, answer.plan);
  answer.byte_count = before - in.left();
}

SavePlanCache::SavePlanCache() = default;
SavePlanCache::~SavePlanCache() = default;

void SavePlanCache::clear() { state_.reset(); }

SavePlanExchange::SavePlanExchange(SavePlanCache* cache)
    : cache_(cache == nullptr ? unused_ : *cache),
      remembers_(cache != nullptr),
      state_(cache_.state_ ? std::move(cache_.state_) : std::make_unique<SavePlanExchangeState>()) {
  cache_.use_ = {};
}
SavePlanExchange::~SavePlanExchange() = default;

SavePlanOffer SavePlanExchange::offer(SavePlan local, const std::optional<Bytes>& fingerprint,
                                      const SavePlannerContext& context, int coordinator) {
  Bytes plan = to_bytes(std::exchange(local, {}));
  Bytes of_all = fingerprint_of(fingerprint, context, coordinator);
  const bool is_known = !state_->id.empty() && !of_all.empty() && state_->fingerprint == of_all;
  if (!is_known || state_->local_plan != plan) {
    state_->fingerprint = std::move(of_all);
    state_->local_plan = std::move(plan);
    return offer_all();
  }
  SavePlanOffer offer{state_->id, {}};
  cache_.use_.sent_bytes += to_bytes(offer).size();
  return offer;
}

SavePlanOffer SavePlanExchange::offer_all() {
  SavePlanOffer offer{{}, state_->local_plan};
  cache_.use_.sent_plan = true;
  cache_.use_.sent_bytes += to_bytes(SavePlanOffer{}).size() + offer.plan.size();
  return offer;
}

std::vector<SavePlan> SavePlanExchange::decode_all(std::vector<SavePlanOffer>& offers) {
  if (remembers_) state_->local_plans.resize(offers.size());
  SavePlanDecoder decoder;
  std::vector<SavePlan> plans;
  plans.reserve(offers.size());
  for (std::size_t rank = 0; rank < offers.size(); ++rank) {
    Bytes offered = std::move(offers[rank].plan);
    if (!remembers_) {
      plans.push_back(decoder.decode(offered));
      continue;
    }
    if (offers[rank].same_as.empty()) state_->local_plans[rank] = std::move(offered);
    plans.push_back(decoder.decode(state_->local_plans[rank]));
  }
  return plans;
}

/// Plans anew. Returns what the ranks were told last.
std::vector<SavePlan> SavePlanExchange::plan_all(std::vector<SavePlanOffer>& offers, const PlanGlobally& plan) {
  auto [global_plans, metadata] = plan(decode_all(offers));
  DCP_CHECK(global_plans.size() == offers.size(), kInternal, "the global plan has ", global_plans.size(), " parts for ",
            offers.size(), " ranks");
  std::vector<SavePlan> before = std::exchange(state_->global_plans, std::move(global_plans));
  before.resize(offers.size());
  state_->metadata = std::move(metadata);
  cache_.use_.planned_anew = true;
  return before;
}

std::vector<SavePlanAnswer> SavePlanExchange::answer(std::vector<SavePlanOffer> offers, const PlanGlobally& plan,
                                                     const PrepareStorage& prepare) {
  is_coordinator_ = true;
  const auto is_same_offer = [](const SavePlanOffer& offer) { return !offer.same_as.empty(); };
  for (const SavePlanOffer& offer : offers) {
    const bool is_known = offer.same_as == state_->id && state_->global_plans.size() == offers.size();
    if (is_same_offer(offer) && !is_known) return send_all(offers.size());
  }
  const bool is_all_known = std::all_of(offers.begin(), offers.end(), is_same_offer);
  std::optional<std::vector<SavePlan>> before;
  if (!is_all_known) before = plan_all(offers, plan);
  const std::vector<SavePlan>& planned = state_->global_plans;
  const std::vector<SavePlan>& told = before ? *before : planned;
  std::vector<SavePlan> prepared = prepare(remembers_ ? planned : std::exchange(state_->global_plans, {}));
  DCP_CHECK(prepared.size() == offers.size(), kInternal, "the global plan has ", prepared.size(), " parts for ",
            offers.size(), " ranks");
  // A storage that makes other items of a plan may make others again next time.
  bool is_as_planned = remembers_;
  for (std::size_t rank = 0; is_as_planned && rank < offers.size(); ++rank) {
    is_as_planned = is_same_plan(prepared[rank], planned[rank]);
  }
  const std::string id = is_as_planned ? make_id() : std::string();
  std::vector<SavePlanAnswer> answers(offers.size());
  for (std::size_t rank = 0; rank < offers.size(); ++rank) {
    SavePlanAnswer& answer = answers[rank];
    answer.id = id;
    answer.plan = std::move(prepared[rank]);
    if (is_same_offer(offers[rank]) && is_same_plan(answer.plan, told[rank])) {
      answer.kind = SavePlanAnswer::Kind::kSame;
      answer.plan.items.clear();
      answer.plan.planner_data.reset();
    }
  }
  return answers;
}

Metadata SavePlanExchange::take_metadata() {
  return remembers_ ? state_->metadata : std::exchange(state_->metadata, {});
}

std::optional<SavePlan> SavePlanExchange::accept(SavePlanAnswer answer) {
  SavePlanCache::Use& use = cache_.use_;
  use.received_bytes += answer.byte_count;
  if (answer.kind == SavePlanAnswer::Kind::kSendAll) return std::nullopt;
  use.received_plan = answer.kind == SavePlanAnswer::Kind::kPlan;
  if (answer.kind == SavePlanAnswer::Kind::kSame) {
    state_->own_part.storage_data = std::move(answer.plan.storage_data);
  } else {
    state_->own_part = std::move(answer.plan);
  }
  state_->id = std::move(answer.id);
  if (!is_coordinator_) {  // It may have been.
    state_->local_plans = {};
    state_->global_plans = {};
    state_->metadata = {};
  }
  if (remembers_ && !state_->id.empty()) return state_->own_part;
  state_->local_plan = {};
  return std::exchange(state_->own_part, {});
}

void SavePlanExchange::keep() {
  if (!state_->id.empty()) cache_.state_ = std::move(state_);
}

}  // namespace dcp

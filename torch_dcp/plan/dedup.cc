#include "torch_dcp/plan/dedup.h"

#include <algorithm>
#include <utility>

#include "torch_dcp/base/fault_list.h"
#include "torch_dcp/plan/dedup_internal.h"
#include "torch_dcp/plan/key_table_internal.h"
#include "torch_dcp/plan/split_replicated_internal.h"
#include "torch_dcp/tensor/dtype.h"

namespace dcp {
namespace {

/// One item of one plan, with what is needed of it again and again: hundreds of ranks' items are
/// far apart in memory. Small, since there is one for each of them.
struct Offer {
  std::int64_t lead = 0;  ///< the chunk's first offset
  std::int64_t byte_count = 0;
  std::uint32_t rank = 0;
  std::uint32_t item : 30 = 0;
  std::uint32_t is_empty : 1 = 0;
  std::uint32_t is_as_first : 1 = 0;  ///< its chunk is that of the key's first offer
};
constexpr std::size_t kMostItems = std::size_t{1} << 30;  ///< of one rank

/// What several ranks can write, as a run of offers of different ranks.
struct SharedItem {
  std::size_t first = 0;
  std::size_t holder_count = 0;
  std::int64_t byte_count = 0;
  bool may_be_cut = false;
};

/// What each rank has been given so far.
struct Load {
  std::int64_t byte_count = 0;
  /// Objects and empty chunks, whose bytes are not known or none; empty chunks are spread by it.
  std::int64_t weightless_count = 0;
};

std::string describe(const WriteItem& item) {
  if (!item.is_tensor()) return "an object";
  return "a " + dtype_name(item.properties.dtype) + " tensor of size " + to_string(c10::IntArrayRef(item.size));
}

bool agree(const WriteItem& a, const WriteItem& b) {
  if (a.is_tensor() != b.is_tensor()) return false;
  return !a.is_tensor() || (a.size == b.size && a.properties.dtype == b.properties.dtype);
}

class Dedup {
 public:
  Dedup(std::vector<SavePlan> plans, bool to_lowest_rank, std::int64_t split_bytes)
      : plans_(std::move(plans)), to_lowest_rank_(to_lowest_rank), split_bytes_(split_bytes), loads_(plans_.size()) {}

  DedupedPlans run() {
    collect_offers();
    sort_offers();
    for (std::size_t key = 0; key < firsts_.size(); ++key) take_key(key);
    faults_.throw_if_any("ranks disagree about what they save", DCP_WHERE);
    place_shared_items();
    offers_ = {};
    drop_the_rest();
    return {std::move(plans_), std::move(key_numbers_), firsts_.size()};
  }

 private:
  const WriteItem& item_of(const Offer& offer) const { return plans_[offer.rank].items[offer.item]; }

  bool is_before(const Offer& a, const Offer& b) const {
    if (a.lead != b.lead) return a.lead < b.lead;
    if (a.is_as_first && b.is_as_first) return false;
    const Sizes& x = item_of(a).chunk.offsets;
    const Sizes& y = item_of(b).chunk.offsets;
    return std::lexicographical_compare(x.begin(), x.end(), y.begin(), y.end());
  }

  bool is_at_same_offset(const Offer& a, const Offer& b) const {
    if (a.lead != b.lead) return false;
    return (a.is_as_first && b.is_as_first) || item_of(a).chunk.offsets == item_of(b).chunk.offsets;
  }

  bool is_same_chunk(const Offer& a, const Offer& b) const {
    return (a.is_as_first && b.is_as_first) || item_of(a).chunk == item_of(b).chunk;
  }

  /// Lists all items in order of ranks, gives each its key's number, by first appearance, and compares it with the
  /// first of its key: all while it is at hand.
  void collect_offers() {
    std::size_t total = 0;
    for (const SavePlan& plan : plans_) {
      DCP_CHECK(plan.items.size() < kMostItems, kUnsupported, "a plan of ", plan.items.size(), " items");
      item_begins_.push_back(total);
      total += plan.items.size();
    }
    key_numbers_.reserve(total);
    offers_.reserve(total);
    KeyTable keys;
    if (!plans_.empty()) keys.reserve(plans_[0].items.size());
    for (std::uint32_t rank = 0; rank < plans_.size(); ++rank) {
      keys.rewind();
      const std::vector<WriteItem>& items = plans_[rank].items;
      for (std::uint32_t i = 0; i < items.size(); ++i) {
        const KeyTable::Place key = keys.add(items[i].index.fqn);
        if (key.is_new) {
          firsts_.push_back({rank, &items[i]});
          offer_ends_.push_back(0);
          is_faulty_.push_back(false);
        }
        ++offer_ends_[key.number];
        key_numbers_.push_back(key.number);
        offers_.push_back(make_offer(rank, i, *firsts_[key.number].item));
        if (!is_faulty_[key.number]) check_offer(key.number, rank, items[i]);
      }
    }
  }

  /// By key, then by rank.
  void sort_offers() {
    std::size_t begin = 0;
    offer_begins_.reserve(offer_ends_.size());
    for (std::size_t& end : offer_ends_) {
      offer_begins_.push_back(begin);
      begin += std::exchange(end, begin);
    }
    std::vector<Offer> sorted(offers_.size());
    for (std::size_t i = 0; i < offers_.size(); ++i) sorted[offer_ends_[key_numbers_[i]]++] = offers_[i];
    offers_ = std::move(sorted);
  }

  Offer make_offer(std::uint32_t rank, std::uint32_t number, const WriteItem& first) const {
    const WriteItem& item = plans_[rank].items[number];
    Offer offer;
    offer.lead = item.chunk.offsets.empty() ? 0 : item.chunk.offsets[0];
    offer.byte_count = item.byte_size();
    offer.rank = rank;
    offer.item = number;
    offer.is_empty = item.is_tensor() && item.chunk.empty();
    offer.is_as_first = item.chunk == first.chunk;
    return offer;
  }

  void check_offer(std::uint32_t key, std::uint32_t rank, const WriteItem& item) {
    const First& first = firsts_[key];
    std::string fault;
    if (!agree(*first.item, item)) {
      fault = c10::str("rank ", first.rank, " has ", describe(*first.item), ", rank ", rank, " ", describe(item));
    } else if (item.is_tensor() && (!item.index.offset || *item.index.offset != item.chunk.offsets)) {
      fault = c10::str("rank ", rank, " offers chunk ", to_string(item.chunk), " as '", to_string(item.index), "'");
    } else {
      return;
    }
    is_faulty_[key] = true;
    faults_.add(ErrorKind::kInvalidArgument, item.index.fqn, fault);
  }

  void take_key(std::size_t key) {
    if (is_faulty_[key]) return;
    const auto before = [this](const Offer& a, const Offer& b) { return is_before(a, b); };
    const auto first = offers_.begin() + static_cast<std::ptrdiff_t>(offer_begins_[key]);
    const auto last = offers_.begin() + static_cast<std::ptrdiff_t>(offer_ends_[key]);
    if (!std::is_sorted(first, last, before)) std::stable_sort(first, last, before);
    for (std::size_t begin = offer_begins_[key]; begin < offer_ends_[key];) {
      std::size_t end = begin + 1;
      while (end < offer_ends_[key] && is_at_same_offset(offers_[begin], offers_[end])) ++end;
      take_offset(begin, end);
      begin = end;
    }
  }

  /// Decides about the offers of one key at one offset.
  void take_offset(std::size_t begin, std::size_t end) {
    if (end - begin == 1) {
      load(offers_[begin], offers_[begin].byte_count);
      return;
    }
    if (is_dropped_.empty()) is_dropped_.resize(key_numbers_.size());
    for (std::size_t i = begin; i < end; ++i) is_dropped_[place_of(offers_[i])] = true;
    const auto at = [this](std::size_t i) { return offers_.begin() + static_cast<std::ptrdiff_t>(i); };
    const auto real = std::find_if(at(begin), at(end), [](const Offer& offer) { return !offer.is_empty; });
    const bool has_real = real != at(end);
    if (has_real && !check_same_chunk(*real, begin, end)) return;
    // Moves the holders, one offer of each rank, to the front.
    std::size_t holder_end = begin;
    for (std::size_t i = begin; i < end; ++i) {
      const bool is_pushed_out = has_real && offers_[i].is_empty;
      const bool is_doubled = holder_end > begin && offers_[holder_end - 1].rank == offers_[i].rank;
      if (!is_pushed_out && !is_doubled) std::swap(offers_[holder_end++], offers_[i]);
    }
    if (holder_end - begin == 1) {
      keep(offers_[begin], offers_[begin].byte_count);
    } else {
      shared_.push_back({begin, holder_end - begin, offers_[begin].byte_count, may_be_cut(offers_[begin])});
    }
  }

  bool may_be_cut(const Offer& offer) const {
    if (to_lowest_rank_ || split_bytes_ == 0 || offer.byte_count <= split_bytes_) return false;
    return !c10::isQIntType(item_of(offer).properties.dtype);  // Each piece would need the quantizer of the whole.
  }

  bool check_same_chunk(const Offer& real, std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      const Offer& other = offers_[i];
      if (other.is_empty || is_same_chunk(other, real)) continue;
      faults_.add(ErrorKind::kInvalidArgument, item_of(real).index.fqn,
                  c10::str("rank ", real.rank, " offers chunk ", to_string(item_of(real).chunk), ", rank ", other.rank,
                           " chunk ", to_string(item_of(other).chunk)));
      return false;
    }
    return true;
  }

  /// Of the item among those of all plans.
  std::size_t place_of(const Offer& offer) const { return item_begins_[offer.rank] + offer.item; }

  void keep(const Offer& offer, std::int64_t byte_count) {
    is_dropped_[place_of(offer)] = false;
    load(offer, byte_count);
  }

  void load(const Offer& offer, std::int64_t byte_count) {
    loads_[offer.rank].byte_count += byte_count;
    if (byte_count == 0) ++loads_[offer.rank].weightless_count;
  }

  /// Fewest holders first, since they leave the least choice; of these first what is not cut, since pieces fit in
  /// anywhere; then the largest, whose place matters most.
  void place_shared_items() {
    std::stable_sort(shared_.begin(), shared_.end(), [](const SharedItem& a, const SharedItem& b) {
      if (a.holder_count != b.holder_count) return a.holder_count < b.holder_count;
      if (a.may_be_cut != b.may_be_cut) return b.may_be_cut;
      return a.byte_count > b.byte_count;
    });
    for (auto item = shared_.begin(); item != shared_.end();) {
      if (!item->may_be_cut) {
        place_whole(*item++);
        continue;
      }
      const auto end = std::find_if(item, shared_.end(), [&](const SharedItem& other) {
        return !other.may_be_cut || other.holder_count != item->holder_count;
      });
      cut_items({item, end});
      item = end;
    }
  }

  void place_whole(const SharedItem& item) {
    const auto begin = offers_.begin() + static_cast<std::ptrdiff_t>(item.first);
    const auto end = begin + static_cast<std::ptrdiff_t>(item.holder_count);
    // An object may differ between ranks, such as a counter: the lowest holder's counts, wherever the loads lie.
    const bool takes_lowest = to_lowest_rank_ || !item_of(*begin).is_tensor();
    const auto writer = takes_lowest ? begin : std::min_element(begin, end, [&](const Offer& a, const Offer& b) {
      const Load& x = loads_[a.rank];
      const Load& y = loads_[b.rank];
      return item.byte_count == 0 ? x.weightless_count < y.weightless_count : x.byte_count < y.byte_count;
    });
    keep(*writer, item.byte_count);
  }

  std::vector<std::uint32_t> holders_of(const SharedItem& item) const {
    std::vector<std::uint32_t> ranks;
    for (std::size_t i = 0; i < item.holder_count; ++i) ranks.push_back(offers_[item.first + i].rank);
    return ranks;
  }

  /// \param items  With equally many holders each.
  void cut_items(std::vector<SharedItem> items) {
    std::vector<std::pair<std::vector<std::uint32_t>, SharedItem>> by_holders;
    for (const SharedItem& item : items) by_holders.emplace_back(holders_of(item), item);
    std::stable_sort(by_holders.begin(), by_holders.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    for (std::size_t begin = 0, end = 0; begin < by_holders.size(); begin = end) {
      items.clear();
      for (; end < by_holders.size() && by_holders[end].first == by_holders[begin].first; ++end) {
        items.push_back(by_holders[end].second);
      }
      cut_items_of(by_holders[begin].first, items);
    }
  }

  void cut_items_of(const std::vector<std::uint32_t>& holders, const std::vector<SharedItem>& items) {
    std::vector<ReplicatedChunk> chunks;
    for (const SharedItem& item : items) chunks.push_back({item_of(offers_[item.first]).chunk, item.byte_count});
    std::vector<std::int64_t> bytes;
    for (const std::uint32_t rank : holders) bytes.push_back(loads_[rank].byte_count);
    for (ReplicatedPiece& piece : split_replicated(chunks, bytes)) {
      const Offer& offer = offers_[items[piece.chunk].first + piece.holder];
      WriteItem& item = plans_[offer.rank].items[offer.item];
      if (piece.box != item.chunk) {
        item.type = WriteItemType::kShard;
        item.index.offset = piece.box.offsets;
        item.chunk = std::move(piece.box);
      }
      keep(offer, item.byte_size());
    }
  }

  void drop_the_rest() {
    if (is_dropped_.empty()) return;
    std::size_t at = 0;
    std::size_t kept = 0;
    for (SavePlan& plan : plans_) {
      std::vector<WriteItem>& items = plan.items;
      std::size_t end = 0;
      for (std::size_t i = 0; i < items.size(); ++i, ++at) {
        if (is_dropped_[at]) continue;
        key_numbers_[kept++] = key_numbers_[at];
        if (end != i) items[end] = std::move(items[i]);
        ++end;
      }
      items.erase(items.begin() + static_cast<std::ptrdiff_t>(end), items.end());
    }
    key_numbers_.resize(kept);
  }

  struct First {
    std::uint32_t rank = 0;
    const WriteItem* item = nullptr;
  };

  std::vector<SavePlan> plans_;
  bool to_lowest_rank_;
  std::int64_t split_bytes_;
  std::vector<Load> loads_;
  // By rank and item, one plan's items behind the other's.
  std::vector<std::size_t> item_begins_;  ///< by rank
  std::vector<std::uint32_t> key_numbers_;
  std::vector<bool> is_dropped_;  ///< empty while none is
  // By key.
  std::vector<First> firsts_;  ///< its first offer
  std::vector<std::size_t> offer_begins_;
  std::vector<std::size_t> offer_ends_;
  std::vector<bool> is_faulty_;
  std::vector<Offer> offers_;
  std::vector<SharedItem> shared_;
  FaultList faults_;
};

}  // namespace

DedupedPlans dedup_and_number(std::vector<SavePlan> plans, bool to_lowest_rank, std::int64_t split_bytes) {
  return Dedup(std::move(plans), to_lowest_rank, split_bytes).run();
}

std::vector<SavePlan> dedup_save_plans(std::vector<SavePlan> plans, bool to_lowest_rank, std::int64_t split_bytes) {
  return dedup_and_number(std::move(plans), to_lowest_rank, split_bytes).plans;
}

}  // namespace dcp

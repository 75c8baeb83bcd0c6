#include "torch_dcp/plan/dedup.h"

#include <algorithm>

#include "torch_dcp/base/fault_list.h"
#include "torch_dcp/plan/key_table_internal.h"
#include "torch_dcp/plan/split_replicated_internal.h"
#include "torch_dcp/tensor/dtype.h"

namespace dcp {
namespace {

/// One item of one plan, with what is needed of it again and again: hundreds of ranks' items are
/// far apart in memory.
struct Offer {
  std::uint32_t key = 0;
  std::uint32_t rank = 0;
  std::uint32_t item = 0;
  bool is_empty = false;
  std::int64_t lead = 0;  ///< the chunk's first offset
  std::int64_t byte_count = 0;
  const WriteItem* write = nullptr;
};

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

bool is_before(const Offer& a, const Offer& b) {
  if (a.lead != b.lead) return a.lead < b.lead;
  const Sizes& x = a.write->chunk.offsets;
  const Sizes& y = b.write->chunk.offsets;
  return std::lexicographical_compare(x.begin(), x.end(), y.begin(), y.end());
}

bool is_at_same_offset(const Offer& a, const Offer& b) {
  return a.lead == b.lead && a.write->chunk.offsets == b.write->chunk.offsets;
}

class Dedup {
 public:
  Dedup(std::vector<SavePlan> plans, bool to_lowest_rank, std::int64_t split_bytes)
      : plans_(std::move(plans)),
        to_lowest_rank_(to_lowest_rank),
        split_bytes_(split_bytes),
        loads_(plans_.size()),
        kept_(plans_.size()) {
    for (std::size_t rank = 0; rank < plans_.size(); ++rank) kept_[rank].resize(plans_[rank].items.size(), false);
  }

  std::vector<SavePlan> run() {
    collect_offers();
    sort_offers();
    for (std::size_t begin = 0; begin < offers_.size();) {
      std::size_t end = begin + 1;
      while (end < offers_.size() && offers_[end].key == offers_[begin].key &&
             is_at_same_offset(offers_[begin], offers_[end])) {
        ++end;
      }
      if (!is_faulty_[offers_[begin].key]) take_offset(begin, end);
      begin = end;
    }
    faults_.throw_if_any("ranks disagree about what they save", DCP_WHERE);
    place_shared_items();
    drop_the_rest();
    return std::move(plans_);
  }

 private:
  /// Lists all items in order of ranks, and compares each with the first of its key.
  void collect_offers() {
    std::size_t total = 0;
    for (const SavePlan& plan : plans_) total += plan.items.size();
    offers_.reserve(total);
    KeyTable keys;
    if (!plans_.empty()) keys.reserve(plans_[0].items.size());
    std::vector<Offer> firsts;
    for (std::uint32_t rank = 0; rank < plans_.size(); ++rank) {
      keys.rewind();
      const std::vector<WriteItem>& items = plans_[rank].items;
      for (std::uint32_t i = 0; i < items.size(); ++i) {
        const WriteItem& item = items[i];
        const KeyTable::Place place = keys.add(item.index.fqn);
        const std::int64_t lead = item.chunk.offsets.empty() ? 0 : item.chunk.offsets[0];
        const bool is_empty = item.is_tensor() && item.chunk.empty();
        offers_.push_back({place.number, rank, i, is_empty, lead, item.byte_size(), &item});
        if (place.is_new) {
          firsts.push_back(offers_.back());
          is_faulty_.push_back(false);
        }
        if (!is_faulty_[place.number]) check_offer(firsts[place.number], offers_.back());
      }
    }
  }

  void check_offer(const Offer& first, const Offer& offer) {
    const WriteItem& item = *offer.write;
    std::string fault;
    if (!agree(*first.write, item)) {
      fault =
          c10::str("rank ", first.rank, " has ", describe(*first.write), ", rank ", offer.rank, " ", describe(item));
    } else if (item.is_tensor() && (!item.index.offset || *item.index.offset != item.chunk.offsets)) {
      fault =
          c10::str("rank ", offer.rank, " offers chunk ", to_string(item.chunk), " as '", to_string(item.index), "'");
    } else {
      return;
    }
    is_faulty_[offer.key] = true;
    faults_.add(ErrorKind::kInvalidArgument, item.index.fqn, fault);
  }

  /// By key in order of first appearance, then by offset, then by rank.
  void sort_offers() {
    std::vector<std::size_t> places(is_faulty_.size() + 1, 0);
    for (const Offer& offer : offers_) ++places[offer.key + 1];
    for (std::size_t key = 1; key < places.size(); ++key) places[key] += places[key - 1];
    std::vector<std::size_t> next(places.begin(), places.end());
    std::vector<Offer> sorted(offers_.size());
    for (const Offer& offer : offers_) sorted[next[offer.key]++] = offer;  // Keeps the order of ranks.
    offers_ = std::move(sorted);
    for (std::size_t key = 0; key + 1 < places.size(); ++key) {
      const auto begin = offers_.begin() + static_cast<std::ptrdiff_t>(places[key]);
      const auto end = offers_.begin() + static_cast<std::ptrdiff_t>(places[key + 1]);
      if (!std::is_sorted(begin, end, is_before)) std::stable_sort(begin, end, is_before);
    }
  }

  /// Decides about the offers of one key at one offset.
  void take_offset(std::size_t begin, std::size_t end) {
    if (end - begin == 1) {
      keep(offers_[begin], offers_[begin].byte_count);
      return;
    }
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
    return !c10::isQIntType(offer.write->properties.dtype);  // Each piece would need the quantizer of the whole.
  }

  bool check_same_chunk(const Offer& real, std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      const Offer& other = offers_[i];
      if (other.is_empty || other.write->chunk == real.write->chunk) continue;
      faults_.add(ErrorKind::kInvalidArgument, real.write->index.fqn,
                  c10::str("rank ", real.rank, " offers chunk ", to_string(real.write->chunk), ", rank ", other.rank,
                           " chunk ", to_string(other.write->chunk)));
      return false;
    }
    return true;
  }

  void keep(const Offer& offer, std::int64_t byte_count) {
    kept_[offer.rank][offer.item] = true;
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
    const bool takes_lowest = to_lowest_rank_ || !begin->write->is_tensor();
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
    for (const SharedItem& item : items) chunks.push_back({offers_[item.first].write->chunk, item.byte_count});
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
    for (std::size_t rank = 0; rank < plans_.size(); ++rank) {
      std::vector<WriteItem>& items = plans_[rank].items;
      std::size_t end = 0;
      for (std::size_t i = 0; i < items.size(); ++i) {
        if (!kept_[rank][i]) continue;
        if (end != i) items[end] = std::move(items[i]);
        ++end;
      }
      items.erase(items.begin() + static_cast<std::ptrdiff_t>(end), items.end());
    }
  }

  std::vector<SavePlan> plans_;
  bool to_lowest_rank_;
  std::int64_t split_bytes_;
  std::vector<Load> loads_;
  std::vector<std::vector<bool>> kept_;
  std::vector<Offer> offers_;
  std::vector<bool> is_faulty_;  ///< by key
  std::vector<SharedItem> shared_;
  FaultList faults_;
};

}  // namespace

std::vector<SavePlan> dedup_save_plans(std::vector<SavePlan> plans, bool to_lowest_rank, std::int64_t split_bytes) {
  return Dedup(std::move(plans), to_lowest_rank, split_bytes).run();
}

}  // namespace dcp

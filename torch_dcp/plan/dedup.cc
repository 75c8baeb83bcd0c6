#include "torch_dcp/plan/dedup.h"

#include <algorithm>

#include "torch_dcp/plan/fault_list_internal.h"
#include "torch_dcp/plan/key_table_internal.h"
#include "torch_dcp/tensor/dtype.h"

namespace dcp {
namespace {

/// One item of one plan.
struct Offer {
  std::uint32_t key = 0;
  std::uint32_t rank = 0;
  std::uint32_t item = 0;
  const WriteItem* write = nullptr;
};

/// What several ranks can write, as a run of offers of different ranks.
struct SharedItem {
  std::size_t first = 0;
  std::size_t holder_count = 0;
  std::int64_t byte_count = 0;
};

/// What each rank has been given so far.
struct Load {
  std::int64_t byte_count = 0;
  /// Objects and empty chunks, whose bytes are not known or none: spread by their number.
  std::int64_t weightless_count = 0;
};

bool is_empty(const WriteItem& item) { return item.is_tensor() && item.chunk.empty(); }

/// All offers, by key in order of first appearance, then by offset, then by rank.
std::vector<Offer> sorted_offers(const std::vector<SavePlan>& plans) {
  KeyTable keys;
  std::vector<Offer> offers;
  std::size_t total = 0;
  for (const SavePlan& plan : plans) total += plan.items.size();
  offers.reserve(total);
  for (std::uint32_t rank = 0; rank < plans.size(); ++rank) {
    keys.rewind();
    const std::vector<WriteItem>& items = plans[rank].items;
    for (std::uint32_t i = 0; i < items.size(); ++i) {
      offers.push_back({keys.add(items[i].index.fqn).number, rank, i, &items[i]});
    }
  }
  // A counting sort by key, which keeps the order of ranks.
  std::vector<std::size_t> places(keys.size() + 1, 0);
  for (const Offer& offer : offers) ++places[offer.key + 1];
  for (std::size_t key = 1; key < places.size(); ++key) places[key] += places[key - 1];
  std::vector<std::size_t> next(places.begin(), places.end());
  std::vector<Offer> sorted(offers.size());
  for (const Offer& offer : offers) sorted[next[offer.key]++] = offer;
  const auto by_offset = [](const Offer& a, const Offer& b) {
    return std::lexicographical_compare(a.write->chunk.offsets.begin(), a.write->chunk.offsets.end(),
                                        b.write->chunk.offsets.begin(), b.write->chunk.offsets.end());
  };
  for (std::size_t key = 0; key + 1 < places.size(); ++key) {
    const auto begin = sorted.begin() + static_cast<std::ptrdiff_t>(places[key]);
    const auto end = sorted.begin() + static_cast<std::ptrdiff_t>(places[key + 1]);
    if (!std::is_sorted(begin, end, by_offset)) std::stable_sort(begin, end, by_offset);
  }
  return sorted;
}

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
  Dedup(std::vector<SavePlan> plans, bool to_lowest_rank)
      : plans_(std::move(plans)), to_lowest_rank_(to_lowest_rank), loads_(plans_.size()), kept_(plans_.size()) {
    for (std::size_t rank = 0; rank < plans_.size(); ++rank) kept_[rank].resize(plans_[rank].items.size(), false);
  }

  std::vector<SavePlan> run() {
    offers_ = sorted_offers(plans_);
    for (std::size_t begin = 0; begin < offers_.size();) {
      std::size_t end = begin + 1;
      while (end < offers_.size() && offers_[end].key == offers_[begin].key) ++end;
      take_key(begin, end);
      begin = end;
    }
    faults_.throw_if_any("ranks disagree about what they save", DCP_WHERE);
    place_shared_items();
    drop_the_rest();
    return std::move(plans_);
  }

 private:
  void take_key(std::size_t begin, std::size_t end) {
    if (!check_key(begin, end)) return;
    while (begin < end) {
      std::size_t next = begin + 1;
      while (next < end && offers_[next].write->chunk.offsets == offers_[begin].write->chunk.offsets) ++next;
      take_offset(begin, next);
      begin = next;
    }
  }

  bool check_key(std::size_t begin, std::size_t end) {
    const Offer& first = *std::min_element(
        offers_.begin() + static_cast<std::ptrdiff_t>(begin), offers_.begin() + static_cast<std::ptrdiff_t>(end),
        [](const Offer& a, const Offer& b) { return std::pair(a.rank, a.item) < std::pair(b.rank, b.item); });
    for (std::size_t i = begin; i < end; ++i) {
      const WriteItem& item = *offers_[i].write;
      if (!agree(*first.write, item)) {
        faults_.add(ErrorKind::kInvalidArgument, item.index.fqn,
                    c10::str("rank ", first.rank, " has ", describe(*first.write), ", rank ", offers_[i].rank, " ",
                             describe(item)));
        return false;
      }
      if (item.is_tensor() && (!item.index.offset || *item.index.offset != item.chunk.offsets)) {
        faults_.add(ErrorKind::kInvalidArgument, item.index.fqn,
                    c10::str("rank ", offers_[i].rank, " offers chunk ", to_string(item.chunk), " as '",
                             to_string(item.index), "'"));
        return false;
      }
    }
    return true;
  }

  /// Decides about the offers of one key at one offset.
  void take_offset(std::size_t begin, std::size_t end) {
    const auto at = [this](std::size_t i) { return offers_.begin() + static_cast<std::ptrdiff_t>(i); };
    const auto real = std::find_if(at(begin), at(end), [](const Offer& offer) { return !is_empty(*offer.write); });
    if (real != at(end)) {
      const auto other = std::find_if(real, at(end), [&](const Offer& offer) {
        return !is_empty(*offer.write) && offer.write->chunk != real->write->chunk;
      });
      if (other != at(end)) {
        faults_.add(ErrorKind::kInvalidArgument, real->write->index.fqn,
                    c10::str("rank ", real->rank, " offers chunk ", to_string(real->write->chunk), ", rank ",
                             other->rank, " chunk ", to_string(other->write->chunk)));
        return;
      }
    }
    // Moves the holders, one offer of each rank, to the front.
    std::size_t holder_end = begin;
    for (std::size_t i = begin; i < end; ++i) {
      const bool pushed_out = real != at(end) && is_empty(*offers_[i].write);
      const bool doubled = holder_end > begin && offers_[holder_end - 1].rank == offers_[i].rank;
      if (!pushed_out && !doubled) std::swap(offers_[holder_end++], offers_[i]);
    }
    const std::int64_t byte_count = offers_[begin].write->byte_size();
    if (holder_end - begin == 1) {
      keep(offers_[begin], byte_count);
    } else {
      shared_.push_back({begin, holder_end - begin, byte_count});
    }
  }

  void keep(const Offer& offer, std::int64_t byte_count) {
    kept_[offer.rank][offer.item] = true;
    loads_[offer.rank].byte_count += byte_count;
    if (byte_count == 0) ++loads_[offer.rank].weightless_count;
  }

  /// Fewest holders first, since they leave the least choice; then the largest, whose place matters most.
  void place_shared_items() {
    std::stable_sort(shared_.begin(), shared_.end(), [](const SharedItem& a, const SharedItem& b) {
      return a.holder_count != b.holder_count ? a.holder_count < b.holder_count : a.byte_count > b.byte_count;
    });
    for (const SharedItem& item : shared_) {
      const auto begin = offers_.begin() + static_cast<std::ptrdiff_t>(item.first);
      const auto end = begin + static_cast<std::ptrdiff_t>(item.holder_count);
      const auto writer = to_lowest_rank_ ? begin : std::min_element(begin, end, [&](const Offer& a, const Offer& b) {
        const Load& x = loads_[a.rank];
        const Load& y = loads_[b.rank];
        return item.byte_count == 0 ? x.weightless_count < y.weightless_count : x.byte_count < y.byte_count;
      });
      keep(*writer, item.byte_count);
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
  std::vector<Load> loads_;
  std::vector<std::vector<bool>> kept_;
  std::vector<Offer> offers_;
  std::vector<SharedItem> shared_;
  FaultList faults_;
};

}  // namespace

std::vector<SavePlan> dedup_save_plans(std::vector<SavePlan> plans, bool to_lowest_rank) {
  return Dedup(std::move(plans), to_lowest_rank).run();
}

}  // namespace dcp

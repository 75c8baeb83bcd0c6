#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "torch_dcp/base/error.h"
#include "torch_dcp/plan/box_sweep_internal.h"

namespace dcp {
namespace {

std::int64_t begin_of(const Box& box, std::size_t dim) { return box.offsets[dim]; }
std::int64_t end_of(const Box& box, std::size_t dim) { return box.offsets[dim] + box.sizes[dim]; }

bool overlap_in(const Box& a, const Box& b, std::size_t dim) {
  return begin_of(a, dim) < end_of(b, dim) && begin_of(b, dim) < end_of(a, dim);
}

bool is_empty(const Box& box) {
  return std::any_of(box.sizes.begin(), box.sizes.end(), [](std::int64_t size) { return size == 0; });
}

std::vector<std::size_t> non_empty(const std::vector<Box>& boxes) {
  std::vector<std::size_t> numbers;
  numbers.reserve(boxes.size());
  for (std::size_t i = 0; i < boxes.size(); ++i) {
    if (!is_empty(boxes[i])) numbers.push_back(i);
  }
  return numbers;
}

/// How often a point of the extent in `dim` is covered on average: small where finely cut.
double depth_in(const std::vector<Box>& boxes, const std::vector<std::size_t>& numbers, std::size_t dim) {
  double lengths = 0;
  std::int64_t low = begin_of(boxes[numbers[0]], dim);
  std::int64_t high = end_of(boxes[numbers[0]], dim);
  for (std::size_t i : numbers) {
    lengths += static_cast<double>(boxes[i].sizes[dim]);
    low = std::min(low, begin_of(boxes[i], dim));
    high = std::max(high, end_of(boxes[i], dim));
  }
  return lengths / static_cast<double>(high - low);
}

std::vector<std::size_t> all_dims(const Box& box) {
  std::vector<std::size_t> dims(box.ndim());
  std::iota(dims.begin(), dims.end(), std::size_t{0});
  return dims;
}

/// Those of `candidates` in which not all boxes are alike, the most finely cut one first.
std::vector<std::size_t> telling_dims(const std::vector<Box>& boxes, const std::vector<std::size_t>& numbers,
                                      const std::vector<std::size_t>& candidates) {
  std::vector<std::pair<double, std::size_t>> dims;
  const Box& first = boxes[numbers[0]];
  for (const std::size_t dim : candidates) {
    const bool alike = std::all_of(numbers.begin(), numbers.end(), [&](std::size_t i) {
      return boxes[i].offsets[dim] == first.offsets[dim] && boxes[i].sizes[dim] == first.sizes[dim];
    });
    if (!alike) dims.emplace_back(depth_in(boxes, numbers, dim), dim);
  }
  std::sort(dims.begin(), dims.end());
  std::vector<std::size_t> result;
  for (const auto& [depth, dim] : dims) result.push_back(dim);
  return result;
}

template <typename Coordinate>
void sort_by(std::vector<std::size_t>& numbers, SweepCounters& counters, Coordinate coordinate) {
  const auto less = [&](std::size_t a, std::size_t b) {
    ++counters.sort_comparisons;
    const std::int64_t x = coordinate(a);
    const std::int64_t y = coordinate(b);
    return x != y ? x < y : a < b;
  };
  // Chunks in order of ranks mostly are in order of offsets.
  if (!std::is_sorted(numbers.begin(), numbers.end(), less)) std::sort(numbers.begin(), numbers.end(), less);
}

using Pair = std::optional<std::pair<std::size_t, std::size_t>>;

/// Tests of pairs that one search may make where only they can tell: about a second's work. Thousands of boxes laid
/// in any way stay below.
constexpr std::uint64_t kMaxTests = 16'000'000;
constexpr std::uint64_t kMaxTestsPerBox = 64;

/// Boxes that the sweep line of one dimension cuts, ordered by their begin in another.
class ActiveBoxes {
 public:
  ActiveBoxes(const std::vector<Box>& boxes, std::vector<std::size_t> dims, std::int64_t longest,
              std::uint64_t& tests_left, SweepCounters& counters)
      : boxes_(boxes),
        dims_(std::move(dims)),
        longest_(longest),
        tests_left_(tests_left),
        counters_(counters),
        active_(Less{&counters.sort_comparisons}),
        places_(boxes.size(), active_.end()) {}

  void remove(std::size_t number) { active_.erase(places_[number]); }

  /// Adds the box, or returns it with one that it overlaps.
  Pair add(std::size_t number) {
    const Pair overlapping = dims_.size() == 2 ? test_neighbours(number) : test_window(number);
    if (!overlapping) places_[number] = active_.emplace(begin_of(boxes_[number], dims_[1]), number);
    return overlapping;
  }

 private:
  struct Less {
    std::uint64_t* comparisons;
    bool operator()(std::int64_t a, std::int64_t b) const {
      ++*comparisons;
      return a < b;
    }
  };
  using Active = std::multimap<std::int64_t, std::size_t, Less>;

  bool overlap(std::size_t a, std::size_t b) {
    ++counters_.pair_tests;
    if (dims_.size() > 2) {
      DCP_CHECK(tests_left_ > 0, kUnsupported, boxes_.size(), " boxes lie so irregularly in ", dims_.size(),
                " dimensions (no plane parts them) that it takes too long to find out whether two overlap");
      --tests_left_;
    }
    return std::all_of(dims_.begin() + 1, dims_.end(),
                       [&](std::size_t dim) { return overlap_in(boxes_[a], boxes_[b], dim); });
  }

  /// With two dimensions the active boxes are disjoint in the second, so that neighbours decide.
  Pair test_neighbours(std::size_t number) {
    const auto next = active_.lower_bound(begin_of(boxes_[number], dims_[1]));
    if (next != active_.end() && overlap(number, next->second)) return std::pair(next->second, number);
    if (next != active_.begin() && overlap(number, std::prev(next)->second)) {
      return std::pair(std::prev(next)->second, number);
    }
    return std::nullopt;
  }

  Pair test_window(std::size_t number) {
    const std::int64_t begin = begin_of(boxes_[number], dims_[1]);
    const std::int64_t end = end_of(boxes_[number], dims_[1]);
    // No box is longer than `longest_`, so those that begin earlier end before this one begins.
    for (auto it = active_.lower_bound(begin - longest_ + 1); it != active_.end() && it->first < end; ++it) {
      if (overlap(number, it->second)) return std::pair(it->second, number);
    }
    return std::nullopt;
  }

  const std::vector<Box>& boxes_;
  std::vector<std::size_t> dims_;
  std::int64_t longest_;
  std::uint64_t& tests_left_;
  SweepCounters& counters_;
  Active active_;
  std::vector<Active::iterator> places_;
};

Pair sweep_one_dim(const std::vector<Box>& boxes, std::vector<std::size_t> numbers, std::size_t dim,
                   SweepCounters& counters) {
  sort_by(numbers, counters, [&](std::size_t i) { return begin_of(boxes[i], dim); });
  for (std::size_t i = 1; i < numbers.size(); ++i) {
    ++counters.pair_tests;
    if (begin_of(boxes[numbers[i]], dim) < end_of(boxes[numbers[i - 1]], dim)) {
      return std::pair(numbers[i - 1], numbers[i]);
    }
  }
  return std::nullopt;
}

Pair sweep_many_dims(const std::vector<Box>& boxes, const std::vector<std::size_t>& numbers,
                     const std::vector<std::size_t>& dims, std::uint64_t& tests_left, SweepCounters& counters) {
  std::vector<std::size_t> starts = numbers;
  std::vector<std::size_t> ends = numbers;
  sort_by(starts, counters, [&](std::size_t i) { return begin_of(boxes[i], dims[0]); });
  sort_by(ends, counters, [&](std::size_t i) { return end_of(boxes[i], dims[0]); });
  std::int64_t longest = 0;
  for (std::size_t i : numbers) longest = std::max(longest, boxes[i].sizes[dims[1]]);
  ActiveBoxes active(boxes, dims, longest, tests_left, counters);
  std::size_t next_end = 0;
  for (std::size_t number : starts) {
    // A box that ends where this one begins does not touch it. Every such box began earlier, so it is active.
    while (end_of(boxes[ends[next_end]], dims[0]) <= begin_of(boxes[number], dims[0])) active.remove(ends[next_end++]);
    if (const auto overlapping = active.add(number)) return overlapping;
  }
  return std::nullopt;
}

/// Finds an overlap by parting the boxes along planes that none of them crosses, until sweeps can tell. All layouts
/// that come from cutting and cutting again (meshes of any number of dimensions) come apart in as many rounds as they
/// have dimensions; what no plane parts is swept as it is, with a bound on the tests.
class PartingSweep {
 public:
  PartingSweep(const std::vector<Box>& boxes, SweepCounters& counters) : boxes_(boxes), counters_(counters) {}

  Pair find_overlap(std::vector<std::size_t> numbers) {
    const std::size_t count = numbers.size();
    std::vector<std::size_t> dims = all_dims(boxes_[numbers[0]]);
    tests_left_ = kMaxTests + kMaxTestsPerBox * count;
    parting_left_ = count * (64 + 2 * dims.size() * dims.size());
    pending_.push_back({std::move(numbers), std::move(dims)});
    while (!pending_.empty()) {
      Group group = std::move(pending_.back());
      pending_.pop_back();
      if (group.numbers.size() < 2) continue;
      group.dims = telling_dims(boxes_, group.numbers, group.dims);
      if (group.dims.size() > 2 && part(group)) continue;
      if (const Pair overlapping = sweep(group)) return overlapping;
    }
    return std::nullopt;
  }

 private:
  struct Group {
    std::vector<std::size_t> numbers;
    std::vector<std::size_t> dims;  ///< those in which boxes may differ
  };

  /// Puts the parts into `pending_`, unless no plane parts the group.
  bool part(const Group& group) {
    // Made-up boxes may come apart one by one.
    const std::size_t work = group.numbers.size() * group.dims.size();
    if (work > parting_left_) return false;
    parting_left_ -= work;
    return std::any_of(group.dims.begin(), group.dims.end(), [&](std::size_t dim) { return part_in(group, dim); });
  }

  bool part_in(const Group& group, std::size_t dim) {
    std::vector<std::size_t> numbers = group.numbers;
    sort_by(numbers, counters_, [&](std::size_t i) { return begin_of(boxes_[i], dim); });
    auto from = numbers.begin();
    std::int64_t greatest_end = end_of(boxes_[*from], dim);
    for (auto it = from + 1; it != numbers.end(); ++it) {
      if (begin_of(boxes_[*it], dim) >= greatest_end) {
        pending_.push_back({{from, it}, group.dims});
        from = it;
      }
      greatest_end = std::max(greatest_end, end_of(boxes_[*it], dim));
    }
    if (from == numbers.begin()) return false;
    pending_.push_back({{from, numbers.end()}, group.dims});
    return true;
  }

  Pair sweep(const Group& group) {
    if (group.dims.empty()) return std::pair(group.numbers[0], group.numbers[1]);
    if (group.dims.size() == 1) return sweep_one_dim(boxes_, group.numbers, group.dims[0], counters_);
    if (group.numbers.size() == boxes_.size()) {
      return sweep_many_dims(boxes_, group.numbers, group.dims, tests_left_, counters_);
    }
    // On boxes of its own, so that it costs by the size of the group.
    std::vector<Box> boxes;
    for (const std::size_t i : group.numbers) boxes.push_back(boxes_[i]);
    std::vector<std::size_t> numbers(boxes.size());
    std::iota(numbers.begin(), numbers.end(), std::size_t{0});
    const Pair found = sweep_many_dims(boxes, numbers, group.dims, tests_left_, counters_);
    if (!found) return found;
    return std::pair(group.numbers[found->first], group.numbers[found->second]);
  }

  const std::vector<Box>& boxes_;
  SweepCounters& counters_;
  std::vector<Group> pending_;
  std::uint64_t tests_left_ = 0;
  std::uint64_t parting_left_ = 0;
};

/// The first stretch of `region` in `dim` where the boxes' cross sections do not fill its own.
std::optional<std::pair<std::int64_t, std::int64_t>> find_thin_stretch(const Box& region, const std::vector<Box>& boxes,
                                                                       std::size_t dim, SweepCounters& counters) {
  const auto cross_section = [dim](const Box& box) {
    return std::accumulate(box.sizes.begin() + static_cast<std::ptrdiff_t>(dim) + 1, box.sizes.end(), std::int64_t{1},
                           std::multiplies<>());
  };
  std::vector<std::pair<std::int64_t, std::int64_t>> changes;
  for (const Box& box : boxes) {
    changes.emplace_back(begin_of(box, dim), cross_section(box));
    changes.emplace_back(end_of(box, dim), -cross_section(box));
  }
  changes.emplace_back(end_of(region, dim), 0);
  std::sort(changes.begin(), changes.end(), [&](const auto& a, const auto& b) {
    ++counters.sort_comparisons;
    return a < b;
  });
  const std::int64_t full = cross_section(region);
  std::int64_t filled = 0;
  std::int64_t at = begin_of(region, dim);
  for (const auto& [coordinate, change] : changes) {
    if (coordinate > at && filled < full) return std::pair(at, coordinate);
    at = coordinate;
    filled += change;
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::pair<std::size_t, std::size_t>> find_overlap(const std::vector<Box>& boxes,
                                                                SweepCounters* counters) {
  if (boxes.size() < 2) return std::nullopt;  // Most tensors: nothing is to be allocated for them.
  SweepCounters unread;
  SweepCounters& count = counters == nullptr ? unread : *counters;
  std::vector<std::size_t> numbers = non_empty(boxes);
  if (numbers.size() < 2) return std::nullopt;
  return PartingSweep(boxes, count).find_overlap(std::move(numbers));
}

std::optional<Box> find_uncovered(const Box& region, const std::vector<Box>& boxes, SweepCounters* counters) {
  SweepCounters unread;
  SweepCounters& count = counters == nullptr ? unread : *counters;
  if (is_empty(region)) return std::nullopt;
  std::vector<Box> inside;
  for (const Box& box : boxes) {
    if (auto part = intersect(region, box)) inside.push_back(std::move(*part));
  }
  if (inside.empty()) return region;
  Box hole = region;
  for (std::size_t dim = 0; dim < region.ndim() && !inside.empty(); ++dim) {
    const auto stretch = find_thin_stretch(hole, inside, dim, count);
    if (!stretch) return std::nullopt;
    hole.offsets[dim] = stretch->first;
    hole.sizes[dim] = stretch->second - stretch->first;
    std::erase_if(inside, [&](const Box& box) { return !overlap_in(box, hole, dim); });
  }
  return region.ndim() == 0 ? std::nullopt : std::optional<Box>(hole);
}

OverlapFinder::OverlapFinder(const std::vector<Box>& boxes, SweepCounters* counters)
    : boxes_(boxes), counters_(counters), by_begin_(non_empty(boxes)) {
  SweepCounters unread;
  SweepCounters& count = counters == nullptr ? unread : *counters;
  if (by_begin_.empty() || boxes[by_begin_[0]].ndim() == 0) return;
  const std::vector<std::size_t> dims = telling_dims(boxes, by_begin_, all_dims(boxes[by_begin_[0]]));
  dim_ = dims.empty() ? 0 : dims[0];
  sort_by(by_begin_, count, [&](std::size_t i) { return begin_of(boxes[i], dim_); });
  greatest_end_.reserve(by_begin_.size());
  for (std::size_t i : by_begin_) {
    const std::int64_t end = end_of(boxes[i], dim_);
    greatest_end_.push_back(greatest_end_.empty() ? end : std::max(greatest_end_.back(), end));
  }
}

std::vector<std::size_t> OverlapFinder::overlaps(const Box& box) const {
  std::vector<std::size_t> found;
  if (by_begin_.empty() || is_empty(box)) return found;
  if (box.ndim() == 0) return by_begin_;
  const auto from = std::upper_bound(greatest_end_.begin(), greatest_end_.end(), begin_of(box, dim_));
  for (auto i = static_cast<std::size_t>(from - greatest_end_.begin()); i < by_begin_.size(); ++i) {
    const Box& other = boxes_[by_begin_[i]];
    if (begin_of(other, dim_) >= end_of(box, dim_)) break;
    if (counters_ != nullptr) ++counters_->pair_tests;
    if (intersect(box, other)) found.push_back(by_begin_[i]);
  }
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace dcp

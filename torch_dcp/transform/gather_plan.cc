#include <algorithm>
#include <bit>
#include <functional>
#include <map>
#include <set>
#include <utility>

#include "torch_dcp/base/error.h"
#include "torch_dcp/base/fault_list.h"
#include "torch_dcp/base/ordered_map.h"
#include "torch_dcp/tensor/dtype.h"
#include "torch_dcp/transform/gather_plan_internal.h"

namespace dcp {
namespace {

/// What the ranks say of one value, by rank; null for a rank that has none.
using RowsOfKey = std::vector<const GatherRow*>;

using Ranks = std::vector<std::int64_t>;

std::string spell(const Ranks& ranks) {
  return (ranks.size() == 1 ? "rank " : "ranks ") + to_string(c10::IntArrayRef(ranks));
}

/// Compares one property of a key over the ranks.
class Comparison {
 public:
  Comparison(const RowsOfKey& rows, FaultList& faults) : rows_(rows), faults_(faults) {
    for (const GatherRow* row : rows) {
      if (row) key_ = row->key;
    }
  }

  /// \param spell  What a rank says of the property; a rank that says nothing agrees with all. Returns whether they
  ///               agree, after adding a fault that groups the ranks by what they say.
  bool agree(ErrorKind kind, const char* property, const std::function<std::string(const GatherRow*)>& spell_row) {
    OrderedMap<std::string, Ranks> said;
    for (std::size_t rank = 0; rank < rows_.size(); ++rank) {
      std::string text = spell_row(rows_[rank]);
      if (!text.empty()) said[text].push_back(static_cast<std::int64_t>(rank));
    }
    if (said.size() <= 1) return true;
    std::string text = std::string("the ranks differ in ") + property + ":";
    for (const auto& [what, ranks] : said) {
      if (text.back() != ':') text += ",";
      text += " " + what + " on " + spell(ranks);
    }
    faults_.add(kind, key_, text);
    return false;
  }

  void fault(ErrorKind kind, const std::string& what) { faults_.add(kind, key_, what); }

 private:
  const RowsOfKey& rows_;
  FaultList& faults_;
  std::string key_;
};

std::string spell_quantizer(const GatherRow* row) {
  if (!row->quantizer) return "";
  return c10::str("scale of bits ", std::bit_cast<std::uint64_t>(row->quantizer->scale), " and zero point ",
                  row->quantizer->zero_point);
}

bool rows_agree(Comparison& comparison) {
  const auto present = [](const GatherRow* row) { return std::string(row ? "there" : "missing"); };
  if (!comparison.agree(ErrorKind::kKey, "whether they have it", present)) return false;
  if (!comparison.agree(ErrorKind::kType, "its kind", [](const GatherRow* row) { return row->kind; })) return false;
  const auto sizes = [](const GatherRow* row) { return row->sizes ? to_string(*row->sizes) : ""; };
  const auto dtype = [](const GatherRow* row) { return row->dtype ? dtype_name(*row->dtype) : ""; };
  // One after the other, so that each difference is named.
  const bool same_sizes = comparison.agree(ErrorKind::kShape, "its shape", sizes);
  const bool same_dtype = comparison.agree(ErrorKind::kType, "its dtype", dtype);
  const bool same_layout =
      comparison.agree(ErrorKind::kInvalidArgument, "its layout", [](const GatherRow* row) { return row->layout; });
  const bool same_quantizer = comparison.agree(ErrorKind::kUnsupported, "its quantizer", spell_quantizer);
  return same_sizes && same_dtype && same_layout && same_quantizer;
}

/// Whether LibTorch computes with elements of the dtype in all its versions: not with small and wide unsigned ones.
bool has_arithmetic(at::ScalarType dtype) {
  static const std::set<at::ScalarType> kDtypes = {
      at::kBool,     at::kByte,  at::kChar,   at::kShort,        at::kInt,           at::kLong,       at::kHalf,
      at::kBFloat16, at::kFloat, at::kDouble, at::kComplexFloat, at::kComplexDouble, at::kComplexHalf};
  return kDtypes.contains(dtype);
}

bool is_known_reduction(const std::string& op, at::ScalarType dtype) {
  static const std::set<std::string> kOps = {"sum", "product", "max", "min", "avg"};
  const bool is_complex = at::isComplexType(dtype);
  if (op == "avg" && (dtype == at::kComplexHalf || !(at::isFloatingType(dtype) || is_complex))) return false;
  if (is_complex && (op == "max" || op == "min")) return false;
  return kOps.contains(op) && has_arithmetic(dtype);
}

/// Puts together one tensor's plan.
class TensorPlanner {
 public:
  TensorPlanner(const RowsOfKey& rows, Comparison& comparison) : rows_(rows), comparison_(comparison) {}

  /// Nothing after a fault.
  std::optional<GatherTensor> plan() {
    if (!describe()) return std::nullopt;
    if (holds_everywhere()) {
      tensor_.is_everywhere = true;
      return std::move(tensor_);
    }
    collect();
    if (!check()) return std::nullopt;
    return std::move(tensor_);
  }

 private:
  bool describe() {
    const GatherRow& first = *rows_.front();
    tensor_.name = first.name;
    tensor_.info.sizes = *first.sizes;
    tensor_.reduce_op = first.reduction.op;
    const auto knows = std::find_if(rows_.begin(), rows_.end(), [](const GatherRow* row) { return row->dtype; });
    if (knows == rows_.end()) return fault(ErrorKind::kInvalidArgument, "no rank that takes part is in its mesh");
    tensor_.info.dtype = *(*knows)->dtype;
    for (const GatherRow* row : rows_) {
      if (row->quantizer) tensor_.quantizer = row->quantizer;
    }
    if (tensor_.reduce_op.empty() || is_known_reduction(tensor_.reduce_op, tensor_.info.dtype)) return true;
    return fault(ErrorKind::kUnsupported, "the reduction '" + tensor_.reduce_op + "' of Partial parts of dtype " +
                                              dtype_name(tensor_.info.dtype) + " is not known here");
  }

  bool holds_everywhere() const {
    const Box whole = whole_box(tensor_.info.sizes);
    return tensor_.reduce_op.empty() && std::all_of(rows_.begin(), rows_.end(), [&](const GatherRow* row) {
             return row->boxes.size() == 1 && row->boxes.front() == whole;
           });
  }

  /// The lowest rank that holds a part, or a summand of it, brings it.
  void collect() {
    using Place = std::pair<std::vector<std::int64_t>, std::vector<std::int64_t>>;
    std::map<Place, std::size_t> known;
    std::set<std::pair<std::size_t, std::int64_t>> brought;
    for (std::size_t rank = 0; rank < rows_.size(); ++rank) {
      for (const Box& box : rows_[rank]->boxes) {
        const Place place({box.offsets.begin(), box.offsets.end()}, {box.sizes.begin(), box.sizes.end()});
        const auto [found, is_new] = known.try_emplace(place, tensor_.parts.size());
        if (is_new) tensor_.parts.push_back({box, {}});
        if (brought.emplace(found->second, rows_[rank]->reduction.summand).second) {
          tensor_.parts[found->second].ranks.push_back(static_cast<std::int64_t>(rank));
        }
      }
    }
    std::sort(tensor_.parts.begin(), tensor_.parts.end(), [](const GatherPart& a, const GatherPart& b) {
      return std::lexicographical_compare(a.box.offsets.begin(), a.box.offsets.end(), b.box.offsets.begin(),
                                          b.box.offsets.end());
    });
  }

  /// Parts that do not overlap and have as many elements as the whole are the whole.
  bool check() {
    const std::int64_t summands = rows_.front()->reduction.summands;
    std::int64_t held = 0;
    for (const GatherPart& part : tensor_.parts) {
      held += part.box.numel();
      if (static_cast<std::int64_t>(part.ranks.size()) != summands) {
        return fault(ErrorKind::kInvalidArgument,
                     c10::str("only ", spell(part.ranks), " of ", summands, " that hold summands take part"));
      }
    }
    // Parts that a mesh and placements give are apart; looking at each pair costs too much for nothing.
    const bool is_cut_by_hand = rows_.front()->layout.empty();
    if (is_cut_by_hand && !check_apart()) return false;
    const std::int64_t all = whole_box(tensor_.info.sizes).numel();
    if (held == all) return true;
    return fault(ErrorKind::kInvalidArgument,
                 c10::str("the ranks that take part hold ", held, " of its ", all, " elements"));
  }

  /// Sorted by offsets, only parts that begin before another ends in the first dimension need a closer look.
  bool check_apart() {
    const auto begin = [](const Box& box) { return box.ndim() == 0 ? 0 : box.offsets[0]; };
    const auto end = [&](const Box& box) { return begin(box) + (box.ndim() == 0 ? 1 : box.sizes[0]); };
    const std::vector<GatherPart>& parts = tensor_.parts;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      for (std::size_t j = i + 1; j < parts.size() && begin(parts[j].box) < end(parts[i].box); ++j) {
        if (const auto both = intersect(parts[i].box, parts[j].box)) {
          return fault(ErrorKind::kInvalidArgument,
                       c10::str("the parts of ", spell(parts[i].ranks), " at ", to_string(parts[i].box), " and of ",
                                spell(parts[j].ranks), " at ", to_string(parts[j].box), " overlap"));
        }
      }
    }
    return true;
  }

  bool fault(ErrorKind kind, const std::string& what) {
    comparison_.fault(kind, what);
    return false;
  }

  const RowsOfKey& rows_;
  Comparison& comparison_;
  GatherTensor tensor_;
};

/// Finds tensors that are one on every rank that has parts of them, whatever the order of its keys.
class TiesOfRanks {
 public:
  /// Leaves one that was there before without parts of its own. \param number  Of the tensor in the plan.
  void join(const RowsOfKey& rows, std::size_t number, GatherTensor& tensor) {
    std::vector<std::int64_t> ties;
    for (const GatherRow* row : rows) {
      if (row->tie == GatherRow::kStandsAlone) return;
      ties.push_back(row->tie);
    }
    if (std::all_of(ties.begin(), ties.end(), [](std::int64_t tie) { return tie == GatherRow::kHasNoParts; })) return;
    const auto [first, is_new] = first_of_.try_emplace(std::move(ties), number);
    if (is_new) return;
    tensor.same_as = first->second;
    tensor.parts.clear();
  }

 private:
  std::map<std::vector<std::int64_t>, std::size_t> first_of_;  ///< by the ties that the ranks tell
};

void check_options(const std::vector<GatherRows>& by_rank) {
  const GatherRows& first = by_rank.front();
  for (std::size_t rank = 1; rank < by_rank.size(); ++rank) {
    DCP_CHECK(by_rank[rank].ranks == first.ranks && by_rank[rank].bucket_bytes == first.bucket_bytes, kInvalidArgument,
              "gather: the options ranks and bucket_bytes of rank ", rank, " are not those of rank 0");
  }
  DCP_CHECK(first.bucket_bytes > 0, kInvalidArgument, "gather: bucket_bytes is ", first.bucket_bytes,
            ", it must be positive");
}

}  // namespace

GatherPlan plan_gather(const std::vector<GatherRows>& by_rank) {
  check_options(by_rank);
  OrderedMap<std::string, RowsOfKey> by_name;
  for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
    for (const GatherRow& row : by_rank[rank].rows) {
      RowsOfKey& rows = by_name[row.name];
      rows.resize(by_rank.size());
      rows[rank] = &row;
    }
  }
  FaultList faults;
  GatherPlan plan;
  TiesOfRanks ties;
  for (const auto& [name, rows] : by_name) {
    Comparison comparison(rows, faults);
    if (!rows_agree(comparison) || !rows.front()->sizes) continue;
    auto tensor = TensorPlanner(rows, comparison).plan();
    if (!tensor) continue;
    ties.join(rows, plan.tensors.size(), *tensor);
    plan.tensors.push_back(std::move(*tensor));
  }
  faults.throw_if_any("gather", DCP_WHERE);
  return plan;
}

}  // namespace dcp

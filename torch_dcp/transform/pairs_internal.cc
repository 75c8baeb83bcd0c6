#include "torch_dcp/transform/pairs_internal.h"

#include <algorithm>
#include <utility>

#include "torch_dcp/base/limits.h"
#include "torch_dcp/state_dict/equal.h"
#include "torch_dcp/state_dict/path.h"
#include "torch_dcp/state_dict/tensor_copies.h"
#include "torch_dcp/state_dict/tensor_fit.h"
#include "torch_dcp/transform/layout_pairs_internal.h"
#include "torch_dcp/transform/tensor_elements_internal.h"

namespace dcp {
namespace {

const std::vector<Value>* sequence_of(const Value& value) {
  if (const auto* list = std::get_if<List>(&value.storage())) return list;
  return std::get_if<Tuple>(&value.storage());
}

std::vector<Value>* sequence_of(Value& value) {
  return const_cast<std::vector<Value>*>(sequence_of(std::as_const(value)));
}

/// What has no kind yet that another value could differ from.
bool is_nothing(const Value& value) { return value.is_none() || (value.is_tensor() && !value.as_tensor().defined()); }

/// Whether the parts of two tensors that are no plain ones are the same parts, and there are some.
bool has_layout_of(const Value& a, const Value& b) {
  if (a.kind() != b.kind()) return false;
  if (a.kind() == ValueKind::kDTensor) {
    const DTensor& left = a.as_dtensor();
    const DTensor& right = b.as_dtensor();
    return left.mesh() == right.mesh() && std::equal(left.placements().begin(), left.placements().end(),
                                                     right.placements().begin(), right.placements().end());
  }
  const auto& left = a.as_sharded_tensor().local_shards();
  const auto& right = b.as_sharded_tensor().local_shards();
  return !left.empty() &&
         std::equal(left.begin(), left.end(), right.begin(), right.end(), [](const Shard& one, const Shard& other) {
           return one.offsets == other.offsets && one.tensor.sizes() == other.tensor.sizes();
         });
}

struct ByteRange {
  const char* begin = nullptr;
  const char* end = nullptr;
};

/// From a tensor's first byte to its last; empty if it has none.
ByteRange bytes_of(const at::Tensor& tensor) {
  if (tensor.numel() == 0 || !tensor.has_storage() || tensor.is_meta()) return {};
  std::int64_t last = 0;
  for (std::int64_t d = 0; d < tensor.dim(); ++d) last += (tensor.size(d) - 1) * tensor.stride(d);
  const auto* begin = static_cast<const char*>(tensor.const_data_ptr());
  return {begin, begin + (last + 1) * static_cast<std::int64_t>(tensor.element_size())};
}

/// Whether two pairs give the memory that their targets share the same elements, as far as can be told at once: they
/// are one tensor with one value, or their sources lie to each other as the targets do.
bool agree(const TensorPair& a, const TensorPair& b) {
  const auto is_laid_out_alike = [](const TensorPair& pair) {
    return pair.source.has_storage() && pair.source.strides() == pair.target.strides() &&
           pair.source.scalar_type() == pair.target.scalar_type() && pair.source.is_neg() == pair.target.is_neg() &&
           pair.source.is_conj() == pair.target.is_conj();
  };
  const auto distance = [](const at::Tensor& from, const at::Tensor& to) {
    return bytes_of(to).begin - bytes_of(from).begin;
  };
  if (is_laid_out_alike(a) && is_laid_out_alike(b) && a.source.is_alias_of(b.source) &&
      a.target.is_alias_of(b.target) && distance(a.source, b.source) == distance(a.target, b.target)) {
    return true;
  }
  return is_same_memory(a.target, b.target) && bit_equal(a.source, b.source);
}

constexpr char kNested[] = "nested tensors have no sizes to compare";

class Pairing {
 public:
  explicit Pairing(PairRule rule, Path path = {}) : rule_(rule), path_(std::move(path)) {}

  void dicts(const Dict& source, Dict& target) {
    std::vector<AddedValue> added;
    for (const auto& [key, value] : source) {
      Value* const other = target.find(key);
      below(PathItem::dict_key(key), [&, &key = key, &value = value] {
        if (other) {
          pair(value, *other);
        } else if (rule_ == PairRule::kAlike) {
          fault(ErrorKind::kKey, "is in the source only");
        } else {
          added.push_back({flat_key(path_), describe(path_), &value, &target, key});
        }
      });
    }
    for (const auto& [key, value] : target) {
      if (source.contains(key)) continue;
      below(PathItem::dict_key(key), [&] {
        if (rule_ == PairRule::kAlike) return fault(ErrorKind::kKey, "is in the target only");
        pairs_.only_target.push_back(flat_key(path_));
      });
    }
    pairs_.added.insert(pairs_.added.end(), added.begin(), added.end());
  }

  Pairs take() { return std::move(pairs_); }

 private:
  void pair(const Value& source, Value& target) {
    rule_ == PairRule::kAlike ? values(source, target) : fill(source, target);
  }

  void fill(const Value& source, Value& target) {
    if (is_nothing(target) && !is_nothing(source)) return replace(source, target);  // It has no kind yet.
    if (target.kind() == ValueKind::kStateful && source.is_dict()) {
      if (!target.as_stateful()) return fault(ErrorKind::kInvalidArgument, "holds a null Stateful");
      pairs_.states.push_back({flat_key(path_), describe(path_), &source.as_dict(), target.as_stateful()});
    } else if (source.is_tensor_like() && target.is_tensor_like()) {
      rule_ == PairRule::kRestore ? tensor_or_replacement(source, target) : tensor_likes(source, target);
    } else if (source.kind() != target.kind()) {
      rule_ == PairRule::kFill ? kinds(ErrorKind::kType, source, target) : replace(source, target);
    } else if (target.is_dict()) {
      dicts(source.as_dict(), target.as_dict());
    } else if (target.is_container()) {
      fill_elements(source, target);
    } else {
      pairs_.plain.push_back({flat_key(path_), "", &source, &target});
    }
  }

  /// In the layout that both have, or cut.
  void tensor_likes(const Value& source, Value& target) {
    if (source.is_tensor() && target.is_tensor()) return tensors(source.as_tensor(), target.as_tensor());
    if (has_layout_of(source, target)) return values(source, target);
    for (const Value* value : {&source, static_cast<const Value*>(&target)}) {
      if (!value->is_tensor()) continue;
      if (!value->as_tensor().defined()) return fault(ErrorKind::kShape, "the tensor is undefined in the source only");
      if (value->as_tensor().is_nested()) return fault(ErrorKind::kUnsupported, kNested);
    }
    if (!same_sizes(global_sizes(source.as_tensor_like()), global_sizes(target.as_tensor_like()))) return;
    LayoutPairs pairs = pair_layouts(source, target);
    if (!pairs.fault.empty()) return fault(pairs.kind, pairs.fault);
    for (auto& [from, to] : pairs.views) pairs_.tensors.push_back({flat_key(path_), std::move(from), std::move(to)});
  }

  void fill_elements(const Value& source, Value& target) {
    const std::vector<Value>& elements = *sequence_of(source);
    std::vector<Value>& others = *sequence_of(target);
    if (elements.size() != others.size() && rule_ != PairRule::kFill) return replace(source, target);
    sequences(elements, others);
  }

  /// Copies where all is alike to the dtype.
  void tensor_or_replacement(const Value& source, Value& target) {
    Pairing parts(PairRule::kAlike, path_);
    parts.values(source, target);
    Pairs found = parts.take();
    check_tensors(found, DtypePolicy::kExact);
    if (!found.faults.empty() || contradicts(found.tensors)) return replace(source, target);
    for (const TensorPair& pair : found.tensors) {
      filled_.add(pair.target);
      ranges_.push_back(bytes_of(pair.target));
    }
    pairs_.tensors.insert(pairs_.tensors.end(), found.tensors.begin(), found.tensors.end());
  }

  /// Whether memory that an earlier pair fills would get other elements from one of these.
  bool contradicts(const std::vector<TensorPair>& found) const {
    return std::any_of(found.begin(), found.end(), [&](const TensorPair& pair) {
      if (!filled_.overlaps(pair.target)) return false;
      const ByteRange range = bytes_of(pair.target);
      for (std::size_t i = 0; i < ranges_.size(); ++i) {
        const bool is_apart = ranges_[i].end <= range.begin || range.end <= ranges_[i].begin;
        if (!is_apart && !agree(pairs_.tensors[i], pair)) return true;
      }
      return false;
    });
  }

  void replace(const Value& source, Value& target) {
    pairs_.replaced.push_back({flat_key(path_), describe(path_), &source, &target});
  }

  void values(const Value& source, Value& target) {
    const auto* const elements = sequence_of(source);
    auto* const others = sequence_of(target);
    if (elements && others) return sequences(*elements, *others);
    if (source.is_dict() && target.is_dict()) return dicts(source.as_dict(), target.as_dict());
    if (source.is_container() || target.is_container()) return kinds(ErrorKind::kKey, source, target);
    if (!source.is_tensor_like() && !target.is_tensor_like()) {
      pairs_.plain.push_back({flat_key(path_), "", &source, &target});
    } else if (source.kind() != target.kind()) {
      kinds(ErrorKind::kType, source, target);
    } else if (source.is_tensor()) {
      tensors(source.as_tensor(), target.as_tensor());
    } else if (source.kind() == ValueKind::kDTensor) {
      dtensors(source.as_dtensor(), target.as_dtensor());
    } else {
      sharded(source.as_sharded_tensor(), target.as_sharded_tensor());
    }
  }

  void sequences(const std::vector<Value>& source, std::vector<Value>& target) {
    if (source.size() != target.size()) {
      return fault(ErrorKind::kKey,
                   c10::str("the source has ", source.size(), " elements, the target ", target.size()));
    }
    for (std::size_t i = 0; i < source.size(); ++i) {
      below(PathItem::list_index(static_cast<std::int64_t>(i)), [&] { pair(source[i], target[i]); });
    }
  }

  void tensors(const at::Tensor& source, const at::Tensor& target) {
    if (!source.defined() && !target.defined()) return;
    if (source.defined() != target.defined()) {
      return fault(ErrorKind::kShape,
                   c10::str("the tensor is undefined in the ", source.defined() ? "target" : "source", " only"));
    }
    if (source.is_nested() || target.is_nested()) {
      return fault(ErrorKind::kUnsupported, kNested);
    }
    pairs_.tensors.push_back({flat_key(path_), source, target});
  }

  void dtensors(const DTensor& source, const DTensor& target) {
    if (!same_sizes(source.global_sizes(), target.global_sizes())) return;
    if (!(source.mesh() == target.mesh())) return fault(ErrorKind::kKey, "the DTensors lie on different meshes");
    for (std::size_t d = 0; d < source.placements().size(); ++d) {
      const Placement& from = source.placements()[d];
      const Placement& to = target.placements()[d];
      if (from != to) {
        return fault(ErrorKind::kKey, c10::str("the source is ", to_string(from), ", the target ", to_string(to),
                                               " in mesh dimension ", d));
      }
    }
    if (source.is_in_mesh() && target.is_in_mesh()) tensors(source.local(), target.local());
  }

  void sharded(const ShardedTensor& source, const ShardedTensor& target) {
    if (!same_sizes(source.global_sizes(), target.global_sizes())) return;
    const auto& shards = source.local_shards();
    const auto& others = target.local_shards();
    if (shards.size() != others.size()) {
      return fault(ErrorKind::kKey,
                   c10::str("the source has ", shards.size(), " shards here, the target ", others.size()));
    }
    for (std::size_t i = 0; i < shards.size(); ++i) {
      if (shards[i].offsets != others[i].offsets) {
        fault(ErrorKind::kKey, c10::str("shard ", i, " of the source lies at ", to_string(shards[i].offsets),
                                        ", that of the target at ", to_string(others[i].offsets)));
      } else {
        tensors(shards[i].tensor, others[i].tensor);
      }
    }
    // A rank may have no shard that tells.
    if (shards.empty() && source.dtype() != target.dtype()) fault(ErrorKind::kType, "the dtypes differ");
  }

  bool same_sizes(const Sizes& source, const Sizes& target) {
    if (source == target) return true;
    fault(ErrorKind::kShape, c10::str("the source has shape ", to_string(source), ", the target ", to_string(target)));
    return false;
  }

  void kinds(ErrorKind kind, const Value& source, const Value& target) {
    fault(kind, c10::str("the source has a ", value_kind_name(source.kind()), ", the target a ",
                         value_kind_name(target.kind())));
  }

  void fault(ErrorKind kind, const std::string& what) { pairs_.faults.add(kind, flat_key(path_), what); }

  template <typename Call>
  void below(PathItem item, const Call& call) {
    path_.push_back(std::move(item));
    DCP_CHECK(path_.size() <= ParseLimits().max_depth, kInvalidArgument, "the state dicts are nested more than ",
              ParseLimits().max_depth, " deep");
    call();
    path_.pop_back();
  }

  PairRule rule_;
  Path path_;
  Pairs pairs_;
  // With kRestore: what the pairs fill, together and each.
  MemoryRanges filled_;
  std::vector<ByteRange> ranges_;
};

}  // namespace

Pairs pair_values(const Dict& source, Dict& target, PairRule rule) {
  Pairing pairing(rule);
  pairing.dicts(source, target);
  return pairing.take();
}

std::vector<DtypeConversion> check_tensors(Pairs& pairs, DtypePolicy policy) {
  LoadReport report;
  for (const TensorPair& pair : pairs.tensors) {
    std::string why = why_without_elements(pair.source);
    if (why.empty()) why = why_without_elements(pair.target);
    if (!why.empty()) {
      pairs.faults.add(ErrorKind::kUnsupported, pair.key, why + " cannot be copied");
    } else {
      check_fits(pair.key, pair.source, pair.target, policy, pairs.faults, report);
    }
  }
  // A key may have several parts, with one dtype.
  auto& converted = report.converted;
  converted.erase(std::unique(converted.begin(), converted.end()), converted.end());
  return std::move(converted);
}

}  // namespace dcp

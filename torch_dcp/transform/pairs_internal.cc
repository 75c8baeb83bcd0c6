#include "torch_dcp/transform/pairs_internal.h"

#include <utility>

#include "torch_dcp/base/limits.h"
#include "torch_dcp/state_dict/path.h"

namespace dcp {
namespace {

const std::vector<Value>* sequence_of(const Value& value) {
  if (const auto* list = std::get_if<List>(&value.storage())) return list;
  return std::get_if<Tuple>(&value.storage());
}

std::vector<Value>* sequence_of(Value& value) {
  return const_cast<std::vector<Value>*>(sequence_of(std::as_const(value)));
}

class Pairing {
 public:
  void dicts(const Dict& source, Dict& target) {
    for (const auto& [key, value] : source) {
      Value* const other = target.find(key);
      below(PathItem::dict_key(key), [&] {
        if (other) {
          values(value, *other);
        } else {
          fault(ErrorKind::kKey, "is in the source only");
        }
      });
    }
    for (const auto& [key, value] : target) {
      if (source.contains(key)) continue;
      below(PathItem::dict_key(key), [&] { fault(ErrorKind::kKey, "is in the target only"); });
    }
  }

  Pairs take() { return std::move(pairs_); }

 private:
  void values(const Value& source, Value& target) {
    const auto* const elements = sequence_of(source);
    auto* const others = sequence_of(target);
    if (elements && others) return sequences(*elements, *others);
    if (source.is_dict() && target.is_dict()) return dicts(source.as_dict(), target.as_dict());
    if (source.is_container() || target.is_container()) return kinds(ErrorKind::kKey, source, target);
    if (!source.is_tensor_like() && !target.is_tensor_like()) {
      pairs_.plain.push_back({flat_key(path_), &source, &target});
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
      below(PathItem::list_index(static_cast<std::int64_t>(i)), [&] { values(source[i], target[i]); });
    }
  }

  void tensors(const at::Tensor& source, const at::Tensor& target) {
    if (!source.defined() && !target.defined()) return;
    if (source.defined() != target.defined()) {
      return fault(ErrorKind::kShape,
                   c10::str("the tensor is undefined in the ", source.defined() ? "target" : "source", " only"));
    }
    if (source.is_nested() || target.is_nested()) {
      return fault(ErrorKind::kUnsupported, "nested tensors have no sizes to compare");
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

  Path path_;
  Pairs pairs_;
};

}  // namespace

Pairs pair_values(const Dict& source, Dict& target) {
  Pairing pairing;
  pairing.dicts(source, target);
  return pairing.take();
}

}  // namespace dcp

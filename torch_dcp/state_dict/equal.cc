#include "torch_dcp/state_dict/equal.h"

#include <bit>
#include <cstring>

#include "torch_dcp/base/error.h"
#include "torch_dcp/state_dict/path.h"
#include "torch_dcp/tensor/dtype.h"

namespace dcp {
namespace {

/// What differs, without a path; empty for nothing.
using Reason = std::string;

template <typename T>
Reason two(const char* what, const T& a, const T& b) {
  return c10::str(what, " ", a, " and ", b);
}

at::Tensor plain_bytes(const at::Tensor& tensor) {
  DCP_CHECK(!tensor.is_nested() && tensor.layout() == at::kStrided && !tensor.is_meta(), kUnsupported,
            "sparse, nested and meta tensors cannot be compared by their bits");
  return tensor.detach().cpu().resolve_conj().resolve_neg().contiguous();
}

Reason compare_quantizers(const at::Tensor& a, const at::Tensor& b) {
  if (a.qscheme() != b.qscheme()) return "quantization schemes";
  if (a.qscheme() == at::kPerTensorAffine) {
    const bool same = std::bit_cast<std::uint64_t>(a.q_scale()) == std::bit_cast<std::uint64_t>(b.q_scale()) &&
                      a.q_zero_point() == b.q_zero_point();
    return same ? "" : "quantizers";
  }
  const bool same = a.q_per_channel_axis() == b.q_per_channel_axis() &&
                    bit_equal(a.q_per_channel_scales(), b.q_per_channel_scales()) &&
                    bit_equal(a.q_per_channel_zero_points(), b.q_per_channel_zero_points());
  return same ? "" : "quantizers";
}

Reason compare_bits(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor left = plain_bytes(a);
  const at::Tensor right = plain_bytes(b);
  const auto byte_count = static_cast<std::size_t>(left.numel()) * left.element_size();
  if (byte_count == 0) return "";
  const auto* left_bytes = static_cast<const std::uint8_t*>(left.const_data_ptr());
  const auto* right_bytes = static_cast<const std::uint8_t*>(right.const_data_ptr());
  if (std::memcmp(left_bytes, right_bytes, byte_count) == 0) return "";
  std::size_t at = 0;
  while (left_bytes[at] == right_bytes[at]) ++at;
  return c10::str("bits, first in element ", at / left.element_size(), " of ", left.numel(), " (row-major)");
}

Reason compare(const at::Tensor& a, const at::Tensor& b) {
  if (a.defined() != b.defined()) return "an undefined tensor and a defined one";
  if (!a.defined()) return "";
  if (a.scalar_type() != b.scalar_type())
    return two("dtypes", dtype_name(a.scalar_type()), dtype_name(b.scalar_type()));
  if (a.is_nested() == b.is_nested() && !a.is_nested() && a.sizes() != b.sizes()) {
    return two("sizes", to_string(a.sizes()), to_string(b.sizes()));
  }
  if (a.is_quantized()) {
    if (const Reason reason = compare_quantizers(a, b); !reason.empty()) return reason;
  }
  return compare_bits(a, b);
}

Reason compare(const DTensor& a, const DTensor& b) {
  if (a.global_sizes() != b.global_sizes()) {
    return two("global sizes", to_string(a.global_sizes()), to_string(b.global_sizes()));
  }
  if (!(a.mesh() == b.mesh())) return "meshes";
  for (std::size_t d = 0; d < a.placements().size(); ++d) {
    if (a.placements()[d] != b.placements()[d]) {
      return two("placements", to_string(a.placements()[d]), to_string(b.placements()[d]));
    }
  }
  const Reason reason = compare(a.local(), b.local());
  return reason.empty() ? "" : "local tensor: " + reason;
}

Reason compare(const ShardedTensor& a, const ShardedTensor& b) {
  if (a.global_sizes() != b.global_sizes()) {
    return two("global sizes", to_string(a.global_sizes()), to_string(b.global_sizes()));
  }
  if (a.dtype() != b.dtype()) return two("dtypes", dtype_name(a.dtype()), dtype_name(b.dtype()));
  const auto& left = a.local_shards();
  const auto& right = b.local_shards();
  if (left.size() != right.size()) return two("local shard counts", left.size(), right.size());
  for (std::size_t i = 0; i < left.size(); ++i) {
    if (left[i].offsets != right[i].offsets) {
      return c10::str("shard ", i, ": offsets ", to_string(left[i].offsets), " and ", to_string(right[i].offsets));
    }
    const Reason reason = compare(left[i].tensor, right[i].tensor);
    if (!reason.empty()) return c10::str("shard ", i, ": ", reason);
  }
  return "";
}

Reason compare(None, None) { return ""; }
Reason compare(bool a, bool b) { return a == b ? "" : two("values", a ? "true" : "false", b ? "true" : "false"); }
Reason compare(std::int64_t a, std::int64_t b) { return a == b ? "" : two("values", a, b); }

Reason compare(double a, double b) {
  const auto a_bits = std::bit_cast<std::uint64_t>(a);
  const auto b_bits = std::bit_cast<std::uint64_t>(b);
  if (a_bits == b_bits) return "";
  return c10::str("values ", a, " and ", b, " (bits ", a_bits, " and ", b_bits, ")");
}

Reason compare(const std::string& a, const std::string& b) {
  if (a == b) return "";
  if (a.size() + b.size() > 200) return two("strings of lengths", a.size(), b.size());
  return "strings '" + a + "' and '" + b + "'";
}

Reason compare(const Bytes& a, const Bytes& b) { return a == b ? "" : two("bytes of lengths", a.size(), b.size()); }

Reason compare(const std::shared_ptr<Stateful>& a, const std::shared_ptr<Stateful>& b) {
  return a == b ? "" : "two stateful objects";
}

Reason compare(const Opaque& a, const Opaque& b) {
  if (a.type_name != b.type_name) return "types '" + a.type_name + "' and '" + b.type_name + "'";
  const bool same = a.item == b.item || (a.item && b.item && *a.item == *b.item);
  return same ? "" : "stored bytes of an object of type " + a.type_name;
}

/// Walks two values together. `path_` is where they stand.
class Comparison {
 public:
  Reason values(const Value& a, const Value& b) {
    if (a.kind() != b.kind()) return two("kinds", value_kind_name(a.kind()), value_kind_name(b.kind()));
    return std::visit(
        [&](const auto& left) { return contents(left, std::get<std::decay_t<decltype(left)>>(b.storage())); },
        a.storage());
  }

  const Path& path() const { return path_; }

 private:
  template <typename T>
  Reason contents(const T& a, const T& b) {
    return compare(a, b);
  }

  Reason contents(const List& a, const List& b) { return sequences(a, b); }
  Reason contents(const Tuple& a, const Tuple& b) { return sequences(a, b); }

  Reason contents(const Dict& a, const Dict& b) {
    auto other = b.begin();
    for (const auto& [key, value] : a) {
      const PathItem item = PathItem::dict_key(key);
      if (other == b.end()) return "key " + describe({item}) + " is in the first only";
      const PathItem other_item = PathItem::dict_key(other->first);
      if (item != other_item)
        return "keys " + describe({item}) + " and " + describe({other_item}) + " at the same place";
      if (const Reason reason = below(item, value, other->second); !reason.empty()) return reason;
      ++other;
    }
    return other == b.end() ? "" : "key " + describe({PathItem::dict_key(other->first)}) + " is in the second only";
  }

  Reason sequences(const std::vector<Value>& a, const std::vector<Value>& b) {
    if (a.size() != b.size()) return two("lengths", a.size(), b.size());
    for (std::size_t i = 0; i < a.size(); ++i) {
      const auto item = PathItem::list_index(static_cast<std::int64_t>(i));
      if (const Reason reason = below(item, a[i], b[i]); !reason.empty()) return reason;
    }
    return "";
  }

  /// Leaves the path where it is once something differs.
  Reason below(PathItem item, const Value& a, const Value& b) {
    path_.push_back(std::move(item));
    Reason reason = values(a, b);
    if (reason.empty()) path_.pop_back();
    return reason;
  }

  Path path_;
};

}  // namespace

bool bit_equal(const Value& a, const Value& b) { return first_difference(a, b).empty(); }

std::string first_difference(const Value& a, const Value& b) {
  Comparison comparison;
  const Reason reason = comparison.values(a, b);
  if (reason.empty()) return "";
  return (comparison.path().empty() ? "the root" : describe(comparison.path())) + ": " + reason;
}

}  // namespace dcp

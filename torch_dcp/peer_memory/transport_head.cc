#include <ATen/ATen.h>

#include <algorithm>
#include <memory>
#include <unordered_map>

#include "torch_dcp/base/checked_math.h"
#include "torch_dcp/base/error.h"
#include "torch_dcp/base/fault_list.h"
#include "torch_dcp/peer_memory/transport_head_internal.h"
#include "torch_dcp/state_dict/path.h"
#include "torch_dcp/state_dict/stateful.h"
#include "torch_dcp/tensor/device_mesh.h"

namespace dcp {
namespace {

// In place of the storage's number.
constexpr std::uint64_t kUndefined = UINT64_MAX;

// A tensor of numbers of a quantizer: small, one-dimensional, on the CPU.
void encode_numbers(ByteWriter& out, const at::Tensor& tensor) {
  const at::Tensor numbers = tensor.cpu().contiguous();
  encode_dtype(out, {numbers.scalar_type(), NewerDtype::kNone});
  out.bytes({static_cast<const std::uint8_t*>(numbers.const_data_ptr()), numbers.nbytes()});
}

at::Tensor decode_numbers(ByteReader& in) {
  const NamedDtype dtype = decode_dtype(in);
  const Bytes bytes = in.bytes();
  const auto width = static_cast<std::size_t>(element_bytes(dtype.dtype));
  DCP_CHECK(bytes.size() % width == 0, kCorruptData, "a quantizer's numbers take ", bytes.size(), " bytes");
  at::Tensor numbers = at::empty({static_cast<std::int64_t>(bytes.size() / width)}, at::TensorOptions(dtype.dtype));
  std::copy(bytes.begin(), bytes.end(), static_cast<std::uint8_t*>(numbers.mutable_data_ptr()));
  return numbers;
}

void encode_quantizer(ByteWriter& out, const Quantizer& quantizer) {
  out.f64(quantizer.scale);
  out.i64(quantizer.zero_point);
  out.boolean(quantizer.is_per_channel());
  if (!quantizer.is_per_channel()) return;
  out.i64(quantizer.axis);
  encode_numbers(out, quantizer.scales);
  encode_numbers(out, quantizer.zero_points);
}

Quantizer decode_quantizer(ByteReader& in, const Sizes& sizes) {
  Quantizer quantizer;
  quantizer.scale = in.f64();
  quantizer.zero_point = in.i64();
  if (!in.boolean()) return quantizer;
  quantizer.axis = in.i64();
  quantizer.scales = decode_numbers(in);
  quantizer.zero_points = decode_numbers(in);
  const auto is_number = [](const at::Tensor& tensor) {
    return tensor.scalar_type() == at::kDouble || tensor.scalar_type() == at::kFloat ||
           tensor.scalar_type() == at::kLong || tensor.scalar_type() == at::kInt;
  };
  DCP_CHECK(quantizer.axis >= 0 && quantizer.axis < static_cast<std::int64_t>(sizes.size()) &&
                is_number(quantizer.scales) && is_number(quantizer.zero_points) &&
                quantizer.scales.numel() == sizes[static_cast<std::size_t>(quantizer.axis)] &&
                quantizer.zero_points.numel() == quantizer.scales.numel(),
            kCorruptData, "a quantizer does not fit its tensor");
  return quantizer;
}

void encode_tensor(ByteWriter& out, const SentTensor& tensor) {
  out.u64(tensor.is_defined ? tensor.storage : kUndefined);
  if (!tensor.is_defined) return;
  encode_dtype(out, tensor.dtype);
  encode_sizes(out, tensor.sizes);
  encode_sizes(out, tensor.strides);
  out.i64(tensor.storage_offset);
  out.boolean(tensor.is_conj);
  out.boolean(tensor.is_neg);
  out.boolean(tensor.requires_grad);
  out.boolean(tensor.quantizer.has_value());
  if (tensor.quantizer) encode_quantizer(out, *tensor.quantizer);
}

bool can_require_grad(at::ScalarType dtype) { return at::isFloatingType(dtype) || at::isComplexType(dtype); }

SentTensor decode_tensor(ByteReader& in, const std::vector<SentStorage>& storages, const ParseLimits& limits) {
  SentTensor tensor;
  tensor.storage = in.u64();
  tensor.is_defined = tensor.storage != kUndefined;
  if (!tensor.is_defined) return tensor;
  tensor.dtype = decode_dtype(in);
  tensor.sizes = decode_sizes(in, limits);
  tensor.strides = decode_sizes(in, limits);
  tensor.storage_offset = in.i64();
  tensor.is_conj = in.boolean();
  tensor.is_neg = in.boolean();
  tensor.requires_grad = in.boolean();
  if (in.boolean()) tensor.quantizer = decode_quantizer(in, tensor.sizes);
  const at::ScalarType dtype = tensor.dtype.dtype;
  DCP_CHECK(tensor.storage < storages.size() && tensor.sizes.size() == tensor.strides.size(), kCorruptData,
            "a tensor lies in storage ", tensor.storage, " of ", storages.size(), ", with ", tensor.sizes.size(),
            " sizes and ", tensor.strides.size(), " strides");
  DCP_CHECK(!tensor.is_conj || at::isComplexType(dtype), kCorruptData, "a conjugate of ", dtype_name(tensor.dtype));
  DCP_CHECK(!tensor.requires_grad || can_require_grad(dtype), kCorruptData, "a gradient of ", dtype_name(tensor.dtype));
  DCP_CHECK(!tensor.quantizer || is_quantized_dtype(dtype), kCorruptData, "a quantizer of ", dtype_name(tensor.dtype));
  const auto extent = byte_extent(tensor);
  const SentStorage& storage = storages[tensor.storage];
  DCP_CHECK(
      extent && (extent->first == extent->second || (extent->first >= storage.begin && extent->second <= storage.end)),
      kCorruptData, "a tensor leaves its storage");
  return tensor;
}

// Walks a state and writes its tree.
class Describing {
 public:
  OutgoingState describe(const Dict& state) {
    put(Value(state), 0);
    faults_.throw_if_any("this state cannot be sent", DCP_WHERE);
    ByteWriter out;
    out.u64(outgoing_.storages.size());
    for (const auto& one : outgoing_.storages) {
      out.i64(one.range.begin);
      out.i64(one.range.end);
    }
    out.u64(tensors_.size());
    for (const SentTensor& tensor : tensors_) encode_tensor(out, tensor);
    out.raw(std::move(tree_).take());
    outgoing_.head = std::move(out).take();
    return std::move(outgoing_);
  }

 private:
  void fault(ErrorKind kind, const std::string& what) { faults_.add(kind, flat_key(path_), what); }

  void put(const Value& value, std::size_t depth) {
    DCP_CHECK(depth <= ParseLimits().max_depth, kInvalidArgument, "the state is nested more than ",
              ParseLimits().max_depth, " deep");
    if (value.kind() == ValueKind::kStateful) return put(state_of(value.as_stateful()), depth + 1);
    tree_.u8(static_cast<std::uint8_t>(value.kind()));
    std::visit([&](const auto& held) { put_held(held, depth); }, value.storage());
  }

  void put_held(None, std::size_t) {}
  void put_held(bool value, std::size_t) { tree_.boolean(value); }
  void put_held(std::int64_t value, std::size_t) { tree_.i64(value); }
  void put_held(double value, std::size_t) { tree_.f64(value); }
  void put_held(const std::string& value, std::size_t) { tree_.text(value); }
  void put_held(const Bytes& value, std::size_t) { tree_.bytes(value); }
  void put_held(const at::Tensor& value, std::size_t) { tree_.u64(number_of(value)); }
  void put_held(const std::shared_ptr<Stateful>&, std::size_t) {}  // `put` has its state

  void put_held(const DTensor& value, std::size_t) {
    const DeviceMesh& mesh = value.mesh();
    encode_sizes(tree_, mesh.shape());
    tree_.u64(mesh.ranks().size());
    for (const std::int64_t rank : mesh.ranks()) tree_.i64(rank);
    tree_.i64(mesh.my_rank());
    tree_.u64(mesh.dim_names().size());
    for (const std::string& name : mesh.dim_names()) tree_.text(name);
    tree_.u64(value.placements().size());
    for (const Placement& placement : value.placements()) encode(tree_, placement);
    encode_sizes(tree_, value.global_sizes());
    tree_.u64(number_of(value.local()));
  }

  void put_held(const ShardedTensor& value, std::size_t) {
    encode_sizes(tree_, value.global_sizes());
    encode_dtype(tree_, {value.dtype(), NewerDtype::kNone});
    tree_.u64(value.local_shards().size());
    for (const Shard& shard : value.local_shards()) {
      encode_sizes(tree_, shard.offsets);
      tree_.u64(number_of(shard.tensor));
    }
  }

  void put_held(const Dict& value, std::size_t depth) {
    tree_.u64(value.size());
    for (const auto& [key, child] : value) {
      encode(tree_, key);
      path_.push_back(PathItem::dict_key(key));
      put(child, depth + 1);
      path_.pop_back();
    }
  }

  void put_held(const List& value, std::size_t depth) { put_sequence(value, depth); }
  void put_held(const Tuple& value, std::size_t depth) { put_sequence(value, depth); }

  void put_sequence(const std::vector<Value>& values, std::size_t depth) {
    tree_.u64(values.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
      path_.push_back(PathItem::list_index(static_cast<std::int64_t>(i)));
      put(values[i], depth + 1);
      path_.pop_back();
    }
  }

  void put_held(const Opaque& value, std::size_t) {
    tree_.text(value.type_name);
    tree_.boolean(value.item != nullptr);
    if (value.item) tree_.bytes(*value.item);
  }

  Value state_of(const std::shared_ptr<Stateful>& object) {
    DCP_CHECK(object, kInvalidArgument, "key '", flat_key(path_), "': a null Stateful");
    const auto known = objects_.find(object.get());
    if (known != objects_.end()) return known->second;
    Value state = object->state_dict();
    objects_.emplace(object.get(), state);
    return state;
  }

  std::uint64_t number_of(const at::Tensor& tensor) {
    const auto [known, is_new] = numbers_.try_emplace(tensor.unsafeGetTensorImpl(), tensors_.size());
    if (!is_new) return known->second;
    try {
      held_.push_back(tensor);
      SentTensor sent = describe_tensor(tensor);
      if (sent.is_defined) sent.storage = storage_of(tensor, sent);
      tensors_.push_back(std::move(sent));
    } catch (const Error& error) {
      fault(error.kind(), error.what_without_backtrace());
      tensors_.emplace_back();
    }
    return known->second;
  }

  std::uint64_t storage_of(const at::Tensor& tensor, const SentTensor& sent) {
    const auto [known, is_new] =
        storages_.try_emplace(tensor.storage().unsafeGetStorageImpl(), outgoing_.storages.size());
    if (is_new) outgoing_.storages.push_back({tensor.storage(), {}, flat_key(path_)});
    auto& storage = outgoing_.storages[known->second];
    const auto extent = byte_extent(sent);
    DCP_CHECK(extent && extent->second <= static_cast<std::int64_t>(storage.storage.nbytes()), kInvalidArgument,
              "the tensor leaves its storage of ", storage.storage.nbytes(), " bytes");
    if (extent->first == extent->second) return known->second;
    SentStorage& range = storage.range;
    range = range.bytes() == 0 ? SentStorage{extent->first, extent->second}
                               : SentStorage{std::min(range.begin, extent->first), std::max(range.end, extent->second)};
    return known->second;
  }

  ByteWriter tree_;
  Path path_;
  FaultList faults_;
  OutgoingState outgoing_;
  std::vector<SentTensor> tensors_;
  // Keep what their addresses stand for.
  std::vector<at::Tensor> held_;
  std::unordered_map<const c10::TensorImpl*, std::uint64_t> numbers_;
  std::unordered_map<const c10::StorageImpl*, std::uint64_t> storages_;
  std::unordered_map<const Stateful*, Value> objects_;
};

}  // namespace

std::optional<std::pair<std::int64_t, std::int64_t>> byte_extent(const SentTensor& tensor) {
  const auto numel = checked_numel(tensor.sizes);
  if (!numel || tensor.storage_offset < 0) return std::nullopt;
  const std::int64_t width = element_bytes(tensor.dtype.dtype);
  std::optional<std::int64_t> last = tensor.storage_offset;
  for (std::size_t d = 0; d < tensor.sizes.size() && last; ++d) {
    if (tensor.strides[d] < 0) return std::nullopt;
    const auto reach = checked_mul(std::max<std::int64_t>(tensor.sizes[d] - 1, 0), tensor.strides[d]);
    last = reach ? checked_add(*last, *reach) : std::nullopt;
  }
  if (last) last = checked_add(*last, 1);
  if (last) last = checked_mul(*last, width);
  // What is expanded may have more elements than memory, but not more than 64 bits count.
  if (!last || !checked_mul(*numel, width)) return std::nullopt;
  const std::int64_t begin = tensor.storage_offset * width;
  return std::pair(begin, *numel == 0 ? begin : *last);
}

SentTensor describe_tensor(const at::Tensor& tensor) {
  SentTensor sent;
  if (!tensor.defined()) return sent;
  DCP_CHECK(!tensor.unsafeGetTensorImpl()->is_python_dispatch(), kUnsupported, "a tensor whose operators are Python's");
  DCP_CHECK(!tensor.is_nested() && tensor.layout() == at::kStrided && tensor.has_storage(), kUnsupported,
            "a tensor that is not strided");
  DCP_CHECK(!tensor.is_meta(), kUnsupported, "a tensor on the meta device");
  sent.is_defined = true;
  sent.dtype = {tensor.scalar_type(), NewerDtype::kNone};
  dtype_name(sent.dtype);  // throws if it has no name
  sent.sizes.assign(tensor.sizes().begin(), tensor.sizes().end());
  sent.strides.assign(tensor.strides().begin(), tensor.strides().end());
  sent.storage_offset = tensor.storage_offset();
  sent.is_conj = tensor.is_conj();
  sent.is_neg = tensor.is_neg();
  sent.requires_grad = tensor.requires_grad() && tensor.is_leaf();
  DCP_CHECK(!tensor.is_quantized() || is_quantized_dtype(tensor.scalar_type()), kUnsupported, "a tensor of the dtype ",
            dtype_name(sent.dtype), ", which packs several numbers");
  if (tensor.is_quantized() && quantization_scheme(tensor) != "none") sent.quantizer = quantizer_of(tensor);
  return sent;
}

HeadTables decode_tables(ByteReader& in, const ParseLimits& limits, std::int64_t max_state_bytes) {
  HeadTables tables;
  std::int64_t total = 0;
  for (std::uint64_t left = in.count(2 * sizeof(std::int64_t)); left > 0; --left) {
    SentStorage storage{in.i64(), in.i64()};
    DCP_CHECK(storage.begin >= 0 && storage.begin <= storage.end && storage.end <= max_state_bytes - total,
              kCorruptData, "a storage from byte ", storage.begin, " to ", storage.end, ", after others of ", total,
              " bytes, where ", max_state_bytes, " are allowed");
    total += storage.end;
    tables.storages.push_back(storage);
  }
  for (std::uint64_t left = in.count(sizeof(std::uint64_t)); left > 0; --left) {
    DCP_CHECK(tables.tensors.size() < limits.max_values, kCorruptData, "more than ", limits.max_values, " tensors");
    tables.tensors.push_back(decode_tensor(in, tables.storages, limits));
  }
  return tables;
}

OutgoingState describe_state(const Dict& state) { return Describing().describe(state); }

void encode(ByteWriter& out, const Placement& placement) {
  out.u8(static_cast<std::uint8_t>(placement.kind));
  out.i64(placement.dim);
  out.i64(placement.split_factor);
  out.text(placement.reduce_op);
}

void encode(ByteWriter& out, const Key& key) {
  const auto* const number = std::get_if<std::int64_t>(&key);
  out.boolean(number != nullptr);
  if (number) {
    out.i64(*number);
  } else {
    out.text(std::get<std::string>(key));
  }
}

void encode_sizes(ByteWriter& out, const Sizes& sizes) {
  out.u64(sizes.size());
  for (const std::int64_t size : sizes) out.i64(size);
}

void encode_dtype(ByteWriter& out, const NamedDtype& dtype) { out.text(dtype_name(dtype)); }

Sizes decode_sizes(ByteReader& in, const ParseLimits& limits) {
  Sizes sizes(in.count(sizeof(std::int64_t)));
  DCP_CHECK(sizes.size() <= limits.max_ndim, kCorruptData, sizes.size(), " dimensions");
  for (std::int64_t& size : sizes) {
    size = in.i64();
    DCP_CHECK(size >= 0, kCorruptData, "a size of ", size);
  }
  return sizes;
}

NamedDtype decode_dtype(ByteReader& in) {
  const std::string name = in.text();
  const auto dtype = named_dtype(name);
  DCP_CHECK(dtype, kCorruptData, "an unknown dtype, '", name.substr(0, 40), "'");
  return *dtype;
}

}  // namespace dcp

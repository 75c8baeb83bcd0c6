#include "torch_dcp/transform/skeleton_internal.h"

#include <memory>
#include <string>
#include <variant>

#include "torch_dcp/base/error.h"
#include "torch_dcp/base/limits.h"
#include "torch_dcp/state_dict/path.h"
#include "torch_dcp/tensor/dtype.h"
#include "torch_dcp/transform/stateful_internal.h"

namespace dcp {
namespace {

void put(ByteWriter& out, const Key& key) {
  const auto* const index = std::get_if<std::int64_t>(&key);
  out.boolean(index != nullptr);
  if (index) {
    out.i64(*index);
  } else {
    out.text(std::get<std::string>(key));
  }
}

Key take_key(ByteReader& in) {
  if (in.boolean()) return in.i64();
  return in.text();
}

void put_tensor(ByteWriter& out, const Skeleton& skeleton) {
  out.text(dtype_name(skeleton.tensor.dtype));
  out.u64(skeleton.tensor.sizes.size());
  for (std::int64_t size : skeleton.tensor.sizes) out.i64(size);
  out.boolean(skeleton.quantizer.has_value());
  if (!skeleton.quantizer) return;
  out.f64(skeleton.quantizer->scale);
  out.i64(skeleton.quantizer->zero_point);
}

void take_tensor(ByteReader& in, Skeleton& skeleton) {
  const auto dtype = dtype_from_name(in.text());
  DCP_CHECK(dtype, kCorruptData, "the table of tensors has an unknown dtype");
  skeleton.tensor.dtype = *dtype;
  skeleton.tensor.sizes.resize(in.count(sizeof(std::int64_t)));
  for (std::int64_t& size : skeleton.tensor.sizes) size = in.i64();
  make_box(Sizes(skeleton.tensor.sizes.size(), 0), skeleton.tensor.sizes);  // Throws if a size is out of range.
  if (in.boolean()) skeleton.quantizer = {in.f64(), in.i64()};
}

void put_plain(ByteWriter& out, const Value& value) {
  switch (value.kind()) {
    case ValueKind::kNone:
      return;
    case ValueKind::kBool:
      return out.boolean(value.as_bool());
    case ValueKind::kInt:
      return out.i64(value.as_int());
    case ValueKind::kDouble:
      return out.f64(value.as_double());
    case ValueKind::kString:
      return out.text(value.as_string());
    case ValueKind::kBytes:
      return out.bytes(value.as_bytes());
    case ValueKind::kOpaque:
      out.text(value.as_opaque().type_name);
      out.boolean(value.as_opaque().item != nullptr);
      if (value.as_opaque().item) out.bytes(*value.as_opaque().item);
      return;
    default:
      DCP_THROW(kInternal, "a ", value_kind_name(value.kind()), " is sent as a plain value");
  }
}

Value take_plain(ByteReader& in, ValueKind kind) {
  switch (kind) {
    case ValueKind::kNone:
      return None();
    case ValueKind::kBool:
      return in.boolean();
    case ValueKind::kInt:
      return in.i64();
    case ValueKind::kDouble:
      return in.f64();
    case ValueKind::kString:
      return in.text();
    case ValueKind::kBytes:
      return in.bytes();
    case ValueKind::kOpaque: {
      Opaque opaque;
      opaque.type_name = in.text();
      if (in.boolean()) opaque.item = std::make_shared<const Bytes>(in.bytes());
      return opaque;
    }
    default:
      DCP_THROW(kCorruptData, "the table of tensors has a value of kind ", static_cast<int>(kind));
  }
}

bool is_container_kind(ValueKind kind) {
  return kind == ValueKind::kDict || kind == ValueKind::kList || kind == ValueKind::kTuple;
}

void take_skeleton(ByteReader& in, Skeleton& skeleton, std::size_t depth) {
  DCP_CHECK(depth <= ParseLimits().max_depth, kCorruptData, "the table of tensors is nested more than ",
            ParseLimits().max_depth, " deep");
  skeleton.kind = static_cast<ValueKind>(in.u8());
  if (skeleton.kind == ValueKind::kTensor) return take_tensor(in, skeleton);
  if (!is_container_kind(skeleton.kind)) {
    skeleton.plain = take_plain(in, skeleton.kind);
    return;
  }
  const std::uint64_t count = in.count();
  for (std::uint64_t i = 0; i < count; ++i) {
    if (skeleton.kind == ValueKind::kDict) skeleton.keys.push_back(take_key(in));
    take_skeleton(in, skeleton.children.emplace_back(), depth + 1);
  }
}

class Taking {
 public:
  Skeleton take(const Value& value) {
    DCP_CHECK(path_.size() <= ParseLimits().max_depth, kInvalidArgument, "the full state is nested more than ",
              ParseLimits().max_depth, " deep");
    Skeleton skeleton;
    skeleton.kind = value.kind();
    if (value.is_dict()) {
      for (const auto& [key, child] : value.as_dict()) {
        skeleton.keys.push_back(key);
        below(skeleton, PathItem::dict_key(key), child);
      }
    } else if (value.is_list()) {
      sequence(skeleton, value.as_list());
    } else if (value.kind() == ValueKind::kTuple) {
      sequence(skeleton, value.as_tuple());
    } else if (value.is_tensor()) {
      tensor(skeleton, value.as_tensor());
    } else if (value.is_tensor_like()) {
      faults_.add(ErrorKind::kType, flat_key(path_),
                  c10::str("a ", value_kind_name(value.kind()), " in the full state, which has whole tensors"));
    } else {
      skeleton.plain = value;
    }
    return skeleton;
  }

  const FaultList& faults() const { return faults_; }
  std::vector<at::Tensor> tensors() { return std::move(tensors_); }

 private:
  void below(Skeleton& parent, PathItem item, const Value& child) {
    path_.push_back(std::move(item));
    parent.children.push_back(take(child));
    path_.pop_back();
  }

  void sequence(Skeleton& parent, const std::vector<Value>& children) {
    std::int64_t position = 0;
    for (const Value& child : children) below(parent, PathItem::list_index(position++), child);
  }

  void tensor(Skeleton& skeleton, const at::Tensor& tensor) {
    std::string why = why_without_elements(tensor);
    if (why.empty()) why = why_without_tensor_quantizer(tensor);
    if (!why.empty()) return faults_.add(ErrorKind::kUnsupported, flat_key(path_), why + " in the full state");
    skeleton.tensor = tensor_info(tensor);
    skeleton.quantizer = tensor_quantizer_of(tensor);
    tensors_.push_back(tensor);
  }

  Path path_;
  FaultList faults_;
  std::vector<at::Tensor> tensors_;
};

}  // namespace

void encode(ByteWriter& out, const Skeleton& skeleton) {
  out.u8(static_cast<std::uint8_t>(skeleton.kind));
  if (skeleton.kind == ValueKind::kTensor) return put_tensor(out, skeleton);
  if (!is_container_kind(skeleton.kind)) return put_plain(out, skeleton.plain);
  out.u64(skeleton.children.size());
  for (std::size_t i = 0; i < skeleton.children.size(); ++i) {
    if (skeleton.kind == ValueKind::kDict) put(out, skeleton.keys[i]);
    encode(out, skeleton.children[i]);
  }
}

void decode(ByteReader& in, Skeleton& skeleton) {
  skeleton = {};
  take_skeleton(in, skeleton, 0);
}

FullState take_full_state(const Dict& full, const char* what) {
  Taking taking;
  FullState state;
  state.skeleton = taking.take(replace_all_stateful(full));
  taking.faults().throw_if_any(what, DCP_WHERE);
  state.tensors = taking.tensors();
  return state;
}

}  // namespace dcp

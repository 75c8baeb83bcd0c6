#include <algorithm>
#include <array>
#include <optional>

#include "torch_dcp/base/checked_math.h"
#include "torch_dcp/base/error.h"
#include "torch_dcp/format/tensor_pickle_internal.h"
#include "torch_dcp/tensor/dtype.h"

namespace dcp {
namespace {

using pickle::NodeKind;
using pickle::Ref;

constexpr std::string_view kUtils = "torch._utils";
constexpr std::string_view kTensorV2 = "_rebuild_tensor_v2";
constexpr std::string_view kTensorV3 = "_rebuild_tensor_v3";
constexpr std::string_view kParameter = "_rebuild_parameter";

// Calls that make tensors of kinds that this library does not read from an item.
constexpr std::array<std::string_view, 9> kRefusedCalls = {
    "_rebuild_tensor",
    "_rebuild_qtensor",
    "_rebuild_parameter_with_state",
    "_rebuild_sparse_tensor",
    "_rebuild_sparse_csr_tensor",
    "_rebuild_nested_tensor",
    "_rebuild_meta_tensor_no_storage",
    "_rebuild_device_tensor_from_numpy",
    "_rebuild_wrapper_subclass",
};

bool is_known_call(Ref callee) {
  return callee->is_global(kUtils, kTensorV2) || callee->is_global(kUtils, kTensorV3) ||
         callee->is_global(kUtils, kParameter);
}

std::string describe(Ref node) {
  if (node->kind == NodeKind::kGlobal) return c10::str(node->module, ".", node->text);
  if (node->kind == NodeKind::kCall && node->callee->kind == NodeKind::kGlobal) {
    return c10::str("a call of ", node->callee->module, ".", node->callee->text);
  }
  return c10::str("a ", pickle::node_kind_name(node->kind));
}

void check_kind(Ref node, NodeKind kind, std::string_view what) {
  DCP_CHECK(node->kind == kind, kCorruptData, "the tensor's ", what, " is ", describe(node), ", not a ",
            pickle::node_kind_name(kind));
}

std::int64_t non_negative(Ref node, std::string_view what) {
  check_kind(node, NodeKind::kInt, what);
  DCP_CHECK(node->integer >= 0, kCorruptData, "the tensor's ", what, " is ", node->integer);
  return node->integer;
}

Sizes parse_sizes(Ref node, std::string_view what, const ParseLimits& limits) {
  check_kind(node, NodeKind::kTuple, what);
  DCP_CHECK(node->items.size() <= limits.max_ndim, kCorruptData, "the tensor has ", node->items.size(),
            " dimensions; the limit is ", limits.max_ndim);
  Sizes sizes;
  for (Ref item : node->items) sizes.push_back(non_negative(item, what));
  return sizes;
}

// Hooks are code; only none of them is taken.
void check_no_hooks(Ref node) {
  const bool is_call = node->kind == NodeKind::kCall && node->callee->is_global("collections", "OrderedDict");
  DCP_CHECK(is_call, kCorruptData, "the tensor's hooks are ", describe(node), ", not an OrderedDict");
  DCP_CHECK(node->items.empty() && node->entries.empty() && node->appended.empty() && node->state == nullptr,
            kUnsupported, "the tensor has hooks");
}

void check_plain_call(Ref node) {
  DCP_CHECK(node->entries.empty() && node->appended.empty() && node->state == nullptr, kUnsupported,
            "the tensor has attributes of its own");
}

// Throws for a dtype that no plain tensor can have: a quantized one needs a quantizer.
StorageName plain_storage_name(c10::ScalarType dtype) {
  DCP_CHECK(!c10::isQIntType(dtype), kUnsupported, "a quantized tensor, ", dtype_name(dtype));
  return storage_name(dtype);
}

struct Storage {
  c10::ScalarType dtype;  // uint8 for an untyped one
  std::int64_t bytes;
};

c10::ScalarType parse_storage_type(Ref node) {
  check_kind(node, NodeKind::kGlobal, "storage type");
  if (node->is_global("torch.storage", "UntypedStorage") || node->is_global("torch", "UntypedStorage")) {
    return c10::ScalarType::Byte;
  }
  const auto dtype = node->module == "torch" ? dtype_from_storage_name(node->text) : std::nullopt;
  DCP_CHECK(dtype.has_value(), kUnsupported, "the tensor's storage is a ", describe(node),
            ", which is no storage type known here");
  return *dtype;
}

Storage parse_storage(Ref node, std::string& key) {
  check_kind(node, NodeKind::kPersistentId, "storage");
  const Ref id = node->items[0];
  check_kind(id, NodeKind::kTuple, "storage's id");
  DCP_CHECK(id->items.size() == 5 && id->items[0]->kind == NodeKind::kText && id->items[0]->text == "storage",
            kCorruptData, "the tensor's storage id is no ('storage', type, key, location, count)");
  check_kind(id->items[2], NodeKind::kText, "storage key");
  key = id->items[2]->text;
  const bool is_number =
      !key.empty() && key.size() <= 20 && std::ranges::all_of(key, [](char c) { return c >= '0' && c <= '9'; });
  DCP_CHECK(is_number, kCorruptData, "the tensor's storage key is \"", key, "\", not a number");
  check_kind(id->items[3], NodeKind::kText, "storage location");

  const c10::ScalarType dtype = parse_storage_type(id->items[1]);
  const std::int64_t count = non_negative(id->items[4], "storage element count");
  const auto bytes = checked_mul(count, element_bytes(dtype));
  DCP_CHECK(bytes.has_value(), kCorruptData, "the tensor's storage has ", count, " elements, more than 64 bits count");
  return {dtype, *bytes};
}

c10::ScalarType parse_dtype(Ref node) {
  check_kind(node, NodeKind::kGlobal, "dtype");
  const auto dtype = node->module == "torch" ? dtype_from_name(node->text) : std::nullopt;
  DCP_CHECK(dtype.has_value(), kUnsupported, "the tensor's dtype is ", describe(node), ", which is not known here");
  return *dtype;
}

// The dict that follows for a lazily conjugated or negated tensor.
void parse_view_bits(Ref node, PickledTensor& tensor) {
  check_kind(node, NodeKind::kDict, "metadata");
  for (const auto& [name, value] : node->entries) {
    check_kind(name, NodeKind::kText, "metadata key");
    DCP_CHECK(name->text == "conj" || name->text == "neg", kUnsupported, "the tensor has the metadata \"", name->text,
              "\"");
    check_kind(value, NodeKind::kBool, "metadata value");
    (name->text == "conj" ? tensor.is_conj : tensor.is_neg) = value->integer != 0;
  }
  DCP_CHECK(!tensor.is_conj || c10::isComplexType(tensor.dtype), kCorruptData, "a conjugated tensor of ",
            dtype_name(tensor.dtype));
}

// Elements from the first to past the last that the strides reach, without the offset; nothing on overflow.
std::optional<std::int64_t> reach(const PickledTensor& tensor) {
  std::int64_t last = 0;
  for (std::size_t d = 0; d < tensor.sizes.size(); ++d) {
    const auto step = checked_mul(tensor.sizes[d] - 1, tensor.strides[d]);
    const auto sum = step ? checked_add(last, *step) : std::nullopt;
    if (!sum) return std::nullopt;
    last = *sum;
  }
  return checked_add(last, 1);
}

void check_inside_storage(PickledTensor& tensor) {
  const c10::IntArrayRef sizes = tensor.sizes;
  const c10::IntArrayRef strides = tensor.strides;
  DCP_CHECK(sizes.size() == strides.size(), kCorruptData, "the tensor has ", sizes.size(), " sizes and ",
            strides.size(), " strides");
  const auto numel = checked_numel(sizes);
  const auto bytes = numel ? checked_mul(*numel, element_bytes(tensor.dtype)) : std::nullopt;
  DCP_CHECK(bytes.has_value(), kCorruptData, "the tensor's sizes ", sizes, " are more than 64 bits count");
  if (*numel == 0) {
    tensor.storage_offset = 0;
    return;
  }
  const auto length = reach(tensor);
  const auto end = length ? checked_add(*length, tensor.storage_offset) : std::nullopt;
  DCP_CHECK(end.has_value() && *end <= tensor.storage_numel, kCorruptData, "the tensor of sizes ", sizes, ", strides ",
            strides, " and offset ", tensor.storage_offset, " is not inside its storage of ", tensor.storage_numel,
            " elements");
}

PickledTensor parse_rebuild(Ref node, const ParseLimits& limits) {
  const bool has_dtype = node->callee->is_global(kUtils, kTensorV3);
  const std::size_t plain = has_dtype ? 7 : 6;
  const auto& arguments = node->items;
  DCP_CHECK(arguments.size() == plain || arguments.size() == plain + 1, kCorruptData, "the tensor is made with ",
            arguments.size(), " arguments, not ", plain, " or ", plain + 1);
  check_plain_call(node);

  PickledTensor tensor;
  const Storage storage = parse_storage(arguments[0], tensor.storage_key);
  tensor.dtype = has_dtype ? parse_dtype(arguments[6]) : storage.dtype;
  plain_storage_name(tensor.dtype);
  tensor.storage_bytes = storage.bytes;
  const std::int64_t unit = element_bytes(tensor.dtype);
  DCP_CHECK(storage.bytes % unit == 0, kCorruptData, "the tensor's storage has ", storage.bytes,
            " bytes, its elements ", unit);
  tensor.storage_numel = storage.bytes / unit;
  tensor.storage_offset = non_negative(arguments[1], "storage offset");
  tensor.sizes = parse_sizes(arguments[2], "size", limits);
  tensor.strides = parse_sizes(arguments[3], "stride", limits);
  check_kind(arguments[4], NodeKind::kBool, "requires_grad");
  check_no_hooks(arguments[5]);
  if (arguments.size() > plain) parse_view_bits(arguments[plain], tensor);
  check_inside_storage(tensor);
  return tensor;
}

// A parameter is a tensor with a flag, which DCP keeps elsewhere.
Ref tensor_of_parameter(Ref node) {
  DCP_CHECK(node->items.size() == 3, kCorruptData, "the parameter is made with ", node->items.size(),
            " arguments, not 3");
  check_plain_call(node);
  check_kind(node->items[1], NodeKind::kBool, "requires_grad");
  check_no_hooks(node->items[2]);
  return node->items[0];
}

// Writes a tuple of ints as Python does, the memo included.
void write_ints(pickle::Writer& writer, c10::IntArrayRef values) {
  if (values.empty()) return writer.empty_tuple();
  const bool is_long = values.size() > 3;
  if (is_long) writer.mark();
  for (std::int64_t value : values) writer.integer(value);
  if (is_long) {
    writer.tuple_from_mark();
  } else {
    writer.tuple_of(static_cast<int>(values.size()));
  }
  writer.put();
}

Sizes contiguous_strides(c10::IntArrayRef sizes) {
  Sizes strides(sizes.size(), 1);
  for (std::size_t d = sizes.size(); d-- > 1;) {
    strides[d - 1] = strides[d] * std::max<std::int64_t>(sizes[d], 1);
  }
  return strides;
}

}  // namespace

bool is_tensor_call(pickle::Ref node) {
  if (node->kind != NodeKind::kCall || node->callee->kind != NodeKind::kGlobal) return false;
  if (is_known_call(node->callee)) return true;
  return node->callee->module == kUtils && std::ranges::find(kRefusedCalls, node->callee->text) != kRefusedCalls.end();
}

PickledTensor parse_tensor_call(pickle::Ref node, const ParseLimits& limits) {
  DCP_CHECK(is_tensor_call(node), kCorruptData, "there should be a tensor, but there is ", describe(node));
  if (node->callee->is_global(kUtils, kParameter) && !node->is_new_object) {
    node = tensor_of_parameter(node);
    DCP_CHECK(is_tensor_call(node), kCorruptData, "a parameter should hold a tensor, but holds ", describe(node));
    DCP_CHECK(!node->callee->is_global(kUtils, kParameter), kCorruptData, "a parameter holds a parameter");
  }
  DCP_CHECK(is_known_call(node->callee) && !node->is_new_object, kUnsupported, "the tensor is made by ", describe(node),
            ", a kind that is not read");
  return parse_rebuild(node, limits);
}

void write_tensor_call(pickle::Writer& writer, const std::string& storage_key, c10::ScalarType dtype,
                       c10::IntArrayRef sizes) {
  const StorageName storage = plain_storage_name(dtype);
  const auto numel = checked_numel(sizes);
  const auto bytes = numel ? checked_mul(*numel, element_bytes(dtype)) : std::nullopt;
  DCP_CHECK(bytes.has_value(), kInvalidArgument, "a tensor of sizes ", sizes, " cannot be written");

  writer.global(kUtils, storage.is_untyped ? kTensorV3 : kTensorV2);
  writer.mark();
  writer.mark();
  writer.text("storage");
  writer.global(storage.module, storage.name);
  writer.text(storage_key);
  writer.text("cpu");
  writer.integer(storage.is_untyped ? *bytes : *numel);
  writer.tuple_from_mark();
  writer.put();
  writer.persistent_id();
  writer.integer(0);
  write_ints(writer, sizes);
  write_ints(writer, contiguous_strides(sizes));
  writer.boolean(false);
  writer.global("collections", "OrderedDict");
  writer.empty_tuple();
  writer.reduce();
  writer.put();
  if (storage.is_untyped) writer.global("torch", dtype_name(dtype));
  writer.tuple_from_mark();
  writer.put();
  writer.reduce();
  writer.put();
}

}  // namespace dcp

#include <algorithm>
#include <array>
#include <optional>

#include "torch_dcp/base/checked_math.h"
#include "torch_dcp/base/error.h"
#include "torch_dcp/format/tensor_pickle_internal.h"
#include "torch_dcp/format/tensor_pickle_names_internal.h"
#include "torch_dcp/tensor/dtype.h"
#include "torch_dcp/tensor/quantized.h"

namespace dcp {
namespace {

using pickle::NodeKind;
using pickle::Ref;
using tensor_calls::kParameter;
using tensor_calls::kQuantized;
using tensor_calls::kTensorV2;
using tensor_calls::kTensorV3;
using tensor_calls::kUtils;

// Calls that make tensors of kinds that this library does not read from an item.
constexpr std::array<std::string_view, 8> kRefusedCalls = {
    "_rebuild_tensor",
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
         callee->is_global(kUtils, kQuantized) || callee->is_global(kUtils, kParameter);
}

std::string describe(Ref node) {
  if (node->kind == NodeKind::kGlobal) return c10::str(node->module(), ".", node->text());
  if (node->kind == NodeKind::kCall && node->callee()->kind == NodeKind::kGlobal) {
    return c10::str("a call of ", node->callee()->module(), ".", node->callee()->text());
  }
  return c10::str("a ", pickle::node_kind_name(node->kind));
}

bool is_number(std::string_view key) {
  return !key.empty() && key.size() <= 20 && std::ranges::all_of(key, [](char c) { return c >= '0' && c <= '9'; });
}

void check_kind(Ref node, NodeKind kind, std::string_view what) {
  DCP_CHECK(node->kind == kind, kCorruptData, "the tensor's ", what, " is ", describe(node), ", not a ",
            pickle::node_kind_name(kind));
}

std::int64_t non_negative(Ref node, std::string_view what) {
  check_kind(node, NodeKind::kInt, what);
  DCP_CHECK(node->integer() >= 0, kCorruptData, "the tensor's ", what, " is ", node->integer());
  return node->integer();
}

Sizes parse_sizes(Ref node, std::string_view what, const ParseLimits& limits) {
  check_kind(node, NodeKind::kTuple, what);
  DCP_CHECK(node->items().size() <= limits.max_ndim, kCorruptData, "the tensor has ", node->items().size(),
            " dimensions; the limit is ", limits.max_ndim);
  Sizes sizes;
  for (Ref item : node->items()) sizes.push_back(non_negative(item, what));
  return sizes;
}

// Hooks are code; only none of them is taken.
void check_no_hooks(Ref node) {
  const bool is_call = node->kind == NodeKind::kCall && node->callee()->is_global("collections", "OrderedDict");
  DCP_CHECK(is_call, kCorruptData, "the tensor's hooks are ", describe(node), ", not an OrderedDict");
  DCP_CHECK(node->items().empty() && node->entries().empty() && node->appended().empty() && node->state() == nullptr,
            kUnsupported, "the tensor has hooks");
}

void check_plain_call(Ref node) {
  DCP_CHECK(node->entries().empty() && node->appended().empty() && node->state() == nullptr, kUnsupported,
            "the tensor has attributes of its own");
}

// A quantized tensor needs a quantizer.
void check_plain_dtype(c10::ScalarType dtype) {
  DCP_CHECK(!c10::isQIntType(dtype), kUnsupported, "a quantized tensor, ", dtype_name(dtype));
  storage_name(dtype);  // throws for a dtype without a form
}

c10::ScalarType parse_storage_type(Ref node) {
  check_kind(node, NodeKind::kGlobal, "storage type");
  if (node->is_global("torch.storage", "UntypedStorage") || node->is_global("torch", "UntypedStorage")) {
    return c10::ScalarType::Byte;
  }
  const auto dtype = node->module() == "torch" ? dtype_from_storage_name(node->text()) : std::nullopt;
  DCP_CHECK(dtype.has_value(), kUnsupported, "the tensor's storage is a ", describe(node),
            ", which is no storage type known here");
  return *dtype;
}

NamedDtype parse_dtype(Ref node) {
  check_kind(node, NodeKind::kGlobal, "dtype");
  const auto dtype = node->module() == "torch" ? named_dtype(node->text()) : std::nullopt;
  DCP_CHECK(dtype.has_value(), kUnsupported, "the tensor's dtype is ", describe(node), ", which is not known here");
  return *dtype;
}

// The dict that follows for a lazily conjugated or negated tensor.
void parse_view_bits(Ref node, PickledTensor& tensor) {
  check_kind(node, NodeKind::kDict, "metadata");
  for (const auto& [name, value] : node->entries()) {
    check_kind(name, NodeKind::kText, "metadata key");
    DCP_CHECK(name->text() == "conj" || name->text() == "neg", kUnsupported, "the tensor has the metadata \"",
              name->text(), "\"");
    check_kind(value, NodeKind::kBool, "metadata value");
    (name->text() == "conj" ? tensor.is_conj : tensor.is_neg) = value->integer() != 0;
  }
  DCP_CHECK(tensor.newer_dtype == NewerDtype::kNone || !(tensor.is_conj || tensor.is_neg), kUnsupported,
            "a lazily conjugated or negated tensor of dtype torch.",
            dtype_name(NamedDtype{tensor.dtype, tensor.newer_dtype}), ", which this LibTorch lacks");
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

// The arguments that all calls begin with: storage, offset, sizes, strides.
PickledTensor parse_place(Ref node, std::optional<NamedDtype> dtype, const ParseLimits& limits) {
  const auto& arguments = node->items();
  check_kind(arguments[0], NodeKind::kPersistentId, "storage");
  PickledStorage storage = parse_storage_id(arguments[0]);
  PickledTensor tensor;
  tensor.storage_key = std::move(storage.key);
  tensor.dtype = dtype ? dtype->dtype : storage.dtype;
  if (dtype) tensor.newer_dtype = dtype->newer;
  tensor.storage_bytes = storage.bytes;
  const std::int64_t unit = element_bytes(tensor.dtype);
  DCP_CHECK(storage.bytes % unit == 0, kCorruptData, "the tensor's storage has ", storage.bytes,
            " bytes, its elements ", unit);
  tensor.storage_numel = storage.bytes / unit;
  tensor.storage_offset = non_negative(arguments[1], "storage offset");
  tensor.sizes = parse_sizes(arguments[2], "size", limits);
  tensor.strides = parse_sizes(arguments[3], "stride", limits);
  check_inside_storage(tensor);
  return tensor;
}

bool parse_bool(Ref node, std::string_view what) {
  check_kind(node, NodeKind::kBool, what);
  return node->integer() != 0;
}

PickledTensor parse_rebuild(Ref node, const ParseLimits& limits) {
  const bool has_dtype = node->callee()->is_global(kUtils, kTensorV3);
  const std::size_t plain = has_dtype ? 7 : 6;
  const auto& arguments = node->items();
  DCP_CHECK(arguments.size() == plain || arguments.size() == plain + 1, kCorruptData, "the tensor is made with ",
            arguments.size(), " arguments, not ", plain, " or ", plain + 1);
  check_plain_call(node);

  PickledTensor tensor = parse_place(node, has_dtype ? std::optional(parse_dtype(arguments[6])) : std::nullopt, limits);
  check_plain_dtype(tensor.dtype);
  tensor.requires_grad = parse_bool(arguments[4], "requires_grad");
  check_no_hooks(arguments[5]);
  if (arguments.size() > plain) parse_view_bits(arguments[plain], tensor);
  return tensor;
}

// The scales or zero points of a tensor quantized per channel.
PickledTensor parse_channel_numbers(Ref node, std::int64_t channels, bool may_be_integers, std::string_view what,
                                    const ParseLimits& limits) {
  const bool is_plain = node->kind == NodeKind::kCall &&
                        (node->callee()->is_global(kUtils, kTensorV2) || node->callee()->is_global(kUtils, kTensorV3));
  DCP_CHECK(is_plain, kCorruptData, "the quantizer's ", what, " are ", describe(node), ", not a tensor");
  PickledTensor numbers = parse_rebuild(node, limits);
  const bool is_known =
      numbers.dtype == c10::ScalarType::Double || numbers.dtype == c10::ScalarType::Float ||
      (may_be_integers && (numbers.dtype == c10::ScalarType::Long || numbers.dtype == c10::ScalarType::Int));
  DCP_CHECK(is_known, kCorruptData, "the quantizer's ", what, " are of dtype ", dtype_name(numbers.dtype));
  DCP_CHECK(numbers.sizes.size() == 1 && numbers.sizes[0] == channels, kCorruptData, "the quantizer's ", what,
            " have sizes ", c10::IntArrayRef(numbers.sizes), ", the tensor has ", channels, " channels");
  // One stored number for any number of channels would be copied so often.
  DCP_CHECK(channels <= numbers.storage_numel, kCorruptData, "the quantizer's ", what, " are ", channels,
            ", but their storage has ", numbers.storage_numel);
  return numbers;
}

PickledQuantizer parse_quantizer(Ref node, const Sizes& sizes, const ParseLimits& limits) {
  check_kind(node, NodeKind::kTuple, "quantizer");
  const auto& parts = node->items();
  DCP_CHECK(!parts.empty(), kCorruptData, "the tensor's quantizer is empty");
  PickledQuantizer quantizer;
  if (parts[0]->is_global("torch", "per_tensor_affine")) {
    DCP_CHECK(parts.size() == 3, kCorruptData, "the tensor's quantizer has ", parts.size(), " parts, not 3");
    check_kind(parts[1], NodeKind::kFloat, "scale");
    check_kind(parts[2], NodeKind::kInt, "zero point");
    quantizer.scale = parts[1]->real();
    quantizer.zero_point = parts[2]->integer();
    return quantizer;
  }
  const bool has_integers = parts[0]->is_global("torch", "per_channel_affine");
  DCP_CHECK(has_integers || parts[0]->is_global("torch", "per_channel_affine_float_qparams"), kUnsupported,
            "the tensor is quantized by ", describe(parts[0]), ", a scheme that is not read");
  DCP_CHECK(parts.size() == 4, kCorruptData, "the tensor's quantizer has ", parts.size(), " parts, not 4");
  quantizer.is_per_channel = true;
  quantizer.axis = non_negative(parts[3], "quantized dimension");
  DCP_CHECK(static_cast<std::size_t>(quantizer.axis) < sizes.size(), kCorruptData,
            "the tensor is quantized along dimension ", quantizer.axis, " of ", sizes.size());
  const std::int64_t channels = sizes[static_cast<std::size_t>(quantizer.axis)];
  quantizer.scales = parse_channel_numbers(parts[1], channels, false, "scales", limits);
  quantizer.zero_points = parse_channel_numbers(parts[2], channels, has_integers, "zero points", limits);
  DCP_CHECK(has_integers != c10::isFloatingType(quantizer.zero_points.dtype), kCorruptData,
            "the quantizer's zero points are of dtype ", dtype_name(quantizer.zero_points.dtype));
  return quantizer;
}

PickledTensor parse_quantized(Ref node, const ParseLimits& limits) {
  const auto& arguments = node->items();
  DCP_CHECK(arguments.size() == 7, kCorruptData, "the quantized tensor is made with ", arguments.size(),
            " arguments, not 7");
  check_plain_call(node);
  PickledTensor tensor = parse_place(node, std::nullopt, limits);
  DCP_CHECK(is_quantized_dtype(tensor.dtype), kCorruptData, "a quantized tensor of ", dtype_name(tensor.dtype));
  tensor.quantizer = std::make_shared<PickledQuantizer>(parse_quantizer(arguments[4], tensor.sizes, limits));
  tensor.requires_grad = parse_bool(arguments[5], "requires_grad");
  check_no_hooks(arguments[6]);
  return tensor;
}

// A parameter is a tensor with a flag.
Ref tensor_of_parameter(Ref node) {
  DCP_CHECK(node->items().size() == 3, kCorruptData, "the parameter is made with ", node->items().size(),
            " arguments, not 3");
  check_plain_call(node);
  check_kind(node->items()[1], NodeKind::kBool, "requires_grad");
  check_no_hooks(node->items()[2]);
  return node->items()[0];
}

}  // namespace

bool is_tensor_call(pickle::Ref node) {
  if (node->kind != NodeKind::kCall || node->callee()->kind != NodeKind::kGlobal) return false;
  if (is_known_call(node->callee())) return true;
  return node->callee()->module() == kUtils &&
         std::ranges::find(kRefusedCalls, node->callee()->text()) != kRefusedCalls.end();
}

bool is_storage_id(pickle::Ref node) {
  if (node->kind != NodeKind::kPersistentId || node->items()[0]->kind != NodeKind::kTuple) return false;
  const auto& parts = node->items()[0]->items();
  return (parts.size() == 5 || parts.size() == 6) && parts[0]->kind == NodeKind::kText &&
         parts[0]->text() == "storage" && parts[1]->kind == NodeKind::kGlobal && parts[2]->kind == NodeKind::kText &&
         is_number(parts[2]->text()) && parts[3]->kind == NodeKind::kText && parts[4]->kind == NodeKind::kInt &&
         parts[4]->integer() >= 0;
}

PickledStorage parse_storage_id(pickle::Ref node) {
  const Ref id = node->items()[0];
  check_kind(id, NodeKind::kTuple, "storage's id");
  const auto& parts = id->items();
  DCP_CHECK(
      (parts.size() == 5 || parts.size() == 6) && parts[0]->kind == NodeKind::kText && parts[0]->text() == "storage",
      kCorruptData, "the tensor's storage id is no ('storage', type, key, location, count)");
  PickledStorage storage;
  check_kind(parts[2], NodeKind::kText, "storage key");
  storage.key = parts[2]->text();
  DCP_CHECK(is_number(storage.key), kCorruptData, "the tensor's storage key is \"", storage.key, "\", not a number");
  check_kind(parts[3], NodeKind::kText, "storage location");
  DCP_CHECK(parts.size() == 5 || parts[5]->kind == NodeKind::kNone, kUnsupported,
            "the tensor's storage is a part of another one, as PyTorch before 0.4 wrote it");

  storage.dtype = parse_storage_type(parts[1]);
  const std::int64_t count = non_negative(parts[4], "storage element count");
  const auto bytes = checked_mul(count, element_bytes(storage.dtype));
  DCP_CHECK(bytes.has_value(), kCorruptData, "the tensor's storage has ", count, " elements, more than 64 bits count");
  storage.bytes = *bytes;
  return storage;
}

PickledTensor parse_tensor_call(pickle::Ref node, const ParseLimits& limits) {
  DCP_CHECK(is_tensor_call(node), kCorruptData, "there should be a tensor, but there is ", describe(node));
  std::optional<bool> requires_grad;
  if (node->callee()->is_global(kUtils, kParameter) && !node->is_new_object) {
    const Ref parameter = node;
    node = tensor_of_parameter(node);
    requires_grad = parameter->items()[1]->integer() != 0;
    DCP_CHECK(is_tensor_call(node), kCorruptData, "a parameter should hold a tensor, but holds ", describe(node));
    DCP_CHECK(!node->callee()->is_global(kUtils, kParameter), kCorruptData, "a parameter holds a parameter");
  }
  DCP_CHECK(is_known_call(node->callee()) && !node->is_new_object, kUnsupported, "the tensor is made by ",
            describe(node), ", a kind that is not read");
  PickledTensor tensor =
      node->callee()->is_global(kUtils, kQuantized) ? parse_quantized(node, limits) : parse_rebuild(node, limits);
  if (requires_grad) tensor.requires_grad = *requires_grad;
  return tensor;
}

}  // namespace dcp

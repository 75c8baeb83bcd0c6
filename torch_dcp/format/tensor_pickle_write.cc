#include <c10/util/strides.h>

#include "torch_dcp/base/checked_math.h"
#include "torch_dcp/base/error.h"
#include "torch_dcp/format/tensor_pickle_internal.h"
#include "torch_dcp/format/tensor_pickle_names_internal.h"
#include "torch_dcp/tensor/dtype.h"

namespace dcp {
namespace {

using tensor_calls::kQuantized;
using tensor_calls::kTensorV2;
using tensor_calls::kTensorV3;
using tensor_calls::kUtils;

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

void write_quantizer(pickle::Writer& writer, const PickledQuantizer& quantizer, bool is_before_zip) {
  if (!quantizer.is_per_channel) {
    writer.global("torch", "per_tensor_affine");
    writer.real(quantizer.scale);
    writer.integer(quantizer.zero_point);
    writer.tuple_of(3);
  } else {
    const bool has_integers = !c10::isFloatingType(quantizer.zero_points.dtype);
    writer.mark();
    writer.global("torch", has_integers ? "per_channel_affine" : "per_channel_affine_float_qparams");
    write_tensor_call(writer, quantizer.scales, is_before_zip);
    write_tensor_call(writer, quantizer.zero_points, is_before_zip);
    writer.integer(quantizer.axis);
    writer.tuple_from_mark();
  }
  writer.put();
}

// What Python adds for a lazily conjugated or negated tensor.
void write_view_bits(pickle::Writer& writer, const PickledTensor& tensor) {
  if (!tensor.is_conj && !tensor.is_neg) return;
  writer.empty_dict();
  writer.put();
  const bool has_both = tensor.is_conj && tensor.is_neg;
  if (has_both) writer.mark();
  if (tensor.is_conj) {
    writer.text("conj");
    writer.boolean(true);
  }
  if (tensor.is_neg) {
    writer.text("neg");
    writer.boolean(true);
  }
  if (has_both) {
    writer.set_items_from_mark();
  } else {
    writer.set_item();
  }
}

}  // namespace

PickledTensor contiguous_tensor(std::string storage_key, c10::ScalarType dtype, c10::IntArrayRef sizes) {
  PickledTensor tensor;
  const auto numel = checked_numel(sizes);
  const auto bytes = numel ? checked_mul(*numel, element_bytes(dtype)) : std::nullopt;
  DCP_CHECK(bytes.has_value(), kInvalidArgument, "a tensor of sizes ", sizes, " cannot be written");
  tensor.storage_key = std::move(storage_key);
  tensor.storage_numel = *numel;
  tensor.storage_bytes = *bytes;
  tensor.dtype = dtype;
  tensor.sizes = Sizes(sizes);
  tensor.strides = Sizes(c10::contiguous_strides(sizes));
  return tensor;
}

std::uint32_t write_tensor_call(pickle::Writer& writer, const PickledTensor& tensor, bool is_before_zip) {
  const StorageName storage = storage_name(tensor.dtype);
  const bool is_untyped = storage.is_untyped;
  writer.global(kUtils, tensor.quantizer ? kQuantized : is_untyped ? kTensorV3 : kTensorV2);
  writer.mark();
  writer.mark();
  writer.text("storage");
  writer.global(storage.module, storage.name);
  writer.text(tensor.storage_key);
  writer.text("cpu");
  writer.integer(is_untyped ? tensor.storage_bytes : tensor.storage_numel);
  if (is_before_zip) writer.none();
  writer.tuple_from_mark();
  writer.put();
  writer.persistent_id();
  writer.integer(tensor.storage_offset);
  write_ints(writer, tensor.sizes);
  write_ints(writer, tensor.strides);
  if (tensor.quantizer) write_quantizer(writer, *tensor.quantizer, is_before_zip);
  writer.boolean(tensor.requires_grad);
  writer.global("collections", "OrderedDict");
  writer.empty_tuple();
  writer.reduce();
  writer.put();
  if (is_untyped) writer.global("torch", dtype_name(tensor.dtype));
  write_view_bits(writer, tensor);
  writer.tuple_from_mark();
  writer.put();
  writer.reduce();
  return writer.put();
}

void write_tensor_call(pickle::Writer& writer, const std::string& storage_key, c10::ScalarType dtype,
                       c10::IntArrayRef sizes) {
  DCP_CHECK(!c10::isQIntType(dtype), kUnsupported, "a quantized tensor, ", dtype_name(dtype));
  write_tensor_call(writer, contiguous_tensor(storage_key, dtype, sizes));
}

}  // namespace dcp

#include <ATen/ops/empty.h>

#include <algorithm>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "torch_dcp/base/error.h"
#include "torch_dcp/format/object_encoder_internal.h"
#include "torch_dcp/format/object_item.h"
#include "torch_dcp/format/zip_internal.h"
#include "torch_dcp/tensor/dtype.h"
#include "torch_dcp/tensor/local_chunks.h"
#include "torch_dcp/tensor/quantized.h"

namespace dcp {
namespace {

constexpr std::size_t kBatch = 1000;     ///< of Python's pickler
constexpr std::size_t kTensorDepth = 4;  ///< of the call that makes a tensor: call, arguments, persistent id, its tuple

/// All bytes of the tensor's storage.
at::Tensor storage_bytes(const at::Tensor& tensor) {
  const auto count = static_cast<std::int64_t>(tensor.storage().nbytes());
  at::Tensor bytes = at::empty({0}, at::TensorOptions(at::kByte).device(tensor.device()));
  bytes.set_(tensor.storage(), 0, {count}, {1});
  return bytes;
}

/// PyTorch gives a storage of its own class to what has one, and one counted in bytes to all others.
bool is_same_storage_class(c10::ScalarType a, c10::ScalarType b) {
  return a == b || (storage_name(a).is_untyped && storage_name(b).is_untyped);
}

}  // namespace

void ObjectEncoder::value(const Value& value) { std::visit(*this, value.storage()); }

void ObjectEncoder::refuse(const std::string& what) const {
  DCP_THROW(kUnsupported, place(), ": ", what, " cannot be part of an object item");
}

void ObjectEncoder::enter(PathItem step) {
  static constexpr ParseLimits kLimits;
  path_.push_back(std::move(step));
  DCP_CHECK(path_.size() + kTensorDepth <= kLimits.max_depth, kUnsupported, "object: it is nested deeper than ",
            kLimits.max_depth, ", which could not be read back");
}

void ObjectEncoder::element(std::size_t index, const Value& value) {
  enter(PathItem::list_index(static_cast<std::int64_t>(index)));
  this->value(value);
  leave();
}

void ObjectEncoder::check_dtype(c10::ScalarType dtype) const {
  const bool is_untyped = storage_name(dtype).is_untyped;  // throws for a dtype without a form
  DCP_CHECK(!is_untyped || !is_before_zip_, kUnsupported, place(), ": a tensor of ", dtype_name(dtype),
            ", which PyTorch does not read from the form before zip");
}

PickledTensor ObjectEncoder::add_own(const at::Tensor& tensor) {
  check_dtype(tensor.scalar_type());
  PickledTensor pickled = contiguous_tensor(std::to_string(storages_.size()), tensor.scalar_type(), tensor.sizes());
  storages_.push_back({tensor.scalar_type(), pickled.storage_bytes, tensor});
  if (tensor.is_quantized()) pickled.quantizer = std::make_shared<PickledQuantizer>(add_quantizer(tensor));
  return pickled;
}

PickledQuantizer ObjectEncoder::add_quantizer(const at::Tensor& tensor) {
  const Quantizer quantizer = quantizer_of(tensor);
  PickledQuantizer pickled;
  pickled.is_per_channel = quantizer.is_per_channel();
  pickled.scale = quantizer.scale;
  pickled.zero_point = quantizer.zero_point;
  pickled.axis = quantizer.axis;
  if (!pickled.is_per_channel) return pickled;
  pickled.scales = add_own(quantizer.scales.contiguous());
  pickled.zero_points = add_own(quantizer.zero_points.contiguous());
  return pickled;
}

PickledTensor ObjectEncoder::add_shared(const at::Tensor& tensor) {
  const c10::ScalarType dtype = tensor.scalar_type();
  check_dtype(dtype);
  const auto [entry, is_new] = shared_.try_emplace(tensor.storage().unsafeGetStorageImpl(), storages_.size());
  const std::int64_t unit = element_bytes(dtype);
  if (is_new) {
    // PyTorch counts whole elements, and wants no bytes behind them.
    const std::int64_t bytes = static_cast<std::int64_t>(tensor.storage().nbytes()) / unit * unit;
    storages_.push_back({dtype, bytes, storage_bytes(tensor)});
  }
  StorageToWrite& storage = storages_[entry->second];
  DCP_CHECK(is_same_storage_class(storage.dtype, dtype), kUnsupported, place(), ": a tensor of ", dtype_name(dtype),
            " and one of ", dtype_name(storage.dtype), " share their memory, which torch.save cannot tell");
  PickledTensor pickled;
  pickled.storage_key = std::to_string(entry->second);
  pickled.storage_bytes = storage.bytes;
  pickled.storage_numel = storage.bytes / unit;
  pickled.dtype = dtype;
  pickled.sizes = Sizes(tensor.sizes());
  pickled.strides = Sizes(tensor.strides());
  pickled.storage_offset = tensor.storage_offset();
  pickled.is_conj = tensor.is_conj();
  pickled.is_neg = tensor.is_neg();
  if (tensor.is_quantized()) pickled.quantizer = std::make_shared<PickledQuantizer>(add_quantizer(tensor));
  return pickled;
}

void ObjectEncoder::operator()(const at::Tensor& value) {
  DCP_CHECK(value.defined(), kInvalidArgument, place(), ": the tensor is undefined");
  if (rule_ == StorageRule::kOwn) {
    const at::Tensor view = local_chunks(value)[0].view;
    const bool is_quantized = view.is_quantized();
    const at::Tensor plain = is_quantized ? view.cpu() : view.resolve_conj().resolve_neg().cpu();
    write_tensor_call(writer_, add_own(plain.contiguous()), is_before_zip_);
    return;
  }
  const auto written = written_.find(value.unsafeGetTensorImpl());
  if (written != written_.end()) return writer_.get(written->second);
  PickledTensor pickled;
  if (value.is_meta()) {
    DCP_CHECK(!c10::isQIntType(value.scalar_type()), kUnsupported, place(),
              ": a quantized tensor on the meta device has no quantizer");
    pickled = add_own(value);
  } else {
    pickled = add_shared(local_chunks(value)[0].view);
  }
  pickled.requires_grad = value.requires_grad();
  kept_.push_back(value);
  written_.emplace(value.unsafeGetTensorImpl(), write_tensor_call(writer_, pickled, is_before_zip_));
}

void ObjectEncoder::operator()(const List& value) {
  writer_.empty_list();
  writer_.put();
  if (value.size() == 1) {
    element(0, value[0]);
    writer_.append();
    return;
  }
  for (std::size_t i = 0; i < value.size(); ++i) {
    if (i % kBatch == 0) writer_.mark();
    element(i, value[i]);
    if ((i + 1) % kBatch == 0 || i + 1 == value.size()) writer_.appends_from_mark();
  }
}

void ObjectEncoder::operator()(const Tuple& value) {
  if (value.empty()) return writer_.empty_tuple();
  if (value.size() > 3) writer_.mark();
  for (std::size_t i = 0; i < value.size(); ++i) element(i, value[i]);
  if (value.size() > 3) {
    writer_.tuple_from_mark();
  } else {
    writer_.tuple_of(static_cast<int>(value.size()));
  }
  writer_.put();
}

void ObjectEncoder::operator()(const Dict& value) {
  writer_.empty_dict();
  writer_.put();
  std::size_t written = 0;
  for (const auto& [key, item] : value) {
    if (value.size() > 1 && written % kBatch == 0) writer_.mark();
    if (const auto* text = std::get_if<std::string>(&key)) {
      writer_.text(*text);
    } else {
      writer_.integer(std::get<std::int64_t>(key));
    }
    enter(PathItem::dict_key(key));
    this->value(item);
    leave();
    ++written;
    if (value.size() == 1) {
      writer_.set_item();
    } else if (written % kBatch == 0 || written == value.size()) {
      writer_.set_items_from_mark();
    }
  }
}

Bytes encode_object_item(const Value& value) {
  if (const auto* opaque = std::get_if<Opaque>(&value.storage())) {
    DCP_CHECK(opaque->item != nullptr, kInvalidArgument, "object: an Opaque of type ", opaque->type_name,
              " without an item");
    return *opaque->item;
  }
  ObjectEncoder encoder(StorageRule::kOwn);
  encoder.value(value);
  zip::Writer zip;
  zip.add("data.pkl", encoder.finish_pickle());
  zip.add_format_members();
  const std::vector<StorageToWrite> storages = encoder.take_storages();
  for (std::size_t key = 0; key < storages.size(); ++key) {
    const auto* elements = static_cast<const std::uint8_t*>(storages[key].elements.const_data_ptr());
    zip.add("data/" + std::to_string(key), {elements, static_cast<std::size_t>(storages[key].bytes)});
  }
  zip.add_closing_members();
  return zip.finish();
}

}  // namespace dcp

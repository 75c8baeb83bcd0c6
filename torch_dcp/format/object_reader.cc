#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>

#include "torch_dcp/base/checked_math.h"
#include "torch_dcp/base/error.h"
#include "torch_dcp/format/object_forms_internal.h"
#include "torch_dcp/format/object_reader_internal.h"
#include "torch_dcp/tensor/dtype.h"

namespace dcp {
namespace {

at::Tensor empty_meta(const PickledTensor& pickled) {
  const auto options = at::TensorOptions(pickled.dtype).device(c10::kMeta);
  if (!pickled.quantizer) return at::empty_strided(pickled.sizes, pickled.strides, options);
  // LibTorch makes no strided ones of these.
  at::Tensor tensor = at::empty(pickled.sizes, options);
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(pickled.sizes, pickled.strides);
  return tensor;
}

}  // namespace

ObjectReader::ObjectReader(const RandomAccessFile& item, const ParseLimits& limits)
    : item_(item),
      limits_(limits),
      saved_(open_archive(item, static_cast<std::int64_t>(limits.max_string_bytes), limits)),
      budget_(CopyBudget::of_object(static_cast<std::size_t>(saved_.pickle_bytes), item.size())),
      loader_(item_, saved_) {
  object_forms::check_pickle(saved_.pickle.root, limits_);
}

void ObjectReader::check_all_members() const {
  for (const zip::Member& member : saved_.archive.members) {
    if (!member.is_deflated) zip::read_member(item_, 0, member, member.bytes);
  }
}

void ObjectReader::charge_expanded(const PickledTensor& pickled) {
  // An expanded tensor can have any number of elements in a small storage, and what uses it will copy them.
  const auto numel = checked_numel(pickled.sizes);
  const auto bytes = numel ? checked_mul(*numel, element_bytes(pickled.dtype)) : std::nullopt;
  DCP_CHECK(bytes, kCorruptData, "object: the bytes of a tensor of ", to_string(pickled.sizes), " overflow");
  // One that is stored as the conjugate or negative of its elements is computed into memory of its own.
  const bool is_computed = pickled.is_conj || pickled.is_neg;
  if (is_computed || *bytes > pickled.storage_bytes) budget_.charge(static_cast<std::size_t>(*bytes));
  if (!pickled.quantizer || !pickled.quantizer->is_per_channel) return;
  // The numbers of a quantizer are copied, too: at most 8 bytes each.
  for (const PickledTensor* numbers : {&pickled.quantizer->scales, &pickled.quantizer->zero_points}) {
    budget_.charge(sizeof(double) * static_cast<std::size_t>(numbers->sizes[0]));
  }
}

/// In an object nothing would tell that a tensor of bits stands for one of a dtype that this LibTorch lacks.
PickledTensor ObjectReader::parse(pickle::Ref call) const {
  PickledTensor pickled = parse_tensor_call(call, limits_);
  DCP_CHECK(pickled.newer_dtype == NewerDtype::kNone, kUnsupported, "object: this LibTorch has no dtype torch.",
            dtype_name(NamedDtype{pickled.dtype, pickled.newer_dtype}));
  return pickled;
}

const at::Tensor& ObjectReader::tensor(pickle::Ref call) {
  const auto [entry, is_new] = tensors_.try_emplace(call);
  if (!is_new) return entry->second;
  const PickledTensor pickled = parse(call);
  charge_expanded(pickled);
  entry->second = loader_.load(pickled);
  return entry->second;
}

const at::Tensor& ObjectReader::describe(pickle::Ref call) {
  const auto [entry, is_new] = tensors_.try_emplace(call);
  if (!is_new) return entry->second;
  PickledTensor pickled = parse(call);
  charge_expanded(pickled);
  entry->second = empty_meta(pickled);
  described_.push_back({entry->second, std::move(pickled)});
  return entry->second;
}

}  // namespace dcp

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>

#include "torch_dcp/base/checked_math.h"
#include "torch_dcp/format/object_forms_internal.h"
#include "torch_dcp/format/object_reader_internal.h"
#include "torch_dcp/pickle/reader.h"
#include "torch_dcp/tensor/dtype.h"

namespace dcp {
namespace {

Bytes read_pickle(const SpanFile& file, const zip::Archive& archive, const ParseLimits& limits) {
  const zip::Member& member = archive.at("data.pkl");
  // A stored pickle is no larger than the item; a deflated one could be.
  const std::int64_t max_bytes = member.is_deflated ? static_cast<std::int64_t>(limits.max_header_bytes) : member.bytes;
  return zip::read_member(file, 0, member, max_bytes);
}

void swap_bytes(MutableByteSpan bytes, std::int64_t unit_bytes) {
  if (unit_bytes == 1) return;
  for (auto unit = bytes.begin(); unit != bytes.end(); unit += unit_bytes) std::reverse(unit, unit + unit_bytes);
}

/// PyTorch takes every byte but 0 for True; only 1 is True in memory.
void make_bools(MutableByteSpan bytes) {
  for (std::uint8_t& byte : bytes) byte = byte != 0;
}

}  // namespace

ObjectReader::ObjectReader(ByteSpan item, const ParseLimits& limits)
    : file_(item),
      limits_(limits),
      archive_(zip::read_archive(file_, 0, static_cast<std::int64_t>(file_.size()), limits)),
      is_big_endian_(zip::read_is_big_endian(file_, 0, archive_)),
      pickle_bytes_(read_pickle(file_, archive_, limits)),
      pickle_(pickle::parse(pickle_bytes_, limits)),
      budget_(pickle_bytes_.size(), item.size()) {
  object_forms::check_pickle(pickle_.root, limits_);
}

void ObjectReader::check_all_members() const {
  for (const zip::Member& member : archive_.members) {
    if (!member.is_deflated) zip::read_member(file_, 0, member, member.bytes);
  }
}

const at::Tensor& ObjectReader::storage(const PickledTensor& pickled) {
  const auto [entry, is_new] = storages_.try_emplace({pickled.storage_key, pickled.dtype});
  if (!is_new) return entry->second;
  const zip::Member& member = archive_.at("data/" + pickled.storage_key);
  DCP_CHECK(member.bytes == pickled.storage_bytes, kCorruptData, "object: data/", pickled.storage_key, " has ",
            member.bytes, " bytes, its tensors say ", pickled.storage_bytes);
  Bytes bytes = zip::read_member(file_, 0, member, pickled.storage_bytes);
  if (is_big_endian_) swap_bytes(bytes, swap_unit_bytes(pickled.dtype));
  if (pickled.dtype == c10::ScalarType::Bool) make_bools(bytes);
  entry->second = at::empty({pickled.storage_numel}, at::TensorOptions(pickled.dtype));
  if (!bytes.empty()) std::memcpy(entry->second.data_ptr(), bytes.data(), bytes.size());
  return entry->second;
}

at::Tensor ObjectReader::make_tensor(const PickledTensor& pickled) {
  const at::Tensor& base = storage(pickled);
  // An expanded tensor can have any number of elements in a small storage, and what uses it will copy them.
  const auto numel = checked_numel(pickled.sizes);
  const auto bytes = numel ? checked_mul(*numel, element_bytes(pickled.dtype)) : std::nullopt;
  DCP_CHECK(bytes, kCorruptData, "object: the bytes of a tensor of ", to_string(pickled.sizes), " overflow");
  if (*bytes > pickled.storage_bytes) budget_.charge(static_cast<std::size_t>(*bytes));
  at::Tensor tensor = base.as_strided(pickled.sizes, pickled.strides, pickled.storage_offset);
  if (pickled.is_conj) tensor = tensor.conj_physical();
  if (pickled.is_neg) tensor = tensor.neg();
  return tensor;
}

const at::Tensor& ObjectReader::tensor(pickle::Ref call) {
  const auto [entry, is_new] = tensors_.try_emplace(call);
  if (is_new) entry->second = make_tensor(parse_tensor_call(call, limits_));
  return entry->second;
}

}  // namespace dcp

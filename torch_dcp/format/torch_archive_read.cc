#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "torch_dcp/base/checked_math.h"
#include "torch_dcp/base/error.h"
#include "torch_dcp/format/legacy_archive_internal.h"
#include "torch_dcp/format/torch_archive_internal.h"
#include "torch_dcp/pickle/reader.h"
#include "torch_dcp/pickle/walk.h"
#include "torch_dcp/tensor/dtype.h"

namespace dcp {
namespace {

/// A part of a storage is read alone if the whole has more bytes than this many times the part's.
constexpr std::int64_t kPartsWorthReading = 2;

const zip::Member& storage_member(const SavedArchive& saved, const std::string& key, std::int64_t bytes) {
  const zip::Member& member = saved.archive.at("data/" + key);
  DCP_CHECK(member.bytes == bytes, kCorruptData, "\"", member.name, "\" has ", member.bytes,
            " bytes, the tensor's storage should have ", bytes);
  return member;
}

const zip::Member& storage_member(const SavedArchive& saved, const PickledTensor& tensor) {
  return storage_member(saved, tensor.storage_key, tensor.storage_bytes);
}

/// Looks up every storage that the pickle names, also within what no value can hold.
void check_storages(const SavedArchive& saved) {
  pickle::walk(saved.pickle.root, [&](pickle::Ref node) {
    if (node->kind != pickle::NodeKind::kPersistentId || !is_storage_id(node)) return true;
    const PickledStorage storage = parse_storage_id(node);
    storage_member(saved, storage.key, storage.bytes);
    return false;
  });
}

at::Tensor empty_bytes(std::int64_t count) { return at::empty({count}, at::TensorOptions(at::kByte)); }

MutableByteSpan memory_of(const at::Tensor& bytes) {
  return {static_cast<std::uint8_t*>(bytes.mutable_data_ptr()), bytes.nbytes()};
}

void swap_bytes(MutableByteSpan bytes, std::int64_t unit_bytes) {
  if (unit_bytes == 1) return;
  for (auto unit = bytes.begin(); unit != bytes.end(); unit += unit_bytes) std::reverse(unit, unit + unit_bytes);
}

/// PyTorch takes every byte but 0 for True; only 1 is True in memory.
void make_bools(MutableByteSpan bytes) {
  for (std::uint8_t& byte : bytes) byte = byte != 0;
}

/// Brings stored elements into this machine's form.
void make_native(MutableByteSpan bytes, c10::ScalarType dtype, bool is_big_endian) {
  if (is_big_endian) swap_bytes(bytes, swap_unit_bytes(dtype));
  if (dtype == c10::ScalarType::Bool) make_bools(bytes);
}

/// A tensor on memory that is there.
at::Tensor tensor_on(const at::Tensor& bytes, c10::ScalarType dtype, const Sizes& sizes, const Sizes& strides,
                     std::int64_t storage_offset) {
  at::Tensor tensor = at::empty({0}, at::TensorOptions(dtype));
  tensor.set_(bytes.storage(), storage_offset, sizes, strides);
  return tensor;
}

at::Tensor finish_tensor(at::Tensor tensor, bool is_conj, bool is_neg) {
  if (is_conj) tensor = tensor.conj_physical();
  return is_neg ? tensor.neg() : tensor;
}

Quantizer load_quantizer(TensorLoader& loader, const PickledQuantizer& pickled) {
  Quantizer quantizer;
  quantizer.scale = pickled.scale;
  quantizer.zero_point = pickled.zero_point;
  if (!pickled.is_per_channel) return quantizer;
  quantizer.scales = loader.load(pickled.scales).contiguous();
  quantizer.zero_points = loader.load(pickled.zero_points).contiguous();
  quantizer.axis = pickled.axis;
  return quantizer;
}

/// The elements of a storage that a tensor reaches, from the first to past the last.
std::pair<std::int64_t, std::int64_t> reached(const TensorItem& item) {
  std::int64_t end = item.storage_offset + 1;
  for (std::size_t d = 0; d < item.sizes.size(); ++d) {
    if (item.sizes[d] == 0) return {0, 0};
    end += (item.sizes[d] - 1) * item.strides[d];
  }
  return {item.storage_offset, end};
}

}  // namespace

SavedArchive open_archive(const RandomAccessFile& item, std::int64_t max_pickle_bytes, const ParseLimits& limits) {
  if (legacy::is_before_zip(item)) return legacy::open_archive(item, max_pickle_bytes, limits);
  SavedArchive saved;
  saved.archive = zip::read_archive(item, 0, static_cast<std::int64_t>(item.size()), limits);
  saved.is_big_endian = zip::read_is_big_endian(item, 0, saved.archive);
  const zip::Member& member = saved.archive.at("data.pkl");
  // A stored pickle is no larger than the file; a deflated one could be.
  if (member.is_deflated) {
    max_pickle_bytes = std::min(max_pickle_bytes, static_cast<std::int64_t>(limits.max_header_bytes));
  }
  const Bytes bytes = zip::read_member(item, 0, member, max_pickle_bytes);
  saved.pickle_bytes = member.bytes;
  saved.pickle = pickle::parse(bytes, limits);
  return saved;
}

TensorItem locate_tensor(TensorLoader& loader, const SavedArchive& saved, const PickledTensor& tensor) {
  const zip::Member& storage = storage_member(saved, tensor);
  TensorItem item;
  item.dtype = tensor.dtype;
  item.newer_dtype = tensor.newer_dtype;
  DCP_CHECK(item.newer_dtype != NewerDtype::kBComplex32 || !saved.is_big_endian, kUnsupported,
            "a big-endian tensor of a complex dtype that this LibTorch lacks");
  item.sizes = tensor.sizes;
  item.strides = tensor.strides;
  item.storage_offset = tensor.storage_offset;
  item.is_conj = tensor.is_conj;
  item.is_neg = tensor.is_neg;
  item.is_big_endian = saved.is_big_endian;
  item.is_stored = !storage.is_deflated;
  item.data_position = storage.data_position;
  item.data_bytes = storage.bytes;
  item.compressed_bytes = storage.compressed_bytes;
  item.crc32 = storage.crc32;
  if (tensor.quantizer) item.quantizer = load_quantizer(loader, *tensor.quantizer);
  return item;
}

const at::Tensor& TensorLoader::storage(const PickledTensor& tensor) {
  const zip::Member& member = storage_member(saved_, tensor);
  const auto [entry, is_new] = storages_.try_emplace(tensor.storage_key);
  Storage& storage = entry->second;
  const bool is_bool = tensor.dtype == c10::ScalarType::Bool;
  if (!is_new) {
    DCP_CHECK(!saved_.is_big_endian || swap_unit_bytes(storage.dtype) == swap_unit_bytes(tensor.dtype), kUnsupported,
              "\"", member.name, "\" is big-endian and used both as ", dtype_name(storage.dtype), " and ",
              dtype_name(tensor.dtype));
    if (is_bool && !storage.has_bools) make_bools(memory_of(storage.bytes));
    storage.has_bools = storage.has_bools || is_bool;
    return storage.bytes;
  }
  at::Tensor bytes = empty_bytes(tensor.storage_bytes);
  zip::read_member_into(item_, 0, member, memory_of(bytes), verify_);
  make_native(memory_of(bytes), tensor.dtype, saved_.is_big_endian);
  storage = {std::move(bytes), tensor.dtype, is_bool};
  return storage.bytes;
}

at::Tensor TensorLoader::load(const PickledTensor& pickled) {
  at::Tensor tensor =
      tensor_on(storage(pickled), pickled.dtype, pickled.sizes, pickled.strides, pickled.storage_offset);
  if (pickled.quantizer) set_quantizer(tensor, load_quantizer(*this, *pickled.quantizer));
  return finish_tensor(std::move(tensor), pickled.is_conj, pickled.is_neg);
}

void check_item_members(const RandomAccessFile& file, std::int64_t offset, std::int64_t length,
                        const ParseLimits& limits, const std::function<void(std::int64_t)>& on_read) {
  const zip::ItemWindow window(file, offset, length);
  const auto check_members = [&](const zip::Archive& archive) {
    for (const zip::Member& member : archive.members) zip::check_member(window, 0, member, on_read);
  };
  // Checksums first: what they find is more exact than what a damaged pickle says.
  const bool is_before_zip = legacy::is_before_zip(window);
  if (!is_before_zip) check_members(zip::read_archive(window, 0, length, limits));
  const SavedArchive saved = open_archive(window, static_cast<std::int64_t>(limits.max_string_bytes), limits);
  if (is_before_zip) check_members(saved.archive);
  check_storages(saved);
}

at::Tensor read_tensor(const RandomAccessFile& file, std::int64_t item_offset, const TensorItem& item,
                       bool verify_checksum) {
  zip::Member member{"the storage",   item.data_position, item.compressed_bytes,
                     item.data_bytes, item.crc32,         !item.is_stored};
  std::int64_t offset = item.storage_offset;
  const std::int64_t unit = element_bytes(item.dtype);
  const auto [begin, end] = reached(item);
  if (item.is_stored && (end - begin) * unit < item.data_bytes / kPartsWorthReading) {
    member.data_position += begin * unit;
    member.bytes = member.compressed_bytes = (end - begin) * unit;
    member.crc32 = 0;
    offset -= begin;
  }
  const at::Tensor bytes = empty_bytes(member.bytes);
  zip::read_member_into(file, item_offset, member, memory_of(bytes), verify_checksum);
  make_native(memory_of(bytes), item.dtype, item.is_big_endian);
  at::Tensor tensor = tensor_on(bytes, item.dtype, item.sizes, item.strides, offset);
  if (item.quantizer) set_quantizer(tensor, *item.quantizer);
  return finish_tensor(std::move(tensor), item.is_conj, item.is_neg);
}

}  // namespace dcp

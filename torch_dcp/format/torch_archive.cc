#include "torch_dcp/format/torch_archive.h"

#include <algorithm>

#include "torch_dcp/base/checked_math.h"
#include "torch_dcp/base/error.h"
#include "torch_dcp/format/tensor_pickle_internal.h"
#include "torch_dcp/format/zip_internal.h"
#include "torch_dcp/pickle/reader.h"
#include "torch_dcp/tensor/dtype.h"

namespace dcp {
namespace {

constexpr std::string_view kPickleName = "data.pkl";
constexpr std::string_view kDataName = "data/0";
// Far more than any tensor's; an item that holds something else may be larger.
constexpr std::int64_t kMaxPickleBytes = 64 * 1024;
// Where the first member's data begin: its header is shorter than the alignment.
constexpr std::size_t kPicklePosition = 64;
// Room for what is around the data, so that positions never overflow.
constexpr std::int64_t kMaxDataBytes = INT64_MAX - (std::int64_t{1} << 20);

// Everything before the elements.
void add_head(zip::Writer& writer, ByteSpan pickle, std::int64_t data_bytes) {
  writer.add(kPickleName, pickle);
  writer.add_format_members();
  writer.begin_streamed(kDataName, data_bytes);
}

bool is_row_major(const Sizes& sizes, const Sizes& strides) {
  if (std::ranges::find(sizes, 0) != sizes.end()) return true;
  std::int64_t expected = 1;
  for (std::size_t d = sizes.size(); d-- > 0;) {
    if (sizes[d] != 1 && strides[d] != expected) return false;
    expected *= sizes[d];
  }
  return true;
}

PickledTensor read_tensor_call(const RandomAccessFile& item, const zip::Archive& archive, const ParseLimits& limits) {
  const Bytes bytes = zip::read_member(item, 0, archive.at(kPickleName), kMaxPickleBytes);
  const pickle::Pickle pickle = pickle::parse(bytes, limits);
  return parse_tensor_call(pickle.root, limits);
}

// An item holds one tensor and no more: a small storage must not stand for a huge tensor by strides of 0.
void check_item_storage(const PickledTensor& tensor, const zip::Member& storage) {
  DCP_CHECK(storage.bytes == tensor.storage_bytes, kCorruptData, "\"", storage.name, "\" has ", storage.bytes,
            " bytes, the tensor's storage should have ", tensor.storage_bytes);
  DCP_CHECK(*checked_numel(tensor.sizes) <= tensor.storage_numel, kCorruptData, "the tensor of sizes ",
            c10::IntArrayRef(tensor.sizes), " has more elements than its storage, ", tensor.storage_numel);
}

}  // namespace

TensorItemFrame begin_tensor_item(c10::ScalarType dtype, c10::IntArrayRef sizes) {
  pickle::Writer pickle(2);
  write_tensor_call(pickle, "0", dtype, sizes);  // checks that the bytes fit 64 bits
  const Bytes pickled = std::move(pickle).finish();

  TensorItemFrame frame;
  frame.data_bytes = *checked_numel(sizes) * element_bytes(dtype);
  DCP_CHECK(frame.data_bytes <= kMaxDataBytes, kInvalidArgument, "a tensor of ", frame.data_bytes, " bytes");
  frame.pickle_bytes = static_cast<std::int64_t>(pickled.size());
  zip::Writer writer;
  add_head(writer, pickled, frame.data_bytes);
  frame.head = writer.take_head();
  frame.item_bytes = zip::archive_bytes({{kPickleName, frame.pickle_bytes},
                                         {".format_version", 1},
                                         {".storage_alignment", 2},
                                         {"byteorder", 6},
                                         {kDataName, frame.data_bytes},
                                         {"version", 2},
                                         {".data/serialization_id", 40}});
  return frame;
}

Bytes finish_tensor_item(const TensorItemFrame& frame, std::uint32_t crc32) {
  const auto pickle_bytes = static_cast<std::size_t>(frame.pickle_bytes);
  zip::Writer writer;
  writer.pass_over_head();
  add_head(writer, ByteSpan(frame.head).subspan(kPicklePosition, pickle_bytes), frame.data_bytes);
  writer.take_head();
  writer.end_streamed(crc32);
  writer.add_closing_members();
  return writer.finish();
}

bool TensorItem::is_plain_contiguous() const {
  const bool is_swapped = is_big_endian && swap_unit_bytes(dtype) > 1;
  return is_stored && !is_conj && !is_neg && !is_swapped && storage_offset == 0 && is_row_major(sizes, strides);
}

TensorItem open_tensor_item(const RandomAccessFile& file, std::int64_t offset, std::int64_t length,
                            const ParseLimits& limits) {
  const zip::ItemWindow window(file, offset, length);
  const zip::Archive archive = zip::read_archive(window, 0, length, limits);
  TensorItem item;
  item.is_big_endian = zip::read_is_big_endian(window, 0, archive);
  PickledTensor tensor = read_tensor_call(window, archive, limits);
  const zip::Member& storage = archive.at("data/" + tensor.storage_key);
  check_item_storage(tensor, storage);

  item.dtype = tensor.dtype;
  item.sizes = std::move(tensor.sizes);
  item.strides = std::move(tensor.strides);
  item.storage_offset = tensor.storage_offset;
  item.is_conj = tensor.is_conj;
  item.is_neg = tensor.is_neg;
  item.is_stored = !storage.is_deflated;
  item.data_position = storage.data_position;
  item.data_bytes = storage.bytes;
  item.compressed_bytes = storage.compressed_bytes;
  item.crc32 = storage.crc32;
  return item;
}

Bytes read_storage(const RandomAccessFile& file, std::int64_t item_offset, const TensorItem& item) {
  const zip::Member storage{"the storage",   item.data_position, item.compressed_bytes,
                            item.data_bytes, item.crc32,         !item.is_stored};
  return zip::read_member(file, item_offset, storage, item.data_bytes);
}

}  // namespace dcp

#include "torch_dcp/format/torch_archive.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "torch_dcp/base/checked_math.h"
#include "torch_dcp/base/error.h"
#include "torch_dcp/format/tensor_pickle_internal.h"
#include "torch_dcp/format/torch_archive_internal.h"
#include "torch_dcp/format/zip_internal.h"
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

// An item holds one tensor and no more: a small storage must not stand for a huge tensor by strides of 0.
void check_item_storage(const PickledTensor& tensor) {
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
  return is_stored && !is_conj && !is_neg && !is_swapped && is_row_major(sizes, strides);
}

TensorItemForm::TensorItemForm(c10::ScalarType dtype, c10::IntArrayRef sizes) {
  TensorItemFrame frame = begin_tensor_item(dtype, sizes);
  zip::Writer writer;
  writer.pass_over_head();
  add_head(writer, ByteSpan(frame.head).subspan(kPicklePosition, static_cast<std::size_t>(frame.pickle_bytes)),
           frame.data_bytes);
  writer.take_head();
  closing_ = std::make_unique<zip::ClosingPart>(writer.finish_streamed());
  item_bytes_ = frame.item_bytes;
  item_.dtype = dtype;
  item_.sizes.assign(sizes.begin(), sizes.end());
  item_.strides = contiguous_tensor("0", dtype, sizes).strides;
  item_.data_position = static_cast<std::int64_t>(frame.head.size());
  item_.data_bytes = frame.data_bytes;
  item_.compressed_bytes = frame.data_bytes;
  head_ = std::move(frame.head);
}

TensorItemForm::~TensorItemForm() = default;

ByteSpan TensorItemForm::tail(std::uint32_t crc32) { return closing_->with(crc32); }

std::optional<TensorItem> TensorItemForm::open(const RandomAccessFile& file, std::int64_t offset, std::int64_t length) {
  if (length != item_bytes_) return std::nullopt;
  const bool is_read_whole = length <= zip::ItemWindow::kWholeBytes;
  const std::size_t tail_bytes = closing_->size();
  read_.resize(is_read_whole ? static_cast<std::size_t>(length) : std::max(head_.size(), tail_bytes));
  const auto begin = static_cast<std::uint64_t>(offset);
  file.read_at(begin, MutableByteSpan(read_).first(is_read_whole ? read_.size() : head_.size()));
  if (std::memcmp(read_.data(), head_.data(), head_.size()) != 0) return std::nullopt;
  const std::uint64_t tail_position = static_cast<std::uint64_t>(length) - tail_bytes;
  if (!is_read_whole) file.read_at(begin + tail_position, MutableByteSpan(read_).first(tail_bytes));
  const auto crc32 =
      closing_->match(ByteSpan(read_).subspan(is_read_whole ? static_cast<std::size_t>(tail_position) : 0, tail_bytes));
  if (!crc32) return std::nullopt;
  TensorItem item = item_;
  item.crc32 = *crc32;
  return item;
}

TensorItemForm& TensorItemForms::of(c10::ScalarType dtype, c10::IntArrayRef sizes) {
  // A few KiB each.
  constexpr std::size_t kMaxForms = 1000;
  Key key{dtype, Sizes(sizes.begin(), sizes.end())};
  const auto found = forms_.find(key);
  if (found != forms_.end()) return *found->second;
  if (forms_.size() == kMaxForms) forms_.clear();
  return *forms_.emplace(std::move(key), std::make_unique<TensorItemForm>(dtype, sizes)).first->second;
}

TensorItem open_tensor_item(const RandomAccessFile& file, std::int64_t offset, std::int64_t length,
                            const ParseLimits& limits) {
  const zip::ItemWindow window(file, offset, length);
  const SavedArchive saved = open_archive(window, kMaxPickleBytes, limits);
  const PickledTensor tensor = parse_tensor_call(saved.pickle.root, limits);
  check_item_storage(tensor);
  TensorLoader loader(window, saved);
  return locate_tensor(loader, saved, tensor);
}

Bytes read_storage(const RandomAccessFile& file, std::int64_t item_offset, const TensorItem& item) {
  const zip::Member storage{"the storage",   item.data_position, item.compressed_bytes,
                            item.data_bytes, item.crc32,         !item.is_stored};
  return zip::read_member(file, item_offset, storage, item.data_bytes);
}

}  // namespace dcp

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <functional>
#include <queue>
#include <utility>
#include <vector>

#include "torch_dcp/base/error.h"
#include "torch_dcp/format/crc32.h"
#include "torch_dcp/storage/item_reader_internal.h"
#include "torch_dcp/storage/region_reader_internal.h"
#include "torch_dcp/tensor/dtype.h"
#include "torch_dcp/tensor/quantized.h"

namespace dcp {
namespace {

/// Small enough that the bytes are still in the cache for the checksum after they were read.
constexpr std::size_t kChecksumBytes = std::size_t{256} << 10;

MutableByteSpan memory_of(const at::Tensor& tensor) {
  return {static_cast<std::uint8_t*>(tensor.mutable_data_ptr()), tensor.nbytes()};
}

bool can_take_bytes(const at::Tensor& destination, c10::ScalarType dtype) {
  return destination.is_cpu() && destination.scalar_type() == dtype && destination.is_contiguous() &&
         !destination.is_conj() && !destination.is_neg();
}

void make_bools(const at::Tensor& bools) {
  const at::Tensor bytes = bools.view(c10::ScalarType::Byte);
  bytes.copy_(bytes.ne(0));
}

void check_crc(const TensorItem& item, std::uint32_t crc32) {
  DCP_CHECK(crc32 == item.crc32, kCorruptData, "the elements' CRC-32 is ", crc32, ", recorded is ", item.crc32,
            ": the stored bytes are damaged");
}

/// One region of a row-major item, read part by part.
class RegionReader {
 public:
  RegionReader(const RandomAccessFile& file, std::int64_t item_offset, const TensorItem& item, bool verify,
               const RegionReadOptions& options)
      : file_(file), item_(item), verify_(verify), options_(options) {
    region_.position = item_offset + item.data_position;
    region_.element_bytes = element_bytes(item.dtype);
    region_.sizes.assign(item.sizes.begin(), item.sizes.end());
    region_.position += item.storage_offset * region_.element_bytes;
    if (!verify && options.sums) {
      blocks_.emplace(file, item_offset + item.data_position, item.data_bytes, item.crc32, *options.sums);
    }
  }

  /// \pre Parts are given in row-major order, so that the checksum can follow.
  void read(c10::IntArrayRef begin, c10::IntArrayRef lengths, const at::Tensor& destination) {
    if (can_take_bytes(destination, item_.dtype)) {
      read_bytes(begin, lengths, memory_of(destination));
      return;
    }
    const std::int64_t bytes = destination.numel() * region_.element_bytes;
    std::int64_t dim = 0;
    while (dim < destination.dim() && lengths[dim] == 1) ++dim;
    if (bytes <= options_.copy_bytes || dim == destination.dim()) {
      const at::Tensor scratch =
          destination.new_empty(lengths, at::TensorOptions().dtype(item_.dtype).device(c10::kCPU));
      read_bytes(begin, lengths, memory_of(scratch));
      destination.copy_(scratch);
      return;
    }
    const std::int64_t step =
        std::max<std::int64_t>(1, options_.copy_bytes / std::max<std::int64_t>(1, bytes / lengths[dim]));
    std::vector<std::int64_t> part_begin = begin.vec();
    std::vector<std::int64_t> part_lengths = lengths.vec();
    for (std::int64_t done = 0; done < lengths[dim]; done += step) {
      part_begin[dim] = begin[dim] + done;
      part_lengths[dim] = std::min(step, lengths[dim] - done);
      read(part_begin, part_lengths, destination.narrow(dim, done, part_lengths[dim]));
    }
  }

  void finish(const at::Tensor& destination) const {
    if (verify_) check_crc(item_, crc32_);
    // A byte that is neither 0 nor 1 counts as true; as a C++ bool it would be neither.
    if (item_.dtype == c10::ScalarType::Bool && destination.scalar_type() == c10::ScalarType::Bool) {
      make_bools(destination);
    }
  }

 private:
  void read_bytes(c10::IntArrayRef begin, c10::IntArrayRef lengths, MutableByteSpan out) {
    if (!verify_) {
      region_.begin.assign(begin.begin(), begin.end());
      region_.lengths.assign(lengths.begin(), lengths.end());
      // A block that is read whole has the holes too.
      const bool has_holes = blocks_ && options_.sums->reads_whole_blocks;
      read_region(blocks_ ? *blocks_ : file_, region_, out, has_holes ? 0 : options_.max_hole_bytes);
      return;
    }
    // All of the item is read, in order: parts follow each other in the file.
    while (!out.empty()) {
      const MutableByteSpan piece = out.first(std::min(out.size(), kChecksumBytes));
      file_.read_at(static_cast<std::uint64_t>(region_.position + done_bytes_), piece);
      crc32_ = crc32_of(piece, crc32_);
      done_bytes_ += static_cast<std::int64_t>(piece.size());
      out = out.subspan(piece.size());
    }
  }

  const RandomAccessFile& file_;
  std::optional<BlockCheckedFile> blocks_;  ///< the same file where parts are checked
  const TensorItem& item_;
  bool verify_;
  const RegionReadOptions& options_;
  FileRegion region_;
  std::uint32_t crc32_ = 0;
  std::int64_t done_bytes_ = 0;
};

/// Walks a region of a row-major item in the order of the file, in parts that are boxes.
class PartWalker {
 public:
  PartWalker(const TensorItem& item, const WantedRegion& region)
      : lengths_(region.lengths),
        strides_(lengths_.size()),
        spans_(lengths_.size() + 1),
        at_(lengths_.size(), 0),
        begin_(item.storage_offset * element_bytes(item.dtype)) {
    std::int64_t stride = element_bytes(item.dtype);
    spans_.back() = stride;
    for (std::size_t d = lengths_.size(); d-- > 0;) {
      strides_[d] = stride;
      begin_ += region.begin[d] * stride;
      spans_[d] = (lengths_[d] - 1) * stride + spans_[d + 1];
      stride *= item.sizes[d];
    }
  }

  bool is_done() const { return is_done_; }
  /// Of the next part's first byte, among the item's elements.
  std::int64_t position() const {
    std::int64_t position = begin_;
    for (std::size_t d = 0; d < at_.size(); ++d) position += at_[d] * strides_[d];
    return position;
  }

  /// The next part, within the region: as much as ends at `limit` or before, one element at least.
  void next(std::int64_t limit, std::vector<std::int64_t>& begin, std::vector<std::int64_t>& lengths) {
    begin = at_;
    lengths.assign(at_.size(), 1);
    is_done_ = at_.empty();
    if (is_done_) return;
    // From the outermost dimension on inside which nothing has been begun.
    std::size_t dim = at_.size() - 1;
    while (dim > 0 && at_[dim] == 0) --dim;
    std::int64_t room = limit - position();
    while (dim + 1 < at_.size() && spans_[dim + 1] > room) ++dim;
    room = std::max<std::int64_t>(0, room - spans_[dim + 1]);
    const std::int64_t step = std::min(lengths_[dim] - at_[dim], room / strides_[dim] + 1);
    lengths[dim] = step;
    for (std::size_t d = dim + 1; d < at_.size(); ++d) lengths[d] = lengths_[d];
    at_[dim] += step;
    while (at_[dim] == lengths_[dim]) {
      if (dim == 0) {
        is_done_ = true;
        return;
      }
      at_[dim] = 0;
      ++at_[--dim];
    }
  }

 private:
  c10::IntArrayRef lengths_;
  std::vector<std::int64_t> strides_;  // in bytes
  std::vector<std::int64_t> spans_;    // from the first to the last byte of all of the dimensions from this one on
  std::vector<std::int64_t> at_;       // of the next part's first element, within the region
  std::int64_t begin_;
  bool is_done_ = false;
};

/// One of several regions that are read in one pass.
struct RegionInPass {
  const WantedRegion* region;
  PartWalker walker;
  RegionReader reader;

  /// Reads the next part, up to `limit`.
  void read(std::int64_t limit) {
    std::vector<std::int64_t> begin;
    std::vector<std::int64_t> lengths;
    walker.next(limit, begin, lengths);
    at::Tensor part = region->destination;
    for (std::size_t d = 0; d < begin.size(); ++d) {
      if (lengths[d] != region->lengths[d]) part = part.narrow(static_cast<std::int64_t>(d), begin[d], lengths[d]);
      begin[d] += region->begin[d];
    }
    reader.read(begin, lengths, part);
  }
};

bool is_whole(const TensorItem& item, c10::IntArrayRef lengths) { return lengths == c10::IntArrayRef(item.sizes); }

/// The integers go where they would go without a quantizer, and the destination gets that of the file.
void read_quantized(const RandomAccessFile& file, std::int64_t item_offset, const TensorItem& item,
                    c10::IntArrayRef begin, c10::IntArrayRef lengths, const at::Tensor& destination,
                    const RegionReadOptions& options) {
  DCP_CHECK(is_whole(item, lengths), kUnsupported, "a slice of a quantized tensor");
  if (!destination.is_quantized()) {
    destination.copy_(read_tensor(file, item_offset, item, options.verify_checksum).dequantize());
    return;
  }
  DCP_CHECK(destination.scalar_type() == item.dtype, kType, "a quantized tensor of ", dtype_name(item.dtype),
            " for a destination of ", dtype_name(destination.scalar_type()));
  TensorItem integers = item;
  integers.dtype = c10::toUnderlying(item.dtype);
  integers.quantizer.reset();
  read_tensor_region(file, item_offset, integers, begin, lengths, integers_of(destination), options);
  set_quantizer(destination, *item.quantizer);
}

}  // namespace

void read_tensor_region(const RandomAccessFile& file, std::int64_t item_offset, const TensorItem& item,
                        c10::IntArrayRef begin, c10::IntArrayRef lengths, const at::Tensor& destination,
                        const RegionReadOptions& options) {
  if (item.quantizer) {
    return read_quantized(file, item_offset, item, begin, lengths, destination, options);
  }
  if (destination.numel() == 0) return;
  DCP_CHECK(!destination.is_quantized(), kUnsupported, "a tensor of ", dtype_name(item.dtype),
            " for a quantized destination");
  if (item.is_plain_contiguous()) {
    const bool covers_storage = is_whole(item, lengths) && item.storage_offset == 0 &&
                                destination.numel() * element_bytes(item.dtype) == item.data_bytes;
    RegionReader reader(file, item_offset, item, options.verify_checksum && covers_storage && item.crc32 != 0, options);
    reader.read(begin, lengths, destination);
    reader.finish(destination);
    return;
  }
  at::Tensor tensor = read_tensor(file, item_offset, item, options.verify_checksum);
  for (std::size_t d = 0; d < begin.size(); ++d) {
    tensor = tensor.narrow(static_cast<std::int64_t>(d), begin[d], lengths[d]);
  }
  destination.copy_(tensor);
}

void read_tensor_regions(const RandomAccessFile& file, std::int64_t item_offset, const TensorItem& item,
                         std::span<const WantedRegion> regions, const RegionReadOptions& options) {
  DCP_CHECK(options.sums && options.sums->reads_whole_blocks && item.is_plain_contiguous() && !item.quantizer,
            kInternal, "an item that cannot be read block by block");
  check_sums(*options.sums, item.data_bytes, item.crc32);
  BlockCheckedFile blocks(file, item_offset + item.data_position, item.data_bytes, item.crc32, *options.sums);
  const RegionReadOptions from_blocks{.verify_checksum = false, .copy_bytes = options.copy_bytes, .max_hole_bytes = 0};
  std::vector<RegionInPass> all;
  all.reserve(regions.size());
  // The one whose next part lies first in the file.
  using Next = std::pair<std::int64_t, std::size_t>;
  std::priority_queue<Next, std::vector<Next>, std::greater<>> order;
  for (const WantedRegion& region : regions) {
    if (region.destination.numel() == 0) continue;
    DCP_CHECK(!region.destination.is_quantized(), kUnsupported, "a tensor of ", dtype_name(item.dtype),
              " for a quantized destination");
    all.push_back({&region, PartWalker(item, region), RegionReader(blocks, item_offset, item, false, from_blocks)});
    order.emplace(all.back().walker.position(), all.size() - 1);
  }
  while (!order.empty()) {
    const auto [position, number] = order.top();
    order.pop();
    const std::int64_t others_from = order.empty() ? INT64_MAX : order.top().first;
    blocks.others_go_on_from(others_from);
    // No part ends behind its first block unless the others have gone by: one block is all that must be kept.
    const std::int64_t block_end = (position / options.sums->block_bytes + 1) * options.sums->block_bytes;
    RegionInPass& current = all[number];
    current.read(std::max(block_end, others_from));
    if (!current.walker.is_done()) order.emplace(current.walker.position(), number);
  }
  for (const RegionInPass& one : all) one.reader.finish(one.region->destination);
}

}  // namespace dcp

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <utility>

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
      read_region(blocks_ ? *blocks_ : file_, region_, out, options_.max_hole_bytes);
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

}  // namespace dcp

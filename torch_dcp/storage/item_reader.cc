#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "torch_dcp/base/error.h"
#include "torch_dcp/format/crc32.h"
#include "torch_dcp/storage/item_reader_internal.h"
#include "torch_dcp/storage/region_reader_internal.h"
#include "torch_dcp/tensor/dtype.h"

namespace dcp {
namespace {

/// Small enough that the bytes are still in the cache for the checksum after they were read.
constexpr std::size_t kChecksumBytes = std::size_t{1} << 20;

MutableByteSpan memory_of(const at::Tensor& tensor) {
  return {static_cast<std::uint8_t*>(tensor.mutable_data_ptr()), tensor.nbytes()};
}

bool can_take_bytes(const at::Tensor& destination, c10::ScalarType dtype) {
  return destination.is_cpu() && destination.scalar_type() == dtype && destination.is_contiguous() &&
         !destination.is_conj() && !destination.is_neg();
}

void check_crc(const TensorItem& item, std::uint32_t crc32) {
  DCP_CHECK(crc32 == item.crc32, kCorruptData, "the elements' CRC-32 is ", crc32, ", recorded is ", item.crc32,
            ": the stored bytes are damaged");
}

/// One region of a row-major item, read part by part.
class RegionReader {
 public:
  RegionReader(const RandomAccessFile& file, std::int64_t item_offset, const TensorItem& item, bool verify,
               std::int64_t copy_bytes)
      : file_(file), item_(item), verify_(verify), copy_bytes_(copy_bytes) {
    region_.position = item_offset + item.data_position;
    region_.element_bytes = element_bytes(item.dtype);
    region_.sizes.assign(item.sizes.begin(), item.sizes.end());
    region_.position += item.storage_offset * region_.element_bytes;
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
    if (bytes <= copy_bytes_ || dim == destination.dim()) {
      const at::Tensor scratch =
          destination.new_empty(lengths, at::TensorOptions().dtype(item_.dtype).device(c10::kCPU));
      read_bytes(begin, lengths, memory_of(scratch));
      destination.copy_(scratch);
      return;
    }
    const std::int64_t step = std::max<std::int64_t>(1, copy_bytes_ / std::max<std::int64_t>(1, bytes / lengths[dim]));
    std::vector<std::int64_t> part_begin = begin.vec();
    std::vector<std::int64_t> part_lengths = lengths.vec();
    for (std::int64_t done = 0; done < lengths[dim]; done += step) {
      part_begin[dim] = begin[dim] + done;
      part_lengths[dim] = std::min(step, lengths[dim] - done);
      read(part_begin, part_lengths, destination.narrow(dim, done, part_lengths[dim]));
    }
  }

  void finish() const {
    if (verify_) check_crc(item_, crc32_);
  }

 private:
  void read_bytes(c10::IntArrayRef begin, c10::IntArrayRef lengths, MutableByteSpan out) {
    if (!verify_) {
      region_.begin.assign(begin.begin(), begin.end());
      region_.lengths.assign(lengths.begin(), lengths.end());
      read_region(file_, region_, out);
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
  const TensorItem& item_;
  bool verify_;
  std::int64_t copy_bytes_;
  FileRegion region_;
  std::uint32_t crc32_ = 0;
  std::int64_t done_bytes_ = 0;
};

void swap_bytes(MutableByteSpan bytes, std::int64_t unit_bytes) {
  for (std::size_t at = 0; at + static_cast<std::size_t>(unit_bytes) <= bytes.size();
       at += static_cast<std::size_t>(unit_bytes)) {
    std::reverse(bytes.begin() + static_cast<std::ptrdiff_t>(at),
                 bytes.begin() + static_cast<std::ptrdiff_t>(at) + unit_bytes);
  }
}

/// The stored tensor, whole, as it was saved.
at::Tensor read_whole(const RandomAccessFile& file, std::int64_t item_offset, const TensorItem& item,
                      const at::Tensor& like) {
  Bytes storage = read_storage(file, item_offset, item);
  if (item.is_big_endian) swap_bytes(storage, swap_unit_bytes(item.dtype));
  const std::int64_t numel = item.data_bytes / element_bytes(item.dtype);
  at::Tensor flat = like.new_empty({numel}, at::TensorOptions().dtype(item.dtype).device(c10::kCPU));
  // Nothing to copy and no address to copy to in a tensor without elements.
  if (!storage.empty()) std::memcpy(flat.mutable_data_ptr(), storage.data(), storage.size());
  at::Tensor tensor = flat.as_strided(item.sizes, item.strides, item.storage_offset);
  if (item.is_conj) tensor = tensor.conj();
  return item.is_neg ? tensor.neg() : tensor;
}

bool is_whole(const TensorItem& item, c10::IntArrayRef lengths) { return lengths == c10::IntArrayRef(item.sizes); }

}  // namespace

void read_tensor_region(const RandomAccessFile& file, std::int64_t item_offset, const TensorItem& item,
                        c10::IntArrayRef begin, c10::IntArrayRef lengths, const at::Tensor& destination,
                        bool verify_checksum, std::int64_t copy_bytes) {
  if (destination.numel() == 0) return;
  if (item.is_plain_contiguous()) {
    const bool covers_storage = is_whole(item, lengths) && item.storage_offset == 0 &&
                                destination.numel() * element_bytes(item.dtype) == item.data_bytes;
    RegionReader reader(file, item_offset, item, verify_checksum && covers_storage && item.crc32 != 0, copy_bytes);
    reader.read(begin, lengths, destination);
    reader.finish();
    return;
  }
  at::Tensor tensor = read_whole(file, item_offset, item, destination);
  for (std::size_t d = 0; d < begin.size(); ++d) {
    tensor = tensor.narrow(static_cast<std::int64_t>(d), begin[d], lengths[d]);
  }
  destination.copy_(tensor);
}

}  // namespace dcp

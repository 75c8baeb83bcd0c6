#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <span>

#include "torch_dcp/format/torch_archive.h"
#include "torch_dcp/io/file_system.h"
#include "torch_dcp/storage/block_sums_internal.h"
#include "torch_dcp/storage/region_reader_internal.h"

namespace dcp {

/// Extra memory at a time for destinations that the file cannot fill directly, over all threads of a load.
inline constexpr std::int64_t kReadCopyBytes = std::int64_t{16} << 20;

struct RegionReadOptions {
  bool verify_checksum = true;
  std::int64_t copy_bytes = kReadCopyBytes;
  std::int64_t max_hole_bytes = kMergeHoleBytes;  ///< as in `read_region`
  std::optional<ItemSums> sums = {};              ///< with which a part of the item is checked
};

/// A part of a stored tensor, and where it goes.
struct WantedRegion {
  c10::IntArrayRef begin;    ///< [ndim], in elements
  c10::IntArrayRef lengths;  ///< [ndim], in elements
  at::Tensor destination;    ///< as of `read_tensor_region`
};

/// Reads the region [begin, begin + lengths) of a stored tensor into a destination.
///
/// A row-major item goes from the file straight into a contiguous CPU destination of its dtype; others pass through a
/// buffer of at most `copy_bytes`. Only the region's bytes are read, but for items that are deflated, strided or
/// swapped, which are read whole. The CRC-32 is checked whenever all of the item is read and `verify_checksum` is on;
/// of a part the blocks that `sums` says.
///
/// A quantized tensor is read whole only; a destination of its dtype gets its quantizer, one of another dtype its
/// numbers.
///
/// \param begin, lengths  [ndim], in elements, inside `item.sizes`.
/// \param destination     Shape `lengths`, any strides, device and dtype; filled by `copy_`'s conversion.
/// \throws dcp::Error kCorruptData, kIo. The destination may have been changed then.
void read_tensor_region(const RandomAccessFile& file, std::int64_t item_offset, const TensorItem& item,
                        c10::IntArrayRef begin, c10::IntArrayRef lengths, const at::Tensor& destination,
                        const RegionReadOptions& options = {});

/// Reads several regions of one tensor in one pass: each block of which one of them has a part is read once, checked,
/// and serves them all. Regions may overlap, and one may be the whole tensor: the sums must make its CRC-32.
///
/// Memory: one block, and `copy_bytes` as for one region.
///
/// \pre `item` is plain and contiguous, `options.sums` are there and read whole blocks.
/// \throws as read_tensor_region. All destinations may have been changed then.
void read_tensor_regions(const RandomAccessFile& file, std::int64_t item_offset, const TensorItem& item,
                         std::span<const WantedRegion> regions, const RegionReadOptions& options);

}  // namespace dcp

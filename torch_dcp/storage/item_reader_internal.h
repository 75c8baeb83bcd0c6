#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

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

}  // namespace dcp

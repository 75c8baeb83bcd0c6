#pragma once

#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <vector>

#include "torch_dcp/base/bytes.h"
#include "torch_dcp/io/file_system.h"

namespace dcp {

/// A region of a row-major array that lies in a file.
struct FileRegion {
  std::int64_t position = 0;  ///< of the array's first byte in the file
  std::int64_t element_bytes = 1;
  std::vector<std::int64_t> sizes;    ///< of the array, [ndim]
  std::vector<std::int64_t> begin;    ///< of the region, [ndim]
  std::vector<std::int64_t> lengths;  ///< of the region, [ndim]; not empty
};

/// A page: a medium gives no less, and from the page cache a call costs about as much as copying half of it (0.4 to 0.8
/// us against 0.25 us for each KiB: runs of up to 1000 bytes take 0.4 to 0.7 times as long together over holes of 1
/// KiB, 1.5 times as long over 4 KiB, 2.5 times over 8 KiB).
inline constexpr std::int64_t kMergeHoleBytes = 4096;

/// Reads a region into `out`, row-major without gaps.
///
/// Runs of r bytes with holes of h bytes between them are read at once, up to 4 MiB, and copied if h <=
/// `max_hole_bytes` and either r < `max_hole_bytes` / 4 or h <= r / 32; else each goes straight into `out` by a call of
/// its own. So for each wanted byte are read
///   runs of r >= `max_hole_bytes` / 4   at most 1 + 1 / 32
///   smaller ones                        (r + h) / r where h <= `max_hole_bytes`, else 1.
/// Both depend on the region and the array alone, not on where runs lie.
///
/// \param max_hole_bytes  0: nothing is read along.
void read_region(const RandomAccessFile& file, const FileRegion& region, MutableByteSpan out,
                 std::int64_t max_hole_bytes = kMergeHoleBytes);

}  // namespace dcp

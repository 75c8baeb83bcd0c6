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

/// A page: a system call costs about as much as copying it, and a medium gives no less.
inline constexpr std::int64_t kMergeHoleBytes = 4096;

/// Reads a region into `out`, row-major without gaps.
///
/// Runs that lie close together are read at once and copied, 4 MiB at most; a run alone goes straight into `out`.
///
/// \param max_hole_bytes  Unwanted bytes that are read along between two runs. Of runs from a quarter of it on, only a
///                        hole of up to 1 / 32 of their size is, so that they cost few other bytes.
void read_region(const RandomAccessFile& file, const FileRegion& region, MutableByteSpan out,
                 std::int64_t max_hole_bytes = kMergeHoleBytes);

}  // namespace dcp

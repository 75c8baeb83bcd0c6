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

/// Reads a region into `out`, row-major without gaps.
///
/// Runs that lie close together are read at once and copied; a run alone goes straight into `out`.
/// Reads at most 4 KiB of unwanted bytes for each run of less than 1 KiB, and at most 1 / 32 of its size for a larger
/// one.
void read_region(const RandomAccessFile& file, const FileRegion& region, MutableByteSpan out);

}  // namespace dcp

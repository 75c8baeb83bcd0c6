#pragma once

#include <string>
#include <vector>

#include "torch_dcp/base/bytes.h"

// What the machine does at best with the same bytes and as many threads: the limits that saves and loads are held
// against.

namespace dcp::bench {

enum class RawWrite {
  kPageCache,        ///< write alone
  kSynced,           ///< write, then fsync
  kEarly,            ///< write-back started every 8 MiB, then fsync
  kAllocatedEarly,   ///< the same into space that fallocate made before
  kDirect,           ///< O_DIRECT, then fsync
  kAllocatedDirect,  ///< the same into space that fallocate made before
};

/// Writes `parts` into `folder`, dealt out over `threads` files, and returns the seconds. Direct writes take their
/// bytes from an aligned buffer in place of the parts.
double raw_write(const std::string& folder, const std::vector<ByteSpan>& parts, std::size_t threads, RawWrite how);

/// Whether the file system of `folder` takes O_DIRECT.
bool has_direct_writes(const std::string& folder);

/// Reads the files that `raw_write` made into `parts`, of the same sizes; returns the seconds.
double raw_read(const std::string& folder, const std::vector<MutableByteSpan>& parts, std::size_t threads);

double raw_copy(const std::vector<ByteSpan>& from, const std::vector<MutableByteSpan>& to, std::size_t threads);
double raw_crc32(const std::vector<ByteSpan>& parts, std::size_t threads);

/// Takes all files of a folder out of the page cache.
void drop_from_cache(const std::string& folder);

/// Removes a folder and waits until its medium has nothing to do.
void remove_and_settle(const std::string& folder);

}  // namespace dcp::bench

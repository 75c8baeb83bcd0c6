#pragma once

#include <cstddef>
#include <memory>

#include "torch_dcp/base/export.h"

namespace dcp {

struct DCP_API FreePageMemory {
  bool has_large_pages = false;
  void operator()(std::byte* memory) const noexcept;
};

/// Uninitialized memory; see `make_page_memory`.
using PageMemory = std::unique_ptr<std::byte[], FreePageMemory>;

/// From this size on `make_page_memory` asks for large pages.
inline constexpr std::size_t kLargePageBytes = std::size_t{2} << 20;

/// Allocates memory that will be filled at once and read in no order. Where it is a multiple of 2 MiB the system is
/// asked for large pages: first touching memory in pages of 4 KiB takes longer than filling it, and so does finding
/// them again.
///
/// \throws std::bad_alloc.
DCP_API PageMemory make_page_memory(std::size_t byte_count);

}  // namespace dcp

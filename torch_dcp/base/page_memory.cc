#include "torch_dcp/base/page_memory.h"

#include <sys/mman.h>

#include <new>

namespace dcp {

void FreePageMemory::operator()(std::byte* memory) const noexcept {
  if (has_large_pages) {
    ::operator delete[](memory, std::align_val_t{kLargePageBytes});
  } else {
    ::operator delete[](memory);
  }
}

PageMemory make_page_memory(std::size_t byte_count) {
  const bool has_large_pages = byte_count >= kLargePageBytes && byte_count % kLargePageBytes == 0;
  if (!has_large_pages) return {static_cast<std::byte*>(::operator new[](byte_count)), FreePageMemory{false}};
  void* memory = ::operator new[](byte_count, std::align_val_t{kLargePageBytes});
  // A wish: without such pages it is the same memory, only slower.
  static_cast<void>(::madvise(memory, byte_count, MADV_HUGEPAGE));
  return {static_cast<std::byte*>(memory), FreePageMemory{true}};
}

}  // namespace dcp
